"""MatMulInteger, ConvInteger, QLinearMatMul, QLinearConv, and the products of com.microsoft with 8-bit integers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax, te
from tvm.relax.frontend.onnx import onnx_frontend  # ours build on TVM's

from edgetune.errors import UnsupportedModelError
from edgetune.graph.converters.base import Node, const, constant, converter, dtype, element, shape
from edgetune.graph.converters.byte_products import BYTES, conv, matmul, spread
from edgetune.graph.converters.geometry import window
from edgetune.graph.converters.quantization import (
    dequantize_operator,
    dynamic,
    quantize_operator,
    saturate,
    zero_or_none,
)


def requantized(
    node: Node, total: Any, scales: Sequence[Any], zero: Any, kind: str, axis: int, bias: Any = None
) -> Any:
    """An int32 tensor times ``scales[0] * scales[1] / scales[2]``, rounded, with the zero point, as ``kind``.

    Scales (and the int32 ``bias``) with more than one element lie along ``axis``, or broadcast as they are.
    """
    known = [constant(s) for s in scales]
    rank = len(shape(total))
    if all(k is not None for k in known):
        left, right, out = (spread(np.asarray(k, np.float32), axis, rank) for k in known)
        operands = [const((left * right / out).astype(np.float32))]
    else:
        operands = [_spread_expr(node, s, axis, rank) for s in scales]
    extra = [_spread_expr(node, v, axis, rank) for v in (bias, zero_or_none(zero)) if v is not None]

    def requantize(total: te.Tensor, *rest: te.Tensor) -> te.Tensor:
        scale_tensors, others = rest[: len(operands)], list(rest[len(operands) :])
        added = others.pop(0) if bias is not None else None
        origin = others.pop(0) if others else None

        def at(*index: Any) -> Any:
            value = total(*index)
            if added is not None:
                value = value + element(added, index).astype("int32")
            factors = [element(s, index).astype("float32") for s in scale_tensors]
            factor = factors[0] if len(factors) == 1 else factors[0] * factors[1] / factors[2]
            steps = te.nearbyint(value.astype("float32") * factor)
            return saturate(
                steps if origin is None else steps + element(origin, index).astype("float32"), kind
            )

        return te.compute(total.shape, at, name="requantized")

    return node.te(requantize, total, *operands, *extra, name="requantize")


def _spread_expr(node: Node, value: Any, axis: int, rank: int) -> Any:
    known = constant(value)
    if known is not None:
        return const(spread(known, axis, rank))
    sizes = shape(value)
    if int(np.prod(sizes)) == 1:
        return value if not sizes else node.emit(relax.op.reshape(value, ()))
    if len(sizes) != 1:
        return value
    return node.emit(relax.op.reshape(value, [sizes[0] if a == axis % rank else 1 for a in range(rank)]))


def matmul_integer(node: Node) -> Any:
    """MatMulInteger."""
    return matmul(node, node.needed(0), node.needed(1), node.input(2), node.input(3))


def conv_integer(node: Node) -> Any:
    """ConvInteger."""
    return conv(node, node.needed(0), node.needed(1), node.input(2), node.input(3))


def qlinear_matmul(node: Node) -> Any:
    """QLinearMatMul."""
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (node.needed(i) for i in range(8))
    total = matmul(node, a, b, a_zero, b_zero)
    if int(np.prod(shape(a_scale))) != 1 and len(shape(a_scale)) == 1:
        a_scale = node.emit(relax.op.expand_dims(a_scale, 1))
    return requantized(node, total, (a_scale, b_scale, y_scale), y_zero, dtype(y_zero), -1)


def qlinear_conv(node: Node) -> Any:
    """QLinearConv."""
    if node.int("channels_last", 0):
        raise UnsupportedModelError("QLinearConv with channels last is not implemented")
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = (node.needed(i) for i in range(8))
    if all(constant(v) is not None for v in (*node.inputs[1:],) if v is not None) and _is_plain(x, w, x_zero):
        return _conv_of_dequantized(node)
    total = conv(node, x, w, x_zero, w_zero)
    return requantized(node, total, (x_scale, w_scale, y_scale), y_zero, dtype(y_zero), 1, node.input(8))


def _is_plain(x: Any, w: Any, x_zero: Any) -> bool:
    return len(shape(x)) == 4 and dtype(x) in BYTES and dtype(w) in BYTES and np.prod(shape(x_zero)) == 1


def _conv_of_dequantized(node: Node) -> Any:
    """A convolution between dequantize and quantize, which the rules for quantised models take for what it was."""
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = (node.needed(i) for i in range(8))
    geometry = window(node, shape(x)[2:], shape(w)[2:])
    product = node.emit(
        relax.op.nn.conv2d(
            dequantize_operator(node, x, x_scale, x_zero, 1),
            dequantize_operator(node, w, w_scale, w_zero, 0),
            strides=list(geometry.stride),
            padding=[*geometry.before, *geometry.after],
            dilation=list(geometry.dilation),
            groups=node.int("group", 1),
        )
    )
    bias = node.input(8)
    if bias is not None:
        scales = np.float32(constant(x_scale)).reshape(()) * np.asarray(constant(w_scale), np.float32)
        added = np.asarray(constant(bias)).astype(np.float64) * scales.reshape(-1 if scales.size > 1 else ())
        product = node.emit(relax.op.add(product, const(added.astype(np.float32).reshape(1, -1, 1, 1))))
    return quantize_operator(node, product, y_scale, y_zero, 1)


def _to_float(node: Node, total: Any, scales: Sequence[Any], bias: Any) -> Any:
    """An int32 product as float32: times its scales, plus a bias."""
    rank = len(shape(total))
    operands = [_spread_expr(node, s, -1, rank) for s in scales] + ([] if bias is None else [bias])

    def rescale(total: te.Tensor, left: te.Tensor, right: te.Tensor, *added: te.Tensor) -> te.Tensor:
        def at(*index: Any) -> Any:
            value = total(*index).astype("float32") * (element(left, index) * element(right, index))
            return value + element(added[0], index) if added else value

        return te.compute(total.shape, at, name="rescaled")

    return node.te(rescale, total, *operands, name="rescale")


def dynamic_quantize_product(node: Node, a: Any, b: Any, b_scale: Any, b_zero: Any, bias: Any = None) -> Any:
    """float32 ``a``, quantised over its range, times quantised ``b``; float32."""
    quantized, scale, zero = dynamic(node, a)
    return _to_float(node, matmul(node, quantized, b, zero, b_zero), (scale, b_scale), bias)


def dynamic_quantize_matmul(node: Node) -> Any:
    """com.microsoft DynamicQuantizeMatMul."""
    return dynamic_quantize_product(
        node, node.needed(0), node.needed(1), node.needed(2), node.input(3), node.input(4)
    )


def matmul_integer_to_float(node: Node) -> Any:
    """com.microsoft MatMulIntegerToFloat."""
    total = matmul(node, node.needed(0), node.needed(1), node.input(4), node.input(5))
    return _to_float(node, total, (node.needed(2), node.needed(3)), node.input(6))


def qgemm(node: Node) -> Any:
    """com.microsoft QGemm; float32 without an output scale."""
    a, a_scale, a_zero, b, b_scale, b_zero = (node.input(i) for i in range(6))
    if node.int("transA", 0):
        a = node.emit(relax.op.permute_dims(a, [1, 0]))
    if node.int("transB", 0):
        known = constant(b)
        b = const(known.T) if known is not None else node.emit(relax.op.permute_dims(b, [1, 0]))
    total = matmul(node, a, b, a_zero, b_zero)
    bias, alpha = node.input(6), node.float("alpha", 1.0)
    if alpha != 1.0:
        a_scale = node.emit(relax.op.multiply(a_scale, relax.const(alpha, "float32")))
    if node.input(7) is not None:
        zero = node.input(8)
        kind = dtype(a) if zero is None else dtype(zero)
        return requantized(node, total, (a_scale, b_scale, node.input(7)), zero, kind, -1, bias)
    if bias is not None:
        total = node.emit(relax.op.add(total, bias))
    return _to_float(node, total, (a_scale, b_scale), None)


CONVERTERS: dict[str, Any] = {
    "MatMulInteger": converter(matmul_integer),
    "ConvInteger": converter(conv_integer),
    "QLinearMatMul": converter(qlinear_matmul),
    "QLinearConv": converter(qlinear_conv),
    "com.microsoft.QLinearConv": converter(qlinear_conv),
    "com.microsoft.DynamicQuantizeMatMul": converter(dynamic_quantize_matmul),
    "com.microsoft.MatMulIntegerToFloat": converter(matmul_integer_to_float),
    "com.microsoft.MatMulInteger16": onnx_frontend.MatMulInteger16,
    "com.microsoft.QGemm": converter(qgemm),
}
