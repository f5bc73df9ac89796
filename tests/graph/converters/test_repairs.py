"""Operators that TVM's importer computes wrongly or not at all, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from onnx import helper

from edgetune.errors import UnsupportedModelError

few = settings(max_examples=15, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate])
RNG = np.random.default_rng(21)
EDGES = np.array([0.0, -0.0, 1.5, -1.5, 7.25, -7.25, np.inf, -np.inf, np.nan], np.float32)


def draw(*shape: int) -> np.ndarray:
    return RNG.uniform(-2, 2, shape).astype(np.float32)


@pytest.mark.parametrize("negative", [0, 1])
@pytest.mark.parametrize("positive", [0, 1])
def test_infinity_of_one_sign(negative: int, positive: int, matches_onnxruntime: Any) -> None:
    node = helper.make_node("IsInf", ["x"], ["y"], detect_negative=negative, detect_positive=positive)
    matches_onnxruntime(node, {"x": EDGES})


def test_fmod_of_floats(matches_onnxruntime: Any) -> None:
    x, y = np.meshgrid(EDGES, EDGES)
    matches_onnxruntime(helper.make_node("Mod", ["x", "y"], ["z"], fmod=1), {"x": x.copy(), "y": y.copy()})


@pytest.mark.parametrize("kind", [np.uint8, np.uint32, np.uint64])
@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_shift_by_the_width_and_more(kind: Any, direction: str, matches_onnxruntime: Any) -> None:
    width = np.iinfo(kind).bits
    x = np.full(6, 0x5A, kind)
    by = np.array([0, 1, width - 1, width, width + 1, 2 * width], kind)
    node = helper.make_node("BitShift", ["x", "by"], ["y"], direction=direction)
    # ONNX Runtime shifts as the processor does: expected is what the standard says.
    model = matches_onnxruntime.model([node], {"x": x, "by": by}, {}, 17)
    got = matches_onnxruntime.compiled(model, {"y": x})({"x": x, "by": by})[0]
    shifted = [(0x5A << int(b)) % 2**width if direction == "LEFT" else 0x5A >> int(b) for b in by]
    np.testing.assert_array_equal(got, np.array(shifted, kind))


@pytest.mark.parametrize(
    ("base", "exponent"),
    [
        (np.float32, np.int32),
        (np.float32, np.int64),
        (np.int32, np.float32),
        (np.int64, np.int64),
        (np.int32, np.int32),
    ],
)
def test_power_of_mixed_types(base: Any, exponent: Any, matches_onnxruntime: Any) -> None:
    inputs = {"x": np.array([1, 2, 3, 5], base), "y": np.array([0, 3, 2, 4], exponent)}
    matches_onnxruntime(helper.make_node("Pow", ["x", "y"], ["z"]), inputs)


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin"])
def test_reduction_of_booleans(op: str, matches_onnxruntime: Any) -> None:
    x = RNG.random((3, 4)) > 0.5
    matches_onnxruntime(
        helper.make_node(op, ["x", "a"], ["y"]), {"x": x}, {"a": np.array([1], np.int64)}, opset=20
    )


@pytest.mark.parametrize(
    ("op", "value"), [("ReduceSum", 0), ("ReduceProd", 1), ("ReduceMax", -np.inf), ("ReduceMin", np.inf)]
)
def test_reduction_of_nothing(op: str, value: float, matches_onnxruntime: Any) -> None:
    nodes = [
        helper.make_node("Slice", ["x", "zero", "zero", "axis"], ["none"]),
        helper.make_node(op, ["none", "axis"], ["total"], keepdims=0),
        helper.make_node("Add", ["total", "row"], ["y"]),
    ]
    weights = {"zero": np.array([0], np.int64), "axis": np.array([0], np.int64)}
    inputs = {"x": draw(3, 4), "row": draw(4)}
    model = matches_onnxruntime.model(nodes, inputs, weights, 20)
    got = matches_onnxruntime.compiled(model, {"y": inputs["row"]})(inputs)[0]
    np.testing.assert_array_equal(got, inputs["row"] + np.float32(value))


@pytest.mark.parametrize("order", [1, 2])
def test_lp_normalization(order: int, matches_onnxruntime: Any) -> None:
    x = draw(3, 4, 5)
    x[1] = 0
    matches_onnxruntime(helper.make_node("LpNormalization", ["x"], ["y"], p=order, axis=0), {"x": x})


@pytest.mark.parametrize(
    "attributes", [{"output_shape": [10, 8]}, {"output_shape": [9, 7], "auto_pad": "SAME_UPPER"}]
)
def test_transposed_convolution_to_a_shape(attributes: dict[str, Any], matches_onnxruntime: Any) -> None:
    node = helper.make_node(
        "ConvTranspose", ["x", "w"], ["y"], strides=[3, 2], kernel_shape=[3, 3], **attributes
    )
    matches_onnxruntime(node, {"x": draw(1, 1, 3, 3)}, {"w": draw(1, 2, 3, 3)})


def test_reverse_sequence(matches_onnxruntime: Any) -> None:
    node = helper.make_node("ReverseSequence", ["x", "n"], ["y"], time_axis=1, batch_axis=0)
    matches_onnxruntime(node, {"x": draw(3, 5, 2), "n": np.array([1, 5, 3], np.int64)})


def test_mean_and_deviation_of_layer_normalization(matches_onnxruntime: Any) -> None:
    node = helper.make_node("LayerNormalization", ["x", "s"], ["y", "m", "d"], axis=1)
    matches_onnxruntime(node, {"x": draw(2, 3, 4)}, {"s": draw(3, 4)})


@few
@given(data=st.data())
def test_resize(matches_onnxruntime: Any, data: st.DataObject) -> None:
    mode = data.draw(st.sampled_from(["nearest", "linear", "cubic"]))
    coordinates = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"]
    attributes: dict[str, Any] = {
        "mode": mode, "coordinate_transformation_mode": data.draw(st.sampled_from(coordinates)),
    }  # fmt: skip
    if mode == "nearest":
        rounding = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
        attributes["nearest_mode"] = data.draw(st.sampled_from(rounding))
    if mode == "cubic":
        attributes["exclude_outside"] = data.draw(st.sampled_from([0, 1]))
    factors = data.draw(st.lists(st.sampled_from([0.5, 0.75, 1.0, 1.5, 2.0, 3.0]), min_size=2, max_size=2))
    weights = {"roi": np.zeros(0, np.float32), "s": np.array([1, 1, *factors], np.float32)}
    node = helper.make_node("Resize", ["x", "roi", "s"], ["y"], **attributes)
    matches_onnxruntime(node, {"x": draw(1, 2, 8, 4)}, weights, opset=18)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("size", [[1, 1, 3, 2], [1, 1, 5, 9]])
def test_resize_with_antialias(mode: str, size: list[int], matches_onnxruntime: Any) -> None:
    node = helper.make_node("Resize", ["x", "", "", "n"], ["y"], mode=mode, antialias=1)
    matches_onnxruntime(node, {"x": draw(1, 1, 8, 7)}, {"n": np.array(size, np.int64)}, opset=18)


@pytest.mark.parametrize("op", ["NonZero", "NonMaxSuppression"])
def test_outputs_of_unknown_size_are_refused(op: str, matches_onnxruntime: Any) -> None:
    inputs = {"NonZero": {"x": draw(3, 4)}, "NonMaxSuppression": {"b": draw(1, 5, 4), "s": draw(1, 1, 5)}}[op]
    model = matches_onnxruntime.model([helper.make_node(op, list(inputs), ["y"])], inputs, {}, 17)
    with pytest.raises(UnsupportedModelError, match="depends on the input's values"):
        matches_onnxruntime.compiled(model, {"y": np.zeros(1, np.int64)})


@pytest.mark.parametrize("step", [-(2**63), -(2**31), -11, -10, 10, 11, 2**31, 2**63 - 1])
def test_slice_with_steps_past_the_end(step: int, matches_onnxruntime: Any) -> None:
    bounds = (-1, -(2**63)) if step < 0 else (1, 2**62)
    values = {"s": bounds[0], "e": bounds[1], "a": 0, "p": step}
    weights = {name: np.array([value], np.int64) for name, value in values.items()}
    node = helper.make_node("Slice", ["x", *weights], ["y"])
    matches_onnxruntime(node, {"x": draw(10, 2)}, weights)


def test_clip_with_bounds_the_wrong_way_round(matches_onnxruntime: Any) -> None:
    """The standard: all of the upper bound's value."""
    bounds = {"low": np.array(1, np.float32), "high": np.array(-1, np.float32)}
    matches_onnxruntime(helper.make_node("Clip", ["x", *bounds], ["y"]), {"x": EDGES}, bounds)
