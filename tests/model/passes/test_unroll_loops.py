"""Loops of a known number of steps are written out, with the values of ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.parser import parse_model

from edgetune.model.passes.unroll_loops import MAX_STEPS, unroll_loops

X = np.random.default_rng(0).standard_normal(4).astype(np.float32)


def model_of(
    body: str, signature: str = "(float[4] x) => (float[4] y)", opset: int = 17, **constants: object
):
    model = parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> g {signature} {{ {body} }}')
    for name, value in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return model


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def counted(limit: str = "n", condition: str = "") -> str:
    return f"""y, rows = Loop ({limit}, {condition or '""'}, x) <
        body = b (int64 i, bool c, float[4] a) => (bool d, float[4] e, float[4] r) {{
            d = Identity(c) f = Cast<to = 1>(i) e = Add(a, f) r = Mul(e, x)
        }}
    >"""


BOTH = "(float[4] x) => (float[4] y, float[k, 4] rows)"


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_a_trip_count(same_values, steps: int) -> None:
    model = model_of(counted(), BOTH, n=np.int64(steps), go=True)
    if steps == 0:
        # Inference must know the size of the empty result.
        model.graph.output[1].type.tensor_type.shape.dim[0].dim_value = 0
    for text in (model, model_of(counted(condition="go"), BOTH, n=np.int64(max(steps, 1)), go=True)):
        result = unroll_loops(text)
        assert result.changed
        assert "Loop" not in operators(result.model)
        same_values(text, result.model, {"x": X})


def test_opset_11_writes_axes_as_attributes(same_values) -> None:
    model = model_of(counted(), BOTH, opset=11, n=np.int64(3))
    result = unroll_loops(model).model
    same_values(model, result, {"x": X})


def test_a_condition_that_counts(same_values) -> None:
    """``while (i < 7)``: the number of steps follows from a carried value and constants."""
    model = model_of(
        """last, y = Loop ("", go, zero, x) <
            body = b (int64 i, bool c, int64 k, float[4] a) => (bool d, int64 m, float[4] e) {
                m = Add(k, two) d = Less(m, seven) e = Add(a, a)
            }
        >""",
        go=True, zero=np.int64(0), two=np.int64(2), seven=np.int64(7),
    )  # fmt: skip
    result = unroll_loops(model).model
    assert operators(result).count("Add") == 8  # 0, 2, 4, 6: four steps, two additions each
    same_values(model, result, {"x": X})


def test_a_condition_that_depends_on_the_input_stays() -> None:
    model = model_of(
        """y = Loop (n, go, x) <
            body = b (int64 i, bool c, float[4] a) => (bool d, float[4] e) {
                e = Add(a, a) s = ReduceSum<keepdims = 0>(e) d = Less(s, limit)
            }
        >""",
        n=np.int64(5), go=True, limit=np.float32(10),
    )  # fmt: skip
    assert not unroll_loops(model).changed


@pytest.mark.parametrize("limit", [MAX_STEPS + 1, None])
def test_too_many_or_endless_steps_stay(limit: int | None) -> None:
    model = model_of(counted("n" if limit else '""'), BOTH, **({"n": np.int64(limit)} if limit else {}))
    assert not unroll_loops(model).changed


def test_a_loop_in_a_loop(same_values) -> None:
    model = model_of(
        """y = Loop (n, "", x) <
            body = b (int64 i, bool c, float[4] a) => (bool d, float[4] e) {
                d = Identity(c)
                e = Loop (n, "", a) <
                    body = bb (int64 j, bool cc, float[4] aa) => (bool dd, float[4] ee) {
                        dd = Identity(cc) k = Add(i, j) f = Cast<to = 1>(k) ee = Add(aa, f)
                    }
                >
            }
        >""",
        n=np.int64(3),
    )
    once = unroll_loops(model).model
    assert operators(once).count("Loop") == 3
    twice = unroll_loops(once).model
    assert "Loop" not in operators(twice)
    same_values(model, twice, {"x": X})


def scan_model(
    length: int, input_axis: int, output_axis: int, backwards_in: bool, backwards_out: bool
) -> onnx.ModelProto:
    """A running sum over one axis of a matrix, with every step as output."""
    shape = [4, 4]
    shape[input_axis] = length
    row = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [4])  # noqa: E731
    body = helper.make_graph(
        [
            helper.make_node("Add", ["state", "slice"], ["sum"]),
            helper.make_node("Mul", ["sum", "scale"], ["out"]),
        ],
        "body",
        [row("state"), row("slice")],
        [row("sum"), row("out")],
    )
    node = helper.make_node(
        "Scan",
        ["start", "x"],
        ["last", "steps"],
        body=body,
        num_scan_inputs=1,
        scan_input_axes=[input_axis],
        scan_output_axes=[output_axis],
        scan_input_directions=[int(backwards_in)],
        scan_output_directions=[int(backwards_out)],
    )
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, shape),
            helper.make_tensor_value_info("start", TensorProto.FLOAT, [4]),
        ],
        [
            helper.make_tensor_value_info("last", TensorProto.FLOAT, [4]),
            helper.make_tensor_value_info("steps", TensorProto.FLOAT, [None, None]),
        ],
        [numpy_helper.from_array(np.float32(2), "scale")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@settings(max_examples=40, deadline=None)
@given(
    length=st.integers(1, 6),
    input_axis=st.integers(-2, 1),
    output_axis=st.integers(-2, 1),
    backwards_in=st.booleans(),
    backwards_out=st.booleans(),
)
def test_scan(
    same_values, length: int, input_axis: int, output_axis: int, backwards_in: bool, backwards_out: bool
) -> None:
    model = scan_model(length, input_axis, output_axis, backwards_in, backwards_out)
    result = unroll_loops(model)
    assert "Scan" not in operators(result.model)
    x_shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    feeds = {"x": np.arange(np.prod(x_shape), dtype=np.float32).reshape(x_shape), "start": X}
    same_values(model, result.model, feeds, rtol=1e-6, atol=1e-6)
