"""Sums that keep their digits, and maxima that keep infinity and NaN; expected values from NumPy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

RNG = np.random.default_rng(8)


def run(checker: Any, node: Any, inputs: dict[str, np.ndarray], result: np.ndarray, opset: int = 20) -> Any:
    model = checker.model([node], inputs, {}, opset)
    return checker.compiled(model, {"y": result})(inputs)[0]


@pytest.mark.parametrize(
    ("op", "exact"),
    [
        ("ReduceSumSquare", lambda x: np.sum(x * x)),
        ("ReduceSum", np.sum),
        ("ReduceMean", np.mean),
        ("ReduceL2", lambda x: np.sqrt(np.sum(x * x))),
    ],
)
def test_long_sums(op: str, exact: Any, matches_onnxruntime: Any) -> None:
    x = RNG.random((64, 65_536), np.float32) + np.float32(0.5)
    got = run(matches_onnxruntime, helper.make_node(op, ["x"], ["y"], keepdims=0), {"x": x}, np.float32(0))
    # One rounding to float32 at the end; a plain float32 sum is off by thousands of times as much.
    np.testing.assert_allclose(got, exact(x.astype(np.float64)), 2e-7)


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin"])
@pytest.mark.parametrize(
    ("kind", "axes"),
    [(np.float32, (0,)), (np.float32, (1,)), (np.float32, (0, 1)), (np.float16, (1,)), (np.float64, (1,))],
)
def test_extremes_of_infinities_and_nan(
    kind: Any, op: str, axes: tuple[int, ...], matches_onnxruntime: Any
) -> None:
    x = RNG.standard_normal((6, 96)).astype(kind)
    x[1], x[2], x[3, 5], x[4, 7] = -np.inf, np.inf, np.nan, -np.nan
    node = helper.make_node(op, ["x"], ["y"], axes=axes, keepdims=1)
    want = (np.max if op == "ReduceMax" else np.min)(x, axis=axes, keepdims=True)
    np.testing.assert_array_equal(run(matches_onnxruntime, node, {"x": x}, want, opset=13), want)


@pytest.mark.parametrize("keep", [0, 1])
def test_log_sum_exp_of_infinities(keep: int, matches_onnxruntime: Any) -> None:
    x = RNG.standard_normal((5, 33)).astype(np.float32)
    x[0], x[1, 3], x[2, 4], x[3] = -np.inf, -np.inf, np.inf, 3e38
    want = np.logaddexp.reduce(x.astype(np.float64), axis=1, keepdims=bool(keep)).astype(np.float32)
    node = helper.make_node("ReduceLogSumExp", ["x"], ["y"], axes=[1], keepdims=keep)
    got = run(matches_onnxruntime, node, {"x": x}, want, opset=13)
    np.testing.assert_allclose(got, want, 1e-6)


@pytest.mark.parametrize("op", ["Max", "Min"])
def test_the_larger_of_two_keeps_nan(op: str, matches_onnxruntime: Any) -> None:
    edges = np.array([0.0, 1.5, -1.5, np.inf, -np.inf, np.nan], np.float32)
    a, b = (side.copy() for side in np.meshgrid(edges, edges))
    want = (np.maximum if op == "Max" else np.minimum)(a, b)
    got = run(matches_onnxruntime, helper.make_node(op, ["a", "b"], ["y"]), {"a": a, "b": b}, want)
    np.testing.assert_array_equal(got, want)


def test_products_of_halves_are_summed_in_float32(matches_onnxruntime: Any) -> None:
    a, b = (RNG.random(shape, np.float32).astype(np.float16) for shape in ((3, 4096), (4096, 5)))
    want = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float16)
    got = run(matches_onnxruntime, helper.make_node("MatMul", ["a", "b"], ["y"]), {"a": a, "b": b}, want)
    # The next number of float16 at most.
    np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), 2**-10)


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.float32])
def test_places_in_rows_of_nothing_but_the_least(
    kind: Any, op: str, last: int, matches_onnxruntime: Any
) -> None:
    least = {np.uint8: (0, 255), np.int8: (-128, 127), np.float32: (-np.inf, np.inf)}[kind]
    x = np.full((4, 7), 3, kind)
    x[0], x[1], x[2, 4] = least[0], least[1], least[op == "ArgMax"]
    matches_onnxruntime(helper.make_node(op, ["x"], ["y"], axis=1, select_last_index=last), {"x": x})
    if kind is np.float32:
        matches_onnxruntime(helper.make_node("Hardmax", ["x"], ["y"], axis=1), {"x": x})


@pytest.mark.parametrize("op", ["Sign", "ThresholdedRelu", "Selu", "Gelu", "Asinh", "Cosh", "Atan"])
@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_functions_at_the_edges(kind: Any, op: str, matches_onnxruntime: Any) -> None:
    x = np.array([0.0, -0.0, 0.3, 1.5, -2.5, 5.0, np.inf, -np.inf, np.nan], kind)
    if op == "Sign" and kind is np.float16:
        x = x[:-1]  # ONNX Runtime makes zero of NaN in this type alone
    rtol = 2**-10 if kind is np.float16 else 1e-5
    matches_onnxruntime(helper.make_node(op, ["x"], ["y"]), {"x": x}, opset=20, rtol=rtol)


@pytest.mark.parametrize("shape", [(1, 3, 8, 8), (1, 2, 9), (1, 16, 6, 6), (1, 1, 4, 4, 4)])
def test_pooling_of_minus_infinities(shape: tuple[int, ...], matches_onnxruntime: Any) -> None:
    x = RNG.standard_normal(shape).astype(np.float32)
    x[:, -1], x[:, 0, 2:] = -np.inf, -np.inf
    rank = len(shape) - 2
    node = helper.make_node(
        "MaxPool", ["x"], ["y"], kernel_shape=[3] * rank, strides=[2] * rank, pads=[1] * 2 * rank
    )
    model = matches_onnxruntime.model([node], {"x": x}, {}, 20)
    want = matches_onnxruntime.expected(model, {"x": x})["y"]
    # ONNX Runtime starts from the largest finite number, too.
    want = np.where(want == np.finfo(np.float32).min, -np.inf, want).astype(np.float32)
    np.testing.assert_array_equal(run(matches_onnxruntime, node, {"x": x}, want), want)
