"""What depends on no input is computed at once, and only that."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model

from edgetune.model.passes.fold_constants import fold_constants

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
