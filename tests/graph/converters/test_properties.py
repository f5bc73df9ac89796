"""Operators of com.microsoft against ONNX Runtime, over shapes, attributes, types and operands left out.

A few examples of each, the same in every run. More of them, after a change to a converter:

    EXAMPLES=100 pytest tests/graph/converters/test_properties.py
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from onnx import helper

few = settings(
    max_examples=int(os.environ.get("EXAMPLES", "3")),
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
BYTES = (np.uint8, np.int8)
Case = tuple[Any, dict[str, np.ndarray], dict[str, np.ndarray], dict[str, Any]]
"""A node, its inputs, its constants, and options of the comparison."""


class Draw:
    """What an example is made of."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.rng = np.random.default_rng(self.int(0, 999))

    def int(self, low: int, high: int) -> int:
        return self.data.draw(st.integers(low, high))

    def bool(self) -> bool:
        return self.data.draw(st.booleans())

    def of(self, *choices: Any) -> Any:
        return self.data.draw(st.sampled_from(choices))

    def sizes(self, least: int, most: int, largest: int = 5) -> tuple[int, ...]:
        return tuple(self.data.draw(st.lists(st.integers(1, largest), min_size=least, max_size=most)))

    def floats(self, *shape: int, kind: Any = np.float32, scale: float = 1.0) -> np.ndarray:
        return np.asarray(self.rng.uniform(-scale, scale, shape)).astype(kind)

    def bytes(self, kind: Any, *shape: int) -> np.ndarray:
        limits = np.iinfo(kind)
        return np.asarray(self.rng.integers(limits.min, limits.max + 1, shape)).astype(kind)

    def scale(self, *shape: int, largest: float = 0.1) -> np.ndarray:
        return np.asarray(self.rng.uniform(largest / 10, largest, shape)).astype(np.float32)


def microsoft(op: str, inputs: list[str], outputs: list[str], **attributes: Any) -> Any:
    while inputs and not inputs[-1]:
        inputs = inputs[:-1]
    return helper.make_node(op, inputs, outputs, domain="com.microsoft", **attributes)


def near(kind: Any) -> dict[str, Any]:
    """How near results of a type come: those of 16 bits are rounded between operators here or there."""
    return {"rtol": 2e-2, "atol": 4e-3} if kind == np.float16 else {}


