"""Where padding is exact: what the proof says, and what ONNX Runtime computes with and without padding.

A graph that is said to keep rows apart must give the same rows with further rows behind them. Each graph
that mixes rows is there for its own way of mixing; what it must not be is accepted.
"""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.parser import parse_model

from edgetune.model.rowwise.proof import rows
from edgetune.sizes import Dimension, Sizes

BATCH = Dimension("n", Sizes((1, 2, 8)), (("x", 0),))
RNG = np.random.default_rng(3)


def weight(name: str, *shape: int):
    return numpy_helper.from_array(RNG.standard_normal(shape).astype(np.float32), name)


def ints(name: str, *values: int):
    return numpy_helper.from_array(np.array(values, np.int64), name)


def scalar(name: str, value: int):
    return numpy_helper.from_array(np.array(value, np.int64), name)


def model(body: str, x: str = "size0, 4, 6", opset: int = 17, outputs: str = "float[a, b] y", weights=()):
    made = parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}]> g (float[{x}] x) => ({outputs}) {{ {body} }}'
    )
    made.graph.initializer.extend(weights)
    for value in made.graph.output:
        value.type.tensor_type.ClearField("shape")
    return made


KEPT = {
    "elementwise": model("a = Sigmoid(x) b = Mul(a, scale) y = Add(b, x)", weights=[weight("scale", 1, 4, 6)]),
    "lower rank beside it": model("y = Sub(x, row)", weights=[weight("row", 6)]),
    "convolution": model(
        "c = Conv <pads = [1, 1, 1, 1]> (x, k) y = GlobalAveragePool(c)",
        "size0, 3, 5, 5",
        weights=[weight("k", 2, 3, 3, 3)],
    ),
    "sizes read and written": model(
        "s = Shape(x) n = Gather(s, zero) r = Concat <axis = 0> (n, rest) f = Reshape(x, r) y = MatMul(f, w)",
        weights=[ints("zero", 0), ints("rest", 24), weight("w", 24, 3)],
    ),
    "sizes read through casts": model(
        "s = Shape(x) c = Cast <to = 6> (s) n = Slice(c, zero, one) r = Concat <axis = 0> (n, rest) "
        "i = Cast <to = 7> (r) y = Reshape(x, i)",
        weights=[ints("zero", 0), ints("one", 1), numpy_helper.from_array(np.array([8, 3], np.int32), "rest")],
    ),
    "minus one": model("y = Reshape(x, to)", weights=[ints("to", -1, 24)]),
    "rows moved": model("t = Transpose <perm = [1, 0, 2]> (x) y = ReduceMean <axes = [0, 2]> (t)"),
    "softmax of old": model("y = Softmax <axis = 1> (x)", opset=11),
    "normalized": model("y = LayerNormalization(x, s)", weights=[weight("s", 6)]),
    "attention": model(
        "k = Transpose <perm = [0, 2, 1]> (x) a = MatMul(x, k) p = Softmax <axis = -1> (a) y = MatMul(p, x)"
    ),
    "gemm": model("f = Flatten(x) y = Gemm(f, w, b)", weights=[weight("w", 24, 3), weight("b", 3)]),
    "lstm with a state of zeros": model(
        "s = Shape(x) n = Gather(s, zero) d = Concat <axis = 0> (one, n, five) h = ConstantOfShape(d) "
        "t = Transpose <perm = [1, 0, 2]> (x) y, q, c = LSTM <hidden_size = 5> (t, w, r, b, , h, h)",
        weights=[
            ints("zero", 0), ints("one", 1), ints("five", 5),
            weight("w", 1, 20, 6), weight("r", 1, 20, 5), weight("b", 1, 40),
        ],
        outputs="float[a] y, float[a] q, float[a] c",
    ),
    "resized": model("y = Resize <mode = \"linear\"> (x, , s)", "size0, 2, 4, 4", weights=[
        numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "s")
    ]),
    "an output without rows": model(
        "y = Relu(x) z = Exp(w)", weights=[weight("w", 3)], outputs="float[a] y, float[a] z"
    ),
}  # fmt: skip

