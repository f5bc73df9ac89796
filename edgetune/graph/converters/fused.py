"""What ONNX Runtime's optimisers fuse in com.microsoft: products with an activation, GELUs, normalisations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

from edgetune.errors import UnsupportedModelError
from edgetune.graph.converters.base import Node, const, converter, dtype, positive_axis, shape

QUICK_GELU_ALPHA = 1.702
SKIP_EPSILON = 1e-12
"""Default epsilon of SkipLayerNormalization; LayerNormalization's is 1e-5."""


def number(value: float, like: Any) -> Any:
    """A scalar constant of the type of ``like``."""
    return relax.const(value, dtype(like))


def activated(node: Node, x: Any) -> Any:
    """``x`` after the node's attribute ``activation``, if it has one."""
    name = node.text("activation", "")
    parameters = [float(p) for p in node.attributes.get("activation_params", ())]
    match name:
        case "":
            return x
        case "Relu":
            return node.emit(relax.op.nn.relu(x))
        case "Tanh":
            return node.emit(relax.op.tanh(x))
        case "Sigmoid":
            return node.emit(relax.op.sigmoid(x))
        case "LeakyRelu":
            alpha = node.float("activation_alpha", parameters[0] if parameters else 0.01)
            return node.emit(relax.op.nn.leakyrelu(x, alpha))
        case "Clip" if len(parameters) == 2:
            return node.emit(relax.op.clip(x, *parameters))
        case "HardSigmoid" if len(parameters) == 2:
            line = relax.op.add(relax.op.multiply(x, number(parameters[0], x)), number(parameters[1], x))
            return node.emit(relax.op.clip(line, 0.0, 1.0))
    raise UnsupportedModelError(f"the fused activation {name!r} is not implemented")


def fused_conv(node: Node) -> Any:
    """FusedConv: convolution, plus a tensor, then an activation."""
    attributes = {k: v for k, v in node.attributes.items() if not k.startswith("activation")}
    inputs = [node.needed(0), node.needed(1), *([] if node.input(2) is None else [node.input(2)])]
    x = node.emit(node.by_importer("Conv", inputs, attributes))
    if node.input(3) is not None:
        x = node.emit(relax.op.add(x, node.input(3)))
    return activated(node, x)


def fused_gemm(node: Node) -> Any:
    """FusedGemm: Gemm, then an activation."""
    attributes = {k: v for k, v in node.attributes.items() if not k.startswith("activation")}
    return activated(node, node.emit(node.by_importer("Gemm", list(node.inputs), attributes)))


def fused_matmul(node: Node) -> Any:
    """FusedMatMul: alpha times the product of operands that may be transposed."""
    sides = []
    for index, letter in enumerate("AB"):
        x = node.needed(index)
        order = list(range(len(shape(x))))
        if node.int(f"transBatch{letter}", 0):
            order = [*order[1:-1], order[0], order[-1]]
        if node.int(f"trans{letter}", 0) and len(order) > 1:
            order = [*order[:-2], order[-1], order[-2]]
        sides.append(x if order == sorted(order) else node.emit(relax.op.permute_dims(x, order)))
    product = node.emit(relax.op.matmul(*sides))
    alpha = node.float("alpha", 1.0)
    return product if alpha == 1.0 else node.emit(relax.op.multiply(product, number(alpha, product)))


def gelu(node: Node) -> Any:
    """Gelu, exact."""
    return node.emit(relax.op.nn.gelu(node.needed(0)))


def bias_gelu(node: Node) -> Any:
    """BiasGelu: GELU of a sum, exact."""
    return node.emit(relax.op.nn.gelu(relax.op.add(node.needed(0), node.needed(1))))


def fast_gelu(node: Node) -> Any:
    """FastGelu: GELU by a hyperbolic tangent, of a sum if there is a bias."""
    x = node.needed(0)
    if node.input(1) is not None:
        x = node.emit(relax.op.add(x, node.input(1)))
    return node.emit(relax.op.nn.gelu_tanh(x))


def quick_gelu(node: Node) -> Any:
    """QuickGelu: x times the sigmoid of alpha x."""
    x = node.needed(0)
    steep = relax.op.multiply(x, number(node.float("alpha", QUICK_GELU_ALPHA), x))
    return node.emit(relax.op.multiply(x, relax.op.sigmoid(steep)))


def _moments(node: Node, x: Any, axes: Sequence[int], epsilon: float, centred: bool) -> tuple[Any, Any]:
    """Mean over ``axes`` and 1 / standard deviation; without ``centred`` of zero mean."""
    mean = node.emit(relax.op.mean(x, axes, keepdims=True))
    around = node.emit(relax.op.subtract(x, mean)) if centred else x
    variance = node.emit(relax.op.mean(relax.op.multiply(around, around), axes, keepdims=True))
    return mean, node.emit(relax.op.rsqrt(relax.op.add(variance, number(epsilon, x))))


def layer_norm(node: Node, x: Any, scale: Any, bias: Any, axis: int, epsilon: float) -> list[Any]:
    """Layer normalisation from ``axis`` on; gives the result, mean and inverse deviation (float32)."""
    axes = list(range(positive_axis(axis, len(shape(x))), len(shape(x))))
    own = dtype(x)
    wide = node.emit(relax.op.astype(x, "float32")) if own in ("float16", "bfloat16") else x
    mean, inverse = _moments(node, wide, axes, epsilon, centred=True)
    y = node.emit(relax.op.multiply(relax.op.subtract(wide, mean), inverse))
    return [_scaled(node, y, scale, bias, own), mean, inverse]


