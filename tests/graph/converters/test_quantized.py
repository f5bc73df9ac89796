"""Quantised operators against ONNX Runtime: integers must be equal, or one step apart where both sides round floats."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from onnx import helper

few = settings(max_examples=10, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate])

BYTES = (np.uint8, np.int8)


def microsoft(op: str, inputs: list[str], outputs: list[str], **attributes: Any) -> Any:
    return helper.make_node(op, inputs, outputs, domain="com.microsoft", **attributes)


def draw_bytes(rng: np.random.Generator, kind: Any, *shape: int) -> np.ndarray:
    limits = np.iinfo(kind)
    return np.asarray(np.asarray(rng.integers(limits.min, limits.max + 1, shape)).astype(kind))


def draw(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.uniform(-2, 2, shape).astype(np.float32)


def scalar(value: Any, kind: Any = np.float32) -> np.ndarray:
    return np.array(value, kind)


@few
@given(data=st.data())
def test_conv(matches_onnxruntime: Any, data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    groups = data.draw(st.sampled_from([1, 2]))
    kind = data.draw(st.sampled_from(BYTES))
    stride, dilation = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 2))
    pads = data.draw(st.lists(st.integers(0, 2), min_size=4, max_size=4))
    per_channel = data.draw(st.booleans())
    weights = {
        "w": draw_bytes(rng, np.int8, 4, 4 // groups, 3, 2),
        "xs": scalar(0.02), "xz": draw_bytes(rng, kind), "ys": scalar(1.5), "yz": draw_bytes(rng, kind),
        "ws": rng.uniform(0.01, 0.1, 4).astype(np.float32) if per_channel else scalar(0.05),
        "wz": np.zeros(4, np.int8) if per_channel else scalar(0, np.int8),
        "b": rng.integers(-500, 500, 4).astype(np.int32),
    }  # fmt: skip
    names = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"]
    attributes = {"group": groups, "strides": [stride] * 2, "dilations": [dilation] * 2, "pads": pads}
    node = helper.make_node("QLinearConv", names, ["y"], **attributes)
    matches_onnxruntime(
        node, {"x": draw_bytes(rng, kind, 1, 4, 8, 7)}, weights, steps=1, precise=kind is np.uint8
    )


@few
@given(data=st.data())
def test_qlinear_matmul(matches_onnxruntime: Any, data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    kind = data.draw(st.sampled_from(BYTES))
    weights = {
        "as": scalar(0.03), "az": draw_bytes(rng, kind), "b": draw_bytes(rng, np.int8, 6, 5),
        "bs": rng.uniform(0.01, 0.1, 5).astype(np.float32), "bz": np.zeros(5, np.int8),
        "ys": scalar(0.9), "yz": draw_bytes(rng, kind),
    }  # fmt: skip
    node = helper.make_node("QLinearMatMul", ["a", "as", "az", "b", "bs", "bz", "ys", "yz"], ["y"])
    matches_onnxruntime(
        node, {"a": draw_bytes(rng, kind, 2, 3, 6)}, weights, steps=1, precise=kind is np.uint8
    )


def test_dynamic_quantize_linear(matches_onnxruntime: Any) -> None:
    node = helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "scale", "zero"])
    for x in (
        draw(np.random.default_rng(1), 3, 9),
        np.zeros((2, 4), np.float32),
        1 + np.arange(6, dtype=np.float32),
    ):
        matches_onnxruntime(node, {"x": x}, rtol=1e-6, steps=1)


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.uint16, np.int16])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_quantize_and_dequantize(kind: Any, axis: int | None, matches_onnxruntime: Any) -> None:
    rng = np.random.default_rng(2)
    x = 40 * draw(rng, 3, 4, 5)
    # Halves, which are rounded to the even neighbour, and what saturates.
    x[0, 0] = [0.5, 1.5, 2.5, 1e9, -1e9]
    count = () if axis is None else (x.shape[axis],)
    weights = {
        "s": np.ones(count, np.float32) if axis is None else rng.uniform(0.1, 1, count).astype(np.float32)
    }
    weights["z"] = draw_bytes(rng, np.uint8, *count).astype(kind)
    given = {} if axis is None else {"axis": axis}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], **given),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], **given),
    ]
    matches_onnxruntime(nodes[0], {"x": x}, weights, opset=21)
    matches_onnxruntime(nodes, {"x": x}, weights, opset=21)


@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize("kind", BYTES)
def test_binary(op: str, kind: Any, matches_onnxruntime: Any) -> None:
    rng = np.random.default_rng(3)
    weights = {"as": scalar(0.1), "az": draw_bytes(rng, kind), "bs": scalar(0.2), "bz": draw_bytes(rng, kind)}
    weights |= {"cs": scalar(0.7), "cz": draw_bytes(rng, kind)}
    node = microsoft(op, ["a", "as", "az", "b", "bs", "bz", "cs", "cz"], ["y"])
    inputs = {"a": draw_bytes(rng, kind, 2, 3, 5), "b": draw_bytes(rng, kind, 3, 1)}
    matches_onnxruntime(node, inputs, weights, steps=1)


@pytest.mark.parametrize(("op", "attributes"), [("QLinearSigmoid", {}), ("QLinearLeakyRelu", {"alpha": 0.2})])
@pytest.mark.parametrize("kind", BYTES)
def test_unary(op: str, attributes: dict[str, Any], kind: Any, matches_onnxruntime: Any) -> None:
    limits = np.iinfo(kind)
    every = np.arange(limits.min, limits.max + 1).astype(kind)
    weights = {
        "xs": scalar(0.05),
        "xz": scalar(3, kind),
        "ys": scalar(1 / 256),
        "yz": scalar(limits.min, kind),
    }
    node = microsoft(op, ["x", "xs", "xz", "ys", "yz"], ["y"], **attributes)
    matches_onnxruntime(node, {"x": every}, weights, steps=1)


def test_concat(matches_onnxruntime: Any) -> None:
    rng = np.random.default_rng(4)
    weights = {"ys": scalar(0.1), "yz": scalar(7, np.uint8), "as": scalar(0.05), "az": scalar(100, np.uint8)}
    weights |= {"bs": scalar(0.2), "bz": scalar(120, np.uint8)}
    node = microsoft("QLinearConcat", ["ys", "yz", "a", "as", "az", "b", "bs", "bz"], ["y"], axis=1)
    inputs = {"a": draw_bytes(rng, np.uint8, 2, 3), "b": draw_bytes(rng, np.uint8, 2, 4)}
    matches_onnxruntime(node, inputs, weights, steps=1)


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("kind", BYTES)
def test_global_average_pool(last: int, kind: Any, matches_onnxruntime: Any) -> None:
    rng = np.random.default_rng(5)
    weights = {
        "xs": scalar(0.05),
        "xz": draw_bytes(rng, kind),
        "ys": scalar(0.01),
        "yz": draw_bytes(rng, kind),
    }
    node = microsoft("QLinearGlobalAveragePool", ["x", "xs", "xz", "ys", "yz"], ["y"], channels_last=last)
    matches_onnxruntime(node, {"x": draw_bytes(rng, kind, 2, 4, 5, 3)}, weights, steps=1)


@pytest.mark.parametrize(
    "attributes", [{}, {"pads": [1, 0, 1, 1]}, {"pads": [1, 1, 1, 1], "count_include_pad": 1}]
)
def test_average_pool(attributes: dict[str, Any], matches_onnxruntime: Any) -> None:
    rng = np.random.default_rng(6)
    weights = {"xs": scalar(0.05), "xz": scalar(9, np.uint8), "ys": scalar(0.04), "yz": scalar(3, np.uint8)}
    node = microsoft(
        "QLinearAveragePool",
        ["x", "xs", "xz", "ys", "yz"],
        ["y"],
        kernel_shape=[2, 3],
        strides=[2, 1],
        **attributes,
    )
    matches_onnxruntime(node, {"x": draw_bytes(rng, np.uint8, 1, 3, 7, 6)}, weights, steps=1)


@pytest.mark.parametrize("flags", [{}, {"transA": 1}, {"transB": 1, "alpha": 0.5}])
@pytest.mark.parametrize("quantized", [True, False])
def test_gemm(flags: dict[str, Any], quantized: bool, matches_onnxruntime: Any) -> None:
    rng = np.random.default_rng(7)
    a = draw_bytes(rng, np.uint8, *((6, 3) if flags.get("transA") else (3, 6)))
    weights = {
        "as": scalar(0.03), "az": scalar(120, np.uint8), "bs": rng.uniform(0.01, 0.1, 4).astype(np.float32),
        "b": draw_bytes(rng, np.int8, *((4, 6) if flags.get("transB") else (6, 4))), "bz": np.zeros(4, np.int8),
        "c": rng.integers(-99, 99, 4).astype(np.int32),
    }  # fmt: skip
    names = ["a", "as", "az", "b", "bs", "bz", "c"]
    if quantized:
        weights |= {"ys": scalar(0.8), "yz": scalar(100, np.uint8)}
        names += ["ys", "yz"]
    matches_onnxruntime(microsoft("QGemm", names, ["y"], **flags), {"a": a}, weights, steps=1, precise=True)


@pytest.mark.parametrize("per_column", [True, False])
def test_dynamic_quantize_matmul(per_column: bool, matches_onnxruntime: Any) -> None:
    rng = np.random.default_rng(8)
    scale = rng.uniform(0.01, 0.1, 5).astype(np.float32) if per_column else scalar(0.05)
    weights = {"b": draw_bytes(rng, np.int8, 7, 5), "s": scale, "c": draw(rng, 5)}
    node = microsoft("DynamicQuantizeMatMul", ["a", "b", "s", "", "c"], ["y"])
    matches_onnxruntime(node, {"a": draw(rng, 2, 4, 7)}, weights, precise=True)


def test_matmul_integer_to_float(matches_onnxruntime: Any) -> None:
    rng = np.random.default_rng(9)
    weights = {
        "b": draw_bytes(rng, np.int8, 7, 5),
        "as": scalar(0.1),
        "bs": draw(rng, 5),
        "az": scalar(9, np.uint8),
    }
    node = microsoft("MatMulIntegerToFloat", ["a", "b", "as", "bs", "az"], ["y"])
    matches_onnxruntime(node, {"a": draw_bytes(rng, np.uint8, 3, 7)}, weights, precise=True)


@pytest.mark.parametrize("directions", [1, 2])
def test_dynamic_quantize_lstm(directions: int, matches_onnxruntime: Any) -> None:
    rng = np.random.default_rng(10)
    size, inputs = 6, 5
    weights = {
        "w": draw_bytes(rng, np.int8, directions, inputs, 4 * size),
        "r": draw_bytes(rng, np.int8, directions, size, 4 * size),
        "b": draw(rng, directions, 8 * size),
        "ws": np.full(directions, 0.01, np.float32), "wz": np.zeros(directions, np.int8),
        "rs": np.full(directions, 0.008, np.float32), "rz": np.zeros(directions, np.int8),
    }  # fmt: skip
    names = ["x", "w", "r", "b", "", "h", "c", "", "ws", "wz", "rs", "rz"]
    node = microsoft(
        "DynamicQuantizeLSTM", names, ["y", "y_h", "y_c"], hidden_size=size,
        direction="bidirectional" if directions == 2 else "forward",
    )  # fmt: skip
    given_inputs = {
        "x": draw(rng, 3, 1, inputs),
        "h": draw(rng, directions, 1, size),
        "c": draw(rng, directions, 1, size),
    }
    # A value on the edge between two steps may fall either way.
    matches_onnxruntime(node, given_inputs, weights, rtol=1e-2, atol=2e-3, precise=True)
