"""What depends on no input is computed at once, and only that."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model

from edgetune.model.passes.fold_constants import fold_constants
from edgetune.model.prepare import parse, prepare

X = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)


def model_of(body: str, signature: str = "(float[2, 3] x) => (float[n, m] y)", opset: int = 17):
    return parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> g {signature} {{ {body} }}')


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def test_shape_arithmetic(same_values) -> None:
    model = model_of(
        """s = Shape(x) zero = Constant<value_ints = [0]>() n = Gather(s, zero)
        minus = Constant<value_ints = [-1]>() t = Concat<axis = 0>(minus, n) y = Reshape(x, t)"""
    )
    result = fold_constants(model)
    assert operators(result.model) == ["Reshape"]
    assert len(result.model.graph.initializer) == 1
    same_values(model, result.model, {"x": X})
    assert not fold_constants(result.model).changed


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ("", [2, 3, 4, 5]),
        ("<start = 1>", [3, 4, 5]),
        ("<start = -2>", [4, 5]),
        ("<start = 1, end = -1>", [3, 4]),
    ],
)
def test_parts_of_a_shape(attributes: str, expected: list[int]) -> None:
    model = model_of(
        f"s = Shape{attributes}(x) y = Add(s, k)", "(float[2, 3, 4, 5] x, int64[1] k) => (int64[n] y)"
    )
    folded = fold_constants(model).model
    assert numpy_helper.to_array(folded.graph.initializer[0]).tolist() == expected


def test_an_unknown_size_stays() -> None:
    model = model_of("s = Shape(x) y = Neg(s)", "(float[N, 3] x) => (int64[2] y)")
    assert not fold_constants(model).changed


def test_an_output_is_still_made_by_a_node(same_values) -> None:
    model = model_of(
        "c = Constant<value_floats = [1.0, 2.0]>() d = Neg(c) y = Neg(d)", "(float[2, 3] x) => (float[2] y)"
    )
    result = fold_constants(model).model
    assert operators(result) == ["Constant"]
    same_values(model, result, {"x": X})
    assert not fold_constants(result).changed


def test_random_numbers_and_quantised_weights_stay() -> None:
    noise = model_of("r = RandomNormal<shape = [2, 3], seed = 1.0>() y = Add(x, r)")
    assert not fold_constants(noise).changed
    model = model_of("w = DequantizeLinear(q, s) y = Add(x, w)")
    model.graph.initializer.append(numpy_helper.from_array(np.ones((2, 3), np.int8), "q"))
    model.graph.initializer.append(numpy_helper.from_array(np.float32(0.5), "s"))
    assert not fold_constants(model).changed


def test_what_cannot_be_evaluated_does_not_stop_the_rest() -> None:
    # The index is out of bounds: the branch that reads it is never taken.
    model = model_of(
        """t = Constant<value_floats = [1.0, 2.0]>() i = Constant<value_int = 7>() bad = Gather(t, i)
        a = Constant<value_float = 1.0>() b = Neg(a) n = Neg(b)
        y = If (c) <
            then_branch = th () => (float[2, 3] u) { u = Add(x, bad) },
            else_branch = el () => (float[2, 3] v) { v = Add(x, n) }
        >""",
        "(float[2, 3] x, bool c) => (float[2, 3] y)",
    )
    result = fold_constants(model)
    assert result.changed
    assert operators(result.model) == ["Gather", "If"]


def test_nodes_with_branches_are_folded_too(same_values) -> None:
    model = model_of(
        """c = Constant<value = bool {1}>() k = Constant<value_float = 3.0>()
        s = If (c) <
            then_branch = th () => (float u) { u = Neg(k) },
            else_branch = el () => (float v) { v = Abs(k) }
        >
        y = Mul(x, s)"""
    )
    result = fold_constants(model).model
    assert operators(result) == ["Mul"]
    same_values(model, result, {"x": X})


def of_no_elements(signature: str, body: str, **weights: tuple[int, ...]) -> onnx.ModelProto:
    model = model_of(body, signature)
    rng = np.random.default_rng(0)
    for name, shape in weights.items():
        values = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    return model


IMAGES = "(float[0, 3, 8, 8] x) => (float[n, c, h, w] y)"
ROWS = "(float[0, 3] x) => (float[n, m] y)"
COLUMNS = "(float[2, 0] x) => (float[n, m] y)"

EMPTY = {
    "Conv, batch": (of_no_elements(IMAGES, "y = Conv(x, k)", k=(4, 3, 3, 3)), (0, 4, 6, 6)),
    "AveragePool": (of_no_elements(IMAGES, "y = AveragePool <kernel_shape = [2, 2]> (x)"), (0, 3, 7, 7)),
    "Resize": (
        of_no_elements(IMAGES, "s = Constant <value_floats = [1.0, 1.0, 2.0, 2.0]> () y = Resize(x, , s)"),
        (0, 3, 16, 16),
    ),
    "Gemm, rows": (of_no_elements(ROWS, "y = Gemm(x, k, b)", k=(3, 4), b=(4,)), (0, 4)),
    "MatMul, sums": (of_no_elements(COLUMNS, "y = MatMul(x, k)", k=(0, 4)), (2, 4)),
    "ReduceMean": (of_no_elements(COLUMNS, "y = ReduceMean <axes = [1]> (x)"), (2, 1)),
    "Softmax": (of_no_elements(ROWS, "y = Softmax(x)"), (0, 3)),
    "a chain": (of_no_elements(ROWS, "a = Relu(x) b = MatMul(a, k) y = Softmax(b)", k=(3, 4)), (0, 4)),
}


@pytest.mark.parametrize("name", EMPTY)
def test_of_no_elements_nothing_is_left_to_compute(name: str) -> None:
    model, shape = EMPTY[name]
    prepared = prepare(model)
    assert prepared.notes == ()
    assert [(spec.name, 0 in spec.shape) for spec in prepared.inputs] == [("x", True)]
    assert [node.op_type for node in parse(prepared).graph.node] == ["Constant"]
    assert prepared.reference_outputs["y"].shape == shape
    constant = numpy_helper.to_array(parse(prepared).graph.node[0].attribute[0].t)
    np.testing.assert_array_equal(constant, prepared.reference_outputs["y"])


def test_a_part_of_no_elements(same_values) -> None:
    """It is an output of the model, and read by nodes and inside of branches, too."""
    model = model_of(
        """s = Constant <value_ints = [4, 0]> () y, z = Split(x, s) v = Neg(z) a = Concat <axis = 0> (y, z)
        w = If (c) <
            then_branch = th () => (float[n, 3] t) { t = Concat <axis = 0> (a, v) },
            else_branch = el () => (float[m, 3] e) { e = Concat <axis = 0> (a, z) }
        >""",
        "(float[4, 3] x, bool c) => (float[n, k] y, float[m, k] z, float[m, k] v, float[l, k] w)",
    )
    result = fold_constants(model)
    assert sorted(operators(result.model)) == ["Concat", "Constant", "If", "Split"]
    feeds = {"x": np.arange(12, dtype=np.float32).reshape(4, 3), "c": np.array(True)}
    same_values(model, result.model, feeds)
    assert not fold_constants(result.model).changed


def test_what_a_recurrent_cell_reads_stays() -> None:
    """ONNX Runtime runs it on an input of no steps, and dies where that is a constant."""
    model = of_no_elements(
        "(float[0, 2, 4] x) => (float[d, b, h] y)",
        "a = Relu(x) , y = LSTM <hidden_size = 2> (a, w, r)",
        w=(1, 8, 4),
        r=(1, 8, 2),
    )
    assert not fold_constants(model).changed
    np.testing.assert_array_equal(prepare(model).reference_outputs["y"], np.zeros((1, 2, 2)))


def test_a_size_of_one_element_is_taken_where_a_scalar_is_meant() -> None:
    """ONNX Runtime's shape inference refuses a constant [6] in Range, its kernel takes it: AffineGrid's body."""
    model = model_of(
        """s = Shape(x) one = Constant<value_ints = [1]>() n = Gather(s, one)
        zero = Constant<value_int = 0>() step = Constant<value_int = 1>()
        r = Range(zero, n, step) f = Cast<to = 1>(r) y = Add(x, f)"""
    )
    folded = fold_constants(model).model
    assert operators(folded) == ["Add"]
    assert numpy_helper.to_array(folded.graph.initializer[0]).tolist() == [0.0, 1.0, 2.0]