def rms_norm(node: Node, x: Any, scale: Any, axis: int, epsilon: float) -> list[Any]:
    """Normalisation by the root of the mean square; gives the result and the inverse root (float32)."""
    axes = list(range(positive_axis(axis, len(shape(x))), len(shape(x))))
    own = dtype(x)
    wide = node.emit(relax.op.astype(x, "float32")) if own in ("float16", "bfloat16") else x
    _, inverse = _moments(node, wide, axes, epsilon, centred=False)
    y = node.emit(relax.op.multiply(wide, inverse))
    return [_scaled(node, y, scale, None, own), inverse]


def _scaled(node: Node, y: Any, scale: Any, bias: Any, kind: str) -> Any:
    """``y`` times scale plus bias, as ``kind``."""

    def like(value: Any) -> Any:
        return value if dtype(value) == dtype(y) else node.emit(relax.op.astype(value, dtype(y)))

    result = node.emit(relax.op.multiply(y, like(scale)))
    if bias is not None:
        result = node.emit(relax.op.add(result, like(bias)))
    return result if dtype(result) == kind else node.emit(relax.op.astype(result, kind))


def layer_normalization(node: Node) -> Any:
    """LayerNormalization with all its outputs."""
    x, axis, epsilon = node.needed(0), node.int("axis", -1), node.float("epsilon", 1e-5)
    normalized = tuple(shape(x))[positive_axis(axis, len(shape(x))) :]
    # The importer takes scale and bias of exactly this shape; in the standard, they may broadcast to it.
    exact = all(tuple(shape(v)) == normalized for v in (node.needed(1), node.input(2)) if v is not None)
    if node.outputs == 1 and node.opset >= 17 and dtype(x) == "float32" and exact:
        return node.by_importer("LayerNormalization", list(node.inputs), node.attributes, 3)
    return layer_norm(node, x, node.needed(1), node.input(2), axis, epsilon)


def rms_normalization(node: Node) -> Any:
    """RMSNormalization; of 16-bit floats in float32."""
    x, axis, epsilon = node.needed(0), node.int("axis", -1), node.float("epsilon", 1e-5)
    return rms_norm(node, x, node.needed(1), axis, epsilon)[0]


def simplified_layer_normalization(node: Node) -> Any:
    """SimplifiedLayerNormalization: by the root of the mean square."""
    return rms_norm(node, node.needed(0), node.needed(1), node.int("axis", -1), node.float("epsilon", 1e-5))


def _skip_sum(node: Node, bias: Any) -> Any:
    total = node.emit(relax.op.add(node.needed(0), node.needed(1)))
    return total if bias is None else node.emit(relax.op.add(total, bias))


def skip_layer_normalization(node: Node) -> Any:
    """SkipLayerNormalization; outputs the result, mean, inverse deviation, and the sum before."""
    total = _skip_sum(node, node.input(4))
    epsilon = node.float("epsilon", SKIP_EPSILON)
    return [*layer_norm(node, total, node.needed(2), node.input(3), -1, epsilon), total]


def skip_simplified_layer_normalization(node: Node) -> Any:
    """SkipSimplifiedLayerNormalization; outputs the result, nothing, inverse root, and the sum before."""
    total = _skip_sum(node, node.input(3))
    y, inverse = rms_norm(node, total, node.needed(2), -1, node.float("epsilon", SKIP_EPSILON))
    return [y, None, inverse, total]


def embed_layer_normalization(node: Node) -> Any:
    """EmbedLayerNormalization; outputs the result, the number of unmasked words, and the sum before."""
    ids, segments = node.needed(0), node.input(1)
    batch, length = shape(ids)
    words = node.emit(relax.op.take(node.needed(2), ids, axis=0, mode="clip"))
    positions = node.input(8)
    if positions is None:
        positions = const(np.arange(length, dtype=np.int64)[None])
    places = relax.op.take(node.needed(3), positions, axis=0, mode="clip")
    total = node.emit(relax.op.add(words, places))
    if segments is not None:
        types = relax.op.take(node.needed(4), segments, axis=0, mode="clip")
        total = node.emit(relax.op.add(total, types))
    y = layer_norm(node, total, node.needed(5), node.input(6), -1, node.float("epsilon", SKIP_EPSILON))[0]
    count = const(np.zeros(batch, np.int32))
    if node.input(7) is not None:
        count = node.emit(relax.op.sum(relax.op.astype(node.input(7), "int32"), axis=1))
    return [y, count, total]


CONVERTERS: dict[str, type] = {
    "LayerNormalization": converter(layer_normalization),
    "RMSNormalization": converter(rms_normalization),
    "SimplifiedLayerNormalization": converter(simplified_layer_normalization),
    **{
        f"com.microsoft.{name}": converter(convert)
        for name, convert in {
            "FusedConv": fused_conv,
            "FusedGemm": fused_gemm,
            "FusedMatMul": fused_matmul,
            "TransposeMatMul": fused_matmul,
            "Gelu": gelu,
            "BiasGelu": bias_gelu,
            "FastGelu": fast_gelu,
            "QuickGelu": quick_gelu,
            "SkipLayerNormalization": skip_layer_normalization,
            "SkipSimplifiedLayerNormalization": skip_simplified_layer_normalization,
            "EmbedLayerNormalization": embed_layer_normalization,
        }.items()
    },
}