MIXED = {
    "mean over the batch": (model("m = ReduceMean <axes = [0], keepdims = 1> (x) y = Sub(x, m)"), "ReduceMean"),
    "softmax over it": (model("y = Softmax <axis = 0> (x)"), "Softmax"),
    "softmax of old over all": (model("y = Softmax <axis = 0> (x)", opset=11), "Softmax"),
    "divided by their number": (
        model("s = Shape(x) n = Gather(s, zero) f = Cast <to = 1> (n) y = Div(x, f)", weights=[ints("zero", 0)]),
        "Div",
    ),
    "a number as an output": (model("y = Relu(x) s = Shape(x)", outputs="float[a] y, int64[a] s"), "'s'"),
    "rows of a table": (
        model(
            "s = Shape(x) n = Gather(s, zero) r = Range(zero, n, one) f = Cast <to = 1> (r) e = Unsqueeze(f, ax) "
            "y = Add(x, e)",
            weights=[scalar("zero", 0), scalar("one", 1), ints("ax", 1, 2)],
        ),
        "Add",
    ),
    "merged with channels": (model("y = Reshape(x, to)", weights=[ints("to", -1, 6)]), "changes their number"),
    "split by a fixed number": (model("y = Reshape(x, to)", weights=[ints("to", 2, -1)]), "Reshape"),
    "reversed": (
        model("y = Slice(x, s, e, a, t)", weights=[ints("s", -1), ints("e", -99), ints("a", 0), ints("t", -1)]),
        "Slice",
    ),
    "the first row": (model("y = Gather <axis = 0> (x, zero)", weights=[ints("zero", 0)]), "Gather"),
    "rows times rows": (
        model("t = Transpose <perm = [1, 0]> (x) y = MatMul(x, t)", "size0, 6"), "rows with each other"
    ),
    "shifted by a neighbour": (
        model("y = Conv <pads = [1, 1]> (x, k)", "1, 1, size0", weights=[weight("k", 1, 1, 3)]), "Conv"
    ),
    "batch statistics": (
        model("y, m, v = BatchNormalization <training_mode = 1> (x, s, s, s, s)", weights=[weight("s", 4)]),
        "BatchNormalization",
    ),
    "one scale for the tensor": (
        model("q, s, z = DynamicQuantizeLinear(x) y = DequantizeLinear(q, s, z)"), "DynamicQuantizeLinear"
    ),
    "accumulated": (model("y = CumSum(x, zero)", weights=[scalar("zero", 0)]), "CumSum"),
    "as long as there are rows": (
        model("s = Shape(x) n = Gather(s, zero) p = Slice(x, zero, n, two) y = ReduceSum <keepdims = 0> (p, two)",
              weights=[ints("zero", 0), ints("two", 2)]),
        "Slice",
    ),
}  # fmt: skip


def run(made, x: np.ndarray) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})


def rows_of(made) -> tuple[int, list[int]]:
    """The axis of the rows in the input, and the input's shape with eight of them."""
    dims = made.graph.input[0].type.tensor_type.shape.dim
    return [bool(dim.dim_param) for dim in dims].index(True), [dim.dim_value or 8 for dim in dims]


@pytest.mark.parametrize("name", KEPT)
def test_rows_are_kept_apart(name: str) -> None:
    made = KEPT[name]
    found = rows(made, BATCH)
    assert found.problem == ""
    axes = dict(found.outputs)
    x = RNG.standard_normal(rows_of(made)[1]).astype(np.float32)
    x[5:] = x[4:5]
    for output, whole, part in zip(made.graph.output, run(made, x), run(made, x[:5]), strict=True):
        cropped = whole.take(np.arange(5), axes[output.name]) if output.name in axes else whole
        np.testing.assert_allclose(cropped, part, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", MIXED)
def test_mixed_rows_are_noticed(name: str) -> None:
    made, where = MIXED[name]
    axis, _ = rows_of(made)
    found = rows(made, Dimension("n", BATCH.sizes, (("x", axis),)))
    assert where in found.problem
    assert found.outputs == ()


def test_two_inputs() -> None:
    def add(second: list[int | str]):
        return helper.make_model(
            helper.make_graph(
                [helper.make_node("Add", ["x", "z"], ["y"])],
                "g",
                [
                    helper.make_tensor_value_info("x", TensorProto.FLOAT, ["size0", 4]),
                    helper.make_tensor_value_info("z", TensorProto.FLOAT, second),
                ],
                [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            ),
            opset_imports=[helper.make_opsetid("", 17)],
        )

    both = Dimension("n", BATCH.sizes, (("x", 0), ("z", 0)))
    assert rows(add(["size0", 4]), both).outputs == (("y", 0),)
    assert rows(add([1, 4]), BATCH).outputs == (("y", 0),)
    # Every row of x with every row of z, once there is a single one of x.
    assert "Add" in rows(add([8, 4]), BATCH).problem
