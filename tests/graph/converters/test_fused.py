"""Fused operators of com.microsoft against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

RNG = np.random.default_rng(11)


def draw(*shape: int) -> np.ndarray:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


def microsoft(op: str, inputs: list[str], outputs: list[str], **attributes: Any) -> Any:
    return helper.make_node(op, inputs, outputs, domain="com.microsoft", **attributes)


@pytest.mark.parametrize(
    ("activation", "parameters"),
    [
        ("Relu", []),
        ("Tanh", []),
        ("Sigmoid", []),
        ("LeakyRelu", [0.2]),
        ("Clip", [-0.3, 0.4]),
        ("HardSigmoid", [0.3, 0.4]),
    ],
)
def test_fused_conv(activation: str, parameters: list[float], matches_onnxruntime: Any) -> None:
    given = {"activation_params": parameters} if parameters else {}
    node = microsoft("FusedConv", ["x", "w", "b"], ["y"], activation=activation, pads=[1, 1, 1, 1], **given)
    matches_onnxruntime(node, {"x": draw(1, 3, 6, 5)}, {"w": draw(4, 3, 3, 3), "b": draw(4)})


def test_fused_conv_with_a_sum(matches_onnxruntime: Any) -> None:
    node = microsoft("FusedConv", ["x", "w", "b", "z"], ["y"], activation="Relu", strides=[2, 2])
    inputs = {"x": draw(1, 2, 7, 7), "z": draw(1, 4, 3, 3)}
    matches_onnxruntime(node, inputs, {"w": draw(4, 2, 3, 3), "b": draw(4)})


@pytest.mark.parametrize(
    "flags", [{}, {"transA": 1}, {"transB": 1}, {"transA": 1, "transB": 1, "alpha": 0.5}]
)
def test_fused_matmul(flags: dict[str, Any], matches_onnxruntime: Any) -> None:
    a = draw(2, 5, 3) if flags.get("transA") else draw(2, 3, 5)
    b = draw(4, 5) if flags.get("transB") else draw(5, 4)
    matches_onnxruntime(microsoft("FusedMatMul", ["a", "b"], ["y"], **flags), {"a": a}, {"b": b})


def test_fused_matmul_with_batches_inside(matches_onnxruntime: Any) -> None:
    node = microsoft("FusedMatMul", ["a", "b"], ["y"], transBatchA=1, transBatchB=1, transB=1)
    matches_onnxruntime(node, {"a": draw(3, 2, 5), "b": draw(5, 2, 4)[:, :, :].transpose(2, 1, 0).copy()})


def test_fused_gemm(matches_onnxruntime: Any) -> None:
    node = microsoft(
        "FusedGemm", ["a", "b", "c"], ["y"], activation="LeakyRelu", activation_alpha=0.3, transB=1, alpha=0.5
    )
    matches_onnxruntime(node, {"a": draw(3, 5)}, {"b": draw(4, 5), "c": draw(4)})


@pytest.mark.parametrize("op", ["Gelu", "FastGelu", "QuickGelu"])
def test_gelu(op: str, matches_onnxruntime: Any) -> None:
    matches_onnxruntime(microsoft(op, ["x"], ["y"]), {"x": 4 * draw(3, 17)})


@pytest.mark.parametrize("op", ["BiasGelu", "FastGelu"])
def test_gelu_of_a_sum(op: str, matches_onnxruntime: Any) -> None:
    matches_onnxruntime(microsoft(op, ["x", "b"], ["y"]), {"x": 4 * draw(3, 17)}, {"b": draw(17)})


@pytest.mark.parametrize("axis", [-1, 1, 0])
def test_layer_normalization_gives_all_outputs(axis: int, matches_onnxruntime: Any) -> None:
    x = draw(2, 3, 4)
    node = helper.make_node(
        "LayerNormalization", ["x", "s", "b"], ["y", "mean", "inverse"], axis=axis, epsilon=1e-3
    )
    matches_onnxruntime(node, {"x": x}, {"s": draw(*x.shape[axis:]), "b": draw(*x.shape[axis:])})


def test_simplified_layer_normalization(matches_onnxruntime: Any) -> None:
    node = helper.make_node("SimplifiedLayerNormalization", ["x", "s"], ["y"], axis=-1, epsilon=1e-4)
    matches_onnxruntime(node, {"x": draw(2, 3, 8)}, {"s": draw(8)})


@pytest.mark.parametrize("names", [["x", "k", "s"], ["x", "k", "s", "b"], ["x", "k", "s", "b", "c"]])
def test_skip_layer_normalization(names: list[str], matches_onnxruntime: Any) -> None:
    node = microsoft("SkipLayerNormalization", names, ["y", "", "", "sum"], epsilon=1e-5)
    weights = {n: draw(8) for n in names[2:]}
    matches_onnxruntime(node, {"x": draw(2, 3, 8), "k": draw(2, 3, 8)}, weights)


def test_skip_simplified_layer_normalization(matches_onnxruntime: Any) -> None:
    node = microsoft(
        "SkipSimplifiedLayerNormalization", ["x", "k", "s", "b"], ["y", "", "", "sum"], epsilon=1e-5
    )
    matches_onnxruntime(node, {"x": draw(2, 3, 8), "k": draw(2, 3, 8)}, {"s": draw(8), "b": draw(8)})


def test_embed_layer_normalization(matches_onnxruntime: Any) -> None:
    names = ["ids", "segments", "words", "positions", "types", "s", "b", "mask"]
    node = microsoft("EmbedLayerNormalization", names, ["y", "count"], epsilon=1e-5)
    inputs = {
        "ids": RNG.integers(0, 10, (2, 4)).astype(np.int32),
        "segments": RNG.integers(0, 2, (2, 4)).astype(np.int32),
        "mask": np.array([[1, 1, 1, 0], [1, 1, 0, 0]], np.int32),
    }
    weights = {"words": draw(10, 8), "positions": draw(6, 8), "types": draw(2, 8), "s": draw(8), "b": draw(8)}
    matches_onnxruntime(node, inputs, weights)


@pytest.mark.parametrize("mask", ["none", "lengths", "positions"])
@pytest.mark.parametrize("causal", [0, 1])
def test_attention(mask: str, causal: int, matches_onnxruntime: Any) -> None:
    inputs = {"x": draw(2, 4, 8)}
    names = ["x", "w", "b"]
    if mask == "lengths":
        inputs["m"] = np.array([4, 2], np.int32)
    if mask == "positions":
        inputs["m"] = np.array([[1, 1, 1, 1], [0, 1, 1, 0]], np.int32)
    names += ["m"] * (mask != "none")
    node = microsoft("Attention", names, ["y"], num_heads=2, unidirectional=causal)
    matches_onnxruntime(node, inputs, {"w": draw(8, 24), "b": draw(24)})


def test_attention_with_a_past(matches_onnxruntime: Any) -> None:
    node = microsoft(
        "Attention", ["x", "w", "b", "", "past"], ["y", "present"], num_heads=2, unidirectional=1
    )
    inputs = {"x": draw(1, 2, 8), "past": draw(2, 1, 2, 3, 4)}
    matches_onnxruntime(node, inputs, {"w": draw(8, 24), "b": draw(24)})


@pytest.mark.parametrize("extra", ["none", "bias", "mask", "added"])
def test_multi_head_attention(extra: str, matches_onnxruntime: Any) -> None:
    inputs, weights = {"q": draw(2, 3, 8), "k": draw(2, 5, 8), "v": draw(2, 5, 8)}, {}
    names = ["q", "k", "v", "", "", ""]
    if extra == "bias":
        names[3], weights["b"] = "b", draw(24)
    if extra == "mask":
        names[4], inputs["m"] = "m", np.array([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]], np.int32)
    if extra == "added":
        names[5], inputs["a"] = "a", draw(2, 2, 3, 5)
    node = microsoft("MultiHeadAttention", names, ["y"], num_heads=2)
    matches_onnxruntime(node, inputs, weights)


def test_multi_head_attention_with_a_past(matches_onnxruntime: Any) -> None:
    names = ["q", "k", "v", "", "", "", "pk", "pv"]
    node = microsoft("MultiHeadAttention", names, ["y", "key", "value"], num_heads=2)
    inputs = {n: draw(1, 2, 8) for n in "qkv"} | {n: draw(1, 2, 3, 4) for n in ("pk", "pv")}
    matches_onnxruntime(node, inputs)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("kind", ["split", "flat", "partial"])
def test_rotary_embedding(interleaved: int, kind: str, matches_onnxruntime: Any) -> None:
    turned = 4 if kind == "partial" else 8
    angles = RNG.uniform(0, 6, (10, turned // 2)).astype(np.float32)
    attributes = {"num_heads": 3, "rotary_embedding_dim": 4} if kind == "partial" else {}
    x = draw(2, 3, 4, 8) if kind == "split" else draw(2, 4, 24)
    node = microsoft("RotaryEmbedding", ["x", "p", "c", "s"], ["y"], interleaved=interleaved, **attributes)
    positions = RNG.integers(0, 10, (2, 4)).astype(np.int64)
    matches_onnxruntime(node, {"x": x, "p": positions}, {"c": np.cos(angles), "s": np.sin(angles)})