def fused_conv(draw: Draw) -> Case:
    groups, channels, out = draw.of(1, 1, 2), 2 * draw.int(1, 3), 2 * draw.int(1, 3)
    rank = draw.of(1, 2, 2)
    kernel = draw.sizes(rank, rank, 3)
    activation, parameters = draw.of(
        ("Relu", []), ("Tanh", []), ("Sigmoid", []), ("LeakyRelu", [0.2]), ("Clip", [-0.3, 0.4]),
        ("HardSigmoid", [0.3, 0.4]), ("", []),
    )  # fmt: skip
    attributes: dict[str, Any] = {
        "group": groups, "strides": [draw.int(1, 2) for _ in kernel], "dilations": [draw.int(1, 2) for _ in kernel],
    }  # fmt: skip
    automatic = draw.of("NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")
    if automatic == "NOTSET":
        attributes["pads"] = [draw.int(0, 2) for _ in range(2 * rank)]
    else:
        attributes |= {"auto_pad": automatic, "dilations": [1] * rank}
    if activation:
        attributes["activation"] = activation
    if parameters:
        attributes["activation_params"] = parameters
    x = draw.floats(draw.int(1, 2), channels, *(draw.int(5, 8) for _ in kernel))
    weights = {"w": draw.floats(out, channels // groups, *kernel)}
    if draw.bool():
        weights["b"] = draw.floats(out)
    node = microsoft("FusedConv", ["x", "w", *(["b"] if "b" in weights else [])], ["y"], **attributes)
    return node, {"x": x}, weights, {}


def fused_conv_with_a_sum(draw: Draw) -> Case:
    channels, out, size = draw.int(1, 20), draw.int(1, 20), draw.int(3, 6)
    activation = draw.of("Relu", "Tanh", "")
    inputs = {"x": draw.floats(1, channels, size, size), "z": draw.floats(1, out, size, size)}
    weights = {"w": draw.floats(out, channels, 3, 3), "b": draw.floats(out)}
    attributes = {"activation": activation} if activation else {}
    return (
        microsoft("FusedConv", ["x", "w", "b", "z"], ["y"], pads=[1] * 4, **attributes),
        inputs,
        weights,
        {},
    )


def fused_matmul(draw: Draw) -> Case:
    m, k, n = draw.sizes(3, 3, 6)
    flags = {name: draw.int(0, 1) for name in ("transA", "transB")}
    lead = draw.sizes(0, 2, 3)
    b_lead = draw.of(lead, (), tuple(1 for _ in lead))
    a = draw.floats(*lead, *((k, m) if flags["transA"] else (m, k)))
    b = draw.floats(*b_lead, *((n, k) if flags["transB"] else (k, n)))
    if lead and b_lead == lead and draw.bool():
        flags |= {name: draw.int(0, 1) for name in ("transBatchA", "transBatchB")}
        a = np.moveaxis(a, -2, 0).copy() if flags["transBatchA"] else a
        b = np.moveaxis(b, -2, 0).copy() if flags["transBatchB"] else b
    node = microsoft("FusedMatMul", ["a", "b"], ["y"], alpha=draw.of(1.0, 0.5, -2.0), **flags)
    return (node, {"a": a}, {"b": b}, {}) if draw.bool() else (node, {"a": a, "b": b}, {}, {})


def fused_gemm(draw: Draw) -> Case:
    m, k, n = draw.sizes(3, 3, 20)
    flags = {name: draw.int(0, 1) for name in ("transA", "transB")}
    activation = draw.of(
        {"activation": "Relu"}, {"activation": "LeakyRelu", "activation_alpha": 0.3}, {"activation": "Tanh"},
        {"activation": "Sigmoid"},
    )  # fmt: skip
    inputs = {"a": draw.floats(*((k, m) if flags["transA"] else (m, k)))}
    weights = {"b": draw.floats(*((n, k) if flags["transB"] else (k, n)))}
    added = draw.of(None, (n,), (m, 1), (m, n), (1,), ())
    if added is not None:
        weights["c"] = draw.floats(*added)
    node = microsoft(
        "FusedGemm", ["a", "b", *(["c"] if added is not None else [])], ["y"], alpha=draw.of(1.0, 0.5),
        beta=draw.of(1.0, -0.5), **flags, **activation,
    )  # fmt: skip
    return node, inputs, weights, {}


def gelu(draw: Draw) -> Case:
    op = draw.of("Gelu", "FastGelu", "QuickGelu", "BiasGelu")
    kind = draw.of(np.float32, np.float32, np.float16)
    sizes = draw.sizes(1, 4)
    x = draw.floats(*sizes, kind=kind, scale=draw.of(1, 20))
    x.reshape(-1)[0] = draw.of(0, -np.inf, np.inf, np.nan, 5e4)
    names, weights = ["x"], {}
    if op == "BiasGelu" or (op == "FastGelu" and draw.bool()):
        names, weights = ["x", "b"], {"b": draw.floats(sizes[-1], kind=kind)}
    attributes = {"alpha": draw.of(1.702, 1.0, -0.5)} if op == "QuickGelu" else {}
    return microsoft(op, names, ["y"], **attributes), {"x": x}, weights, near(kind)


def layer_normalization(draw: Draw) -> Case:
    op = draw.of("LayerNormalization", "LayerNormalization", "SimplifiedLayerNormalization")
    kind = draw.of(np.float32, np.float32, np.float16)
    sizes = draw.sizes(1, 4)
    axis = draw.int(-len(sizes), len(sizes) - 1)
    normalized = sizes[axis:] if axis else sizes
    x = draw.floats(*sizes, kind=kind, scale=draw.of(1, 30))
    if draw.bool():
        x[0] = 0.25  # a row without variance
    weights = {"s": draw.floats(*normalized, kind=kind)}
    if op == "LayerNormalization" and draw.bool():
        weights["b"] = draw.floats(*normalized, kind=kind)
    outputs = ["y"]
    if draw.bool():
        outputs += ["mean", "inverse"] if op == "LayerNormalization" else ["inverse"]
    attributes = {} if draw.bool() else {"epsilon": draw.of(1e-3, 1e-5)}
    node = helper.make_node(op, ["x", *weights], outputs, axis=axis, **attributes)
    return node, {"x": x}, weights, near(kind)


def skip_layer_normalization(draw: Draw) -> Case:
    simple = draw.bool()
    kind = draw.of(np.float32, np.float32, np.float16)
    batch, length, width = draw.int(1, 3), draw.int(1, 4), draw.int(1, 20)
    skip = draw.of((batch, length, width), (1, length, width), (length, width))
    inputs = {"x": draw.floats(batch, length, width, kind=kind), "k": draw.floats(*skip, kind=kind)}
    names = ["s"] if simple else ["s", draw.of("b", "")]
    names.append(draw.of("c", ""))
    weights = {name: draw.floats(width, kind=kind) for name in names if name}
    outputs = draw.of(["y"], ["y", "", "", "sum"])
    op = "SkipSimplifiedLayerNormalization" if simple else "SkipLayerNormalization"
    attributes = {"epsilon": draw.of(1e-3, 1e-5)}
    return microsoft(op, ["x", "k", *names], outputs, **attributes), inputs, weights, near(kind)


def embed_layer_normalization(draw: Draw) -> Case:
    batch, length, width = draw.int(1, 3), draw.int(1, 4), draw.int(1, 12)
    inputs = {"ids": draw.rng.integers(0, 10, (batch, length)).astype(np.int32)}
    weights = {"words": draw.floats(10, width), "positions": draw.floats(6, width)}
    weights |= {"s": draw.floats(width), "b": draw.floats(width)}
    names = ["ids", "", "words", "positions", "", "s", "b", "", ""]
    if draw.bool():
        inputs["segments"] = draw.rng.integers(0, 2, (batch, length)).astype(np.int32)
        weights["types"] = draw.floats(2, width)
        names[1], names[4] = "segments", "types"
    if draw.bool():
        inputs["mask"] = draw.rng.integers(0, 2, (batch, length)).astype(np.int32)
        names[7] = "mask"
    if draw.bool():
        rows = draw.of(1, batch)
        inputs["where"] = draw.rng.integers(0, 6, (rows, length)).astype(np.int32)
        names[8] = "where"
    outputs = draw.of(["y", "count"], ["y", "count", "sum"])
    attributes = {} if draw.bool() else {"epsilon": 1e-3}
    return microsoft("EmbedLayerNormalization", names, outputs, **attributes), inputs, weights, {}


def _masked(draw: Draw, batch: int, queries: int, keys: int, forms: tuple[str, ...]) -> np.ndarray | None:
    """A mask of attention in one of the forms."""
    lengths = draw.rng.integers(1, keys + 1, batch).astype(np.int32)
    match draw.of("none", *forms):
        case "lengths":
            return lengths
        case "ends and starts":
            return np.concatenate([lengths, np.minimum(draw.int(0, 1), lengths - 1)]).astype(np.int32)
        case "keys":
            mask = draw.rng.integers(0, 2, (batch, keys))
        case "each":
            mask = draw.rng.integers(0, 2, (batch, queries, keys))
        case _:
            return None
    mask[..., 0] = 1  # where all is hidden, the order of additions to -10000 shows
    return mask.astype(np.int32)


def _attention_options(draw: Draw) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if draw.bool():
        options["scale"] = draw.of(0.3, 1.0)
    if draw.bool():
        options["mask_filter_value"] = draw.of(-10000.0, -3.0)
    if draw.bool():
        options["unidirectional"] = draw.int(0, 1)
    return options


def attention(draw: Draw) -> Case:
    heads, depth, batch, length = draw.int(1, 3), draw.int(1, 4), draw.int(1, 3), draw.int(1, 4)
    inner, width = heads * depth, draw.int(2, 9)
    past = draw.of(0, 0, draw.int(1, 3))
    values = inner if past or draw.bool() else heads * draw.int(1, 4)
    options = _attention_options(draw)
    if values != inner or draw.bool():
        options["qkv_hidden_sizes"] = [inner, inner, values]
    inputs = {"x": draw.floats(batch, length, width)}
    weights = {"w": draw.floats(width, 2 * inner + values), "b": draw.floats(2 * inner + values)}
    names = ["x", "w", "b", "", "", ""]
    mask = _masked(draw, batch, length, past + length, ("lengths", "keys", "each"))
    if mask is not None:
        names[3], inputs["m"] = "m", mask
    if past:
        names[4], inputs["past"] = "past", draw.floats(2, batch, heads, past, depth)
    elif draw.bool():
        lead = (draw.of(1, batch), draw.of(1, heads))
        names[5], inputs["a"] = "a", draw.floats(*lead, length, past + length)
    outputs = ["y", "present"] if past or (values == inner and draw.bool()) else ["y"]
    return microsoft("Attention", names, outputs, num_heads=heads, **options), inputs, weights, {}


def multi_head_attention(draw: Draw) -> Case:
    heads, depth, batch, length = draw.int(1, 3), draw.int(1, 4), draw.int(1, 3), draw.int(1, 4)
    keys, v_depth, past = draw.int(1, 5), draw.int(1, 4), draw.of(0, 0, draw.int(1, 3))
    if past:
        keys, v_depth = length, depth
    options = _attention_options(draw)
    if options.get("unidirectional"):
        keys = min(keys, length)
    inputs = {"q": draw.floats(batch, length, heads * depth), "k": draw.floats(batch, keys, heads * depth)}
    inputs["v"] = draw.floats(batch, keys, heads * v_depth)
    names, weights = ["q", "k", "v", "", "", "", "", ""], {}
    split = not past and draw.bool()
    if split:
        v_depth = depth
        inputs["k"], inputs["v"] = (draw.floats(batch, heads, keys, d) for d in (depth, v_depth))
    elif draw.bool():
        names[3], weights["b"] = "b", draw.floats(heads * (2 * depth + v_depth))
    mask = _masked(draw, batch, length, past + keys, ("keys", "each"))
    if mask is not None:
        names[4], inputs["m"] = "m", mask
    if draw.bool():
        lead = (draw.of(1, batch), draw.of(1, heads))
        names[5], inputs["a"] = "a", draw.floats(*lead, length, past + keys)
    if past:
        names[6:8] = "pk", "pv"
        inputs |= {n: draw.floats(batch, heads, past, depth) for n in ("pk", "pv")}
    outputs = ["y", "key", "value"] if past else ["y"]
    return microsoft("MultiHeadAttention", names, outputs, num_heads=heads, **options), inputs, weights, {}


def rotary_embedding(draw: Draw) -> Case:
    batch, length, heads, depth = draw.int(1, 2), draw.int(1, 4), draw.int(1, 3), 4 * draw.int(1, 3)
    kind = draw.of(np.float32, np.float32, np.float16)
    partial, split = draw.bool(), draw.bool()
    turned = depth // 2 if partial else depth
    options: dict[str, Any] = {"interleaved": draw.int(0, 1)}
    if partial:
        options |= {"num_heads": heads, "rotary_embedding_dim": turned}
    elif draw.bool():
        options["num_heads"] = heads
    angles = draw.floats(10, turned // 2, scale=6)
    x = draw.floats(*((batch, heads, length, depth) if split else (batch, length, heads * depth)), kind=kind)
    positions = draw.rng.integers(0, 10, (batch, length)) if draw.bool() else np.array([draw.int(0, 6)])
    node = microsoft("RotaryEmbedding", ["x", "p", "c", "s"], ["y"], **options)
    weights = {"c": np.cos(angles).astype(kind), "s": np.sin(angles).astype(kind)}
    return node, {"x": x, "p": positions.astype(np.int64)}, weights, near(kind)


def _parameters(
    draw: Draw, kind: Any, name: str, weights: dict[str, np.ndarray], largest: float = 0.1
) -> list[str]:
    """Scale and zero point of a tensor, put among the constants; ONNX Runtime wants both."""
    weights |= {f"{name}s": draw.scale(largest=largest), f"{name}z": draw.bytes(kind)}
    return [f"{name}s", f"{name}z"]


def qlinear_binary(draw: Draw) -> Case:
    kind, sizes = draw.of(*BYTES), draw.sizes(1, 4)
    shapes = [tuple(draw.of(s, s, 1) for s in sizes) for _ in range(2)]
    if draw.bool():
        shapes[1] = shapes[1][draw.int(0, len(sizes)) :]
    weights: dict[str, np.ndarray] = {}
    names = ["a", *_parameters(draw, kind, "a", weights), "b", *_parameters(draw, kind, "b", weights)]
    names += _parameters(draw, kind, "y", weights, 0.5)
    inputs = {name: draw.bytes(kind, *shape) for name, shape in zip("ab", shapes, strict=True)}
    if draw.bool():
        inputs["as"], weights = weights["as"], {n: w for n, w in weights.items() if n != "as"}
    return microsoft(draw.of("QLinearAdd", "QLinearMul"), names, ["y"]), inputs, weights, {"steps": 1}


def qlinear_unary(draw: Draw) -> Case:
    op, kind = draw.of("QLinearSigmoid", "QLinearLeakyRelu"), draw.of(*BYTES)
    weights: dict[str, np.ndarray] = {}
    names = ["x", *_parameters(draw, kind, "x", weights), *_parameters(draw, kind, "y", weights, 0.05)]
    attributes = {"alpha": draw.of(0.2, -0.5, 1.5)} if op == "QLinearLeakyRelu" and draw.bool() else {}
    x = draw.bytes(kind, *draw.sizes(0, 4))
    return microsoft(op, names, ["y"], **attributes), {"x": x}, weights, {"steps": 1}


def qlinear_softmax(draw: Draw) -> Case:
    kind, sizes, opset = draw.of(*BYTES), draw.sizes(1, 4), draw.of(11, 13, 17)
    weights: dict[str, np.ndarray] = {}
    names = ["x", *_parameters(draw, kind, "x", weights), *_parameters(draw, kind, "y", weights, 1 / 100)]
    weights["yz"] = np.array(np.iinfo(kind).min, kind)
    axis = {} if draw.bool() else {"axis": draw.int(-len(sizes), len(sizes) - 1)}
    if len(sizes) == 1 and opset < 13:
        axis = {"axis": 0}
    node = microsoft("QLinearSoftmax", names, ["y"], opset=opset, **axis)
    return node, {"x": draw.bytes(kind, *sizes)}, weights, {"steps": 1}


def qlinear_global_average_pool(draw: Draw) -> Case:
    kind, last = draw.of(*BYTES), draw.int(0, 1)
    sizes = (draw.int(1, 2), *draw.sizes(2, 4, 20))
    weights: dict[str, np.ndarray] = {}
    names = ["x", *_parameters(draw, kind, "x", weights), *_parameters(draw, kind, "y", weights)]
    node = microsoft("QLinearGlobalAveragePool", names, ["y"], channels_last=last)
    return node, {"x": draw.bytes(kind, *sizes)}, weights, {"steps": 1}


def qlinear_average_pool(draw: Draw) -> Case:
    kind, last = draw.of(*BYTES), draw.int(0, 1)
    space = draw.sizes(2, 2, 6)
    kernel = [min(draw.int(1, 3), s) for s in space]
    weights: dict[str, np.ndarray] = {}
    names = ["x", *_parameters(draw, kind, "x", weights), *_parameters(draw, kind, "y", weights)]
    node = microsoft(
        "QLinearAveragePool", names, ["y"], kernel_shape=kernel, strides=[draw.int(1, 2) for _ in kernel],
        pads=[draw.int(0, k - 1) for k in kernel * 2], count_include_pad=draw.int(0, 1), channels_last=last,
    )  # fmt: skip
    channels = draw.int(1, 20)
    sizes = (1, *space, channels) if last else (1, channels, *space)
    return node, {"x": draw.bytes(kind, *sizes)}, weights, {"steps": 1}


def qlinear_concat(draw: Draw) -> Case:
    kind, sizes = draw.of(*BYTES), draw.sizes(1, 4)
    axis = draw.int(-len(sizes), len(sizes) - 1)
    weights: dict[str, np.ndarray] = {"ys": draw.scale(), "yz": draw.bytes(kind)}
    names, inputs = ["ys", "yz"], {}
    for name in "abc"[: draw.int(1, 3)]:
        shape = list(sizes)
        shape[axis] = draw.int(1, 20)
        same = draw.bool()
        weights |= {f"{name}s": weights["ys"] if same else draw.scale()}
        weights |= {f"{name}z": weights["yz"] if same else draw.bytes(kind)}
        inputs[name] = draw.bytes(kind, *shape)
        names += [name, f"{name}s", f"{name}z"]
    return microsoft("QLinearConcat", names, ["y"], axis=axis), inputs, weights, {"steps": 1}


def qgemm(draw: Draw) -> Case:
    m, n, k = draw.int(1, 5), draw.int(1, 20), draw.int(1, 20)
    kinds = (np.uint8, draw.of(*BYTES))
    flags = {name: draw.int(0, 1) for name in ("transA", "transB")}
    by_column = draw.bool()
    count = (n,) if by_column else ()
    weights = {
        "as": draw.scale(), "az": draw.bytes(kinds[0]), "bs": draw.scale(*count),
        "b": draw.bytes(kinds[1], *((n, k) if flags["transB"] else (k, n))),
        # ONNX Runtime takes one zero point for all columns of signed weights at most.
        "bz": np.zeros(count, kinds[1]) if by_column else draw.bytes(kinds[1]),
    }  # fmt: skip
    inputs = {"a": draw.bytes(kinds[0], *((k, m) if flags["transA"] else (m, k)))}
    names = ["a", "as", "az", "b", "bs", "bz", ""]
    if draw.bool():
        names[6] = "c"
        weights["c"] = draw.rng.integers(-9999, 9999, draw.of((n,), (1, n), (m, n))).astype(np.int32)
    if draw.bool():
        names += ["ys", "yz"]
        weights |= {"ys": draw.scale(largest=2), "yz": draw.bytes(kinds[0])}
    variable = draw.of(set(), {"az"}, {"as"})
    inputs |= {name: weights.pop(name) for name in variable}
    node = microsoft("QGemm", names, ["y"], alpha=draw.of(1.0, 0.5), **flags)
    return node, inputs, weights, {"steps": 1, "precise": True}


def matmul_integer(draw: Draw) -> Case:
    m, n, k = draw.int(1, 4), draw.int(1, 20), draw.int(1, 40)
    kinds = draw.of(*((a, b) for a in BYTES for b in BYTES))
    lead = draw.sizes(0, 2, 3)
    inputs = {"a": draw.bytes(kinds[0], *lead, m, k)}
    weights = {"b": draw.bytes(kinds[1], *draw.of((), lead), k, n)}
    # Against computed int8 columns ONNX Runtime saturates on processors without dot-product instructions.
    if kinds[1] == np.uint8 and draw.bool():
        inputs["b"] = weights.pop("b")
    names, operands = ["a", "b", "", ""], (inputs if draw.bool() else weights)
    if draw.bool():
        names[2], operands["az"] = "az", draw.bytes(kinds[0])
    if draw.bool():
        names[3], operands["bz"] = "bz", draw.bytes(kinds[1], *draw.of((), (n,)))
    while not names[-1]:
        names.pop()
    return helper.make_node("MatMulInteger", names, ["y"]), inputs, weights, {"precise": True}


def conv_integer(draw: Draw) -> Case:
    groups = draw.of(1, 1, 2, "depthwise")
    channels = 2 * draw.int(1, 12)
    groups = channels if groups == "depthwise" else groups
    out = groups * draw.int(1, 3)
    kernel = draw.sizes(2, 2, 3)
    inputs = {"x": draw.bytes(np.uint8, draw.int(1, 2), channels, draw.int(5, 8), draw.int(5, 8))}
    weights = {"w": draw.bytes(np.uint8, out, channels // groups, *kernel)}
    names, operands = ["x", "w", "", ""], (inputs if draw.bool() else weights)
    if draw.bool():
        names[2], operands["xz"] = "xz", draw.bytes(np.uint8)
    if draw.bool():
        names[3], weights["wz"] = "wz", draw.bytes(np.uint8)
    while not names[-1]:
        names.pop()
    node = helper.make_node(
        "ConvInteger", names, ["y"], group=groups, strides=[draw.int(1, 2) for _ in kernel],
        dilations=[draw.int(1, 2) for _ in kernel], pads=[draw.int(0, 2) for _ in range(4)],
    )  # fmt: skip
    return node, inputs, weights, {"precise": True}


def qlinear_matmul(draw: Draw) -> Case:
    m, n, k = draw.int(1, 4), draw.int(1, 20), draw.int(1, 20)
    kinds = (np.uint8, draw.of(*BYTES))
    lead, count = draw.sizes(0, 2, 3), draw.of((), (n,))
    weights = {
        "as": draw.scale(), "az": draw.bytes(kinds[0]), "bs": draw.scale(*count), "ys": draw.scale(largest=3),
        "b": draw.bytes(kinds[1], *draw.of((), () if count else lead), k, n), "bz": draw.bytes(kinds[1], *count),
        "yz": draw.bytes(kinds[0]),
    }  # fmt: skip
    inputs = {"a": draw.bytes(kinds[0], *lead, m, k)}
    inputs |= {name: weights.pop(name) for name in draw.of(set(), {"az"}, {"as"})}
    names = ["a", "as", "az", "b", "bs", "bz", "ys", "yz"]
    return helper.make_node("QLinearMatMul", names, ["y"]), inputs, weights, {"steps": 1, "precise": True}


def float_matmul(draw: Draw) -> Case:
    """DynamicQuantizeMatMul and MatMulIntegerToFloat."""
    m, n, k = draw.int(1, 4), draw.int(1, 20), draw.int(1, 20)
    lead, count, kind = draw.sizes(0, 2, 3), draw.of((), (1,), (n,)), draw.of(*BYTES)
    weights = {
        "b": draw.bytes(kind, k, n),
        "bs": draw.scale(*count),
        "bz": draw.bytes(kind, *count),
        "c": draw.floats(n),
    }
    zero, bias = draw.of("bz", ""), draw.of("c", "")
    if draw.bool():
        inputs = {"a": draw.floats(*lead, m, k, scale=draw.of(0.01, 3))}
        node = microsoft("DynamicQuantizeMatMul", ["a", "b", "bs", zero, bias], ["y"])
    else:
        inputs = {"a": draw.bytes(np.uint8, *lead, m, k)}
        weights |= {"as": draw.scale(), "az": draw.bytes(np.uint8)}
        node = microsoft("MatMulIntegerToFloat", ["a", "b", "as", "bs", draw.of("az", ""), zero, bias], ["y"])
    weights = {name: value for name, value in weights.items() if name in node.input}
    # A value on the edge between two steps may fall either way.
    return node, inputs, weights, {"precise": True, "atol": 0.02}


def dynamic_quantize_lstm(draw: Draw) -> Case:
    size, width, directions = draw.int(1, 6), draw.int(1, 5), draw.int(1, 2)
    # Every step of every direction is a chain of kernels to build.
    steps, batch, kind = draw.int(1, 3 - directions), draw.int(1, 2), draw.of(*BYTES)
    count = draw.of((directions,), (directions, 4 * size)) if kind == np.int8 else (directions,)
    weights = {
        "w": draw.bytes(kind, directions, width, 4 * size), "r": draw.bytes(kind, directions, size, 4 * size),
        "b": draw.floats(directions, 8 * size),
        **{f"{n}s": draw.scale(*count, largest=0.02) for n in "wr"},
        **{f"{n}z": np.full(count, 0 if kind == np.int8 else 128, kind) for n in "wr"},
    }  # fmt: skip
    inputs = {"x": draw.floats(steps, batch, width)}
    names = ["x", "w", "r", draw.of("b", ""), "", "", "", "", "ws", "wz", "rs", "rz"]
    if draw.bool():
        names[4], weights["lengths"] = "lengths", draw.rng.integers(1, steps + 1, batch).astype(np.int32)
    if draw.bool():
        names[5:7] = "h", "c"
        inputs |= {name: draw.floats(directions, batch, size) for name in "hc"}
    weights = {name: value for name, value in weights.items() if name in names}
    direction = "bidirectional" if directions == 2 else draw.of("forward", "reverse")
    node = microsoft("DynamicQuantizeLSTM", names, ["y", "y_h", "y_c"], hidden_size=size, direction=direction)
    return node, inputs, weights, {"rtol": 1e-2, "atol": 5e-3, "precise": True}


CASES = (
    fused_conv, fused_conv_with_a_sum, fused_matmul, fused_gemm, gelu, layer_normalization,
    skip_layer_normalization, embed_layer_normalization, attention, multi_head_attention, rotary_embedding,
    qlinear_binary, qlinear_unary, qlinear_softmax, qlinear_global_average_pool, qlinear_average_pool,
    qlinear_concat, qgemm, matmul_integer, conv_integer, qlinear_matmul, float_matmul, dynamic_quantize_lstm,
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
@few
@given(data=st.data())
def test_against_onnxruntime(
    case: Callable[[Draw], Case], data: st.DataObject, matches_onnxruntime: Any
) -> None:
    node, inputs, weights, options = case(Draw(data))
    matches_onnxruntime(node, inputs, weights, **options)
