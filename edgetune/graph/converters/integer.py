"""Matrix products and convolutions of 8-bit integers, summed up in int32.

The products are of the integers as they are stored, which is what the dot-product instructions of CPUs compute:
the zero points come in afterwards, by the sums of rows and columns,

    sum (a - za) (b - zb) = sum a b - za sum b - zb sum a + K za zb

where terms of a zero point of zero fall away and sums over constants are constants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx, topi
from tvm.relax.frontend.onnx import onnx_frontend  # ours build on TVM's

from edgetune.errors import UnsupportedModelError
from edgetune.graph.converters.base import Node, const, constant, converter, dtype, element, shape
from edgetune.graph.converters.geometry import Window, window
from edgetune.graph.converters.quantization import (
    dequantize_operator,
    dynamic,
    quantize_operator,
    saturate,
    scalar,
    zero_or_none,
)

_BYTES = ("uint8", "int8")


def matmul(node: Node, a: Any, b: Any, a_zero: Any, b_zero: Any) -> Any:
    """The product ``[..., M, N]`` in int32 of matrices of bytes, zero points taken off; vectors as in NumPy."""
    _check_bytes(a, b)
    ranks = len(shape(a)), len(shape(b))
    a_zero, b_zero = zero_or_none(a_zero), zero_or_none(b_zero)
    if ranks[0] == 1:
        a = node.emit(relax.op.expand_dims(a, 0))
    if ranks[1] == 1:
        b = node.emit(relax.op.expand_dims(b, 1))
    lead = np.broadcast_shapes(shape(a)[:-2], shape(b)[:-2])
    rows, depth, columns = shape(a)[-2], shape(a)[-1], shape(b)[-1]
    sizes = (*(int(s) for s in lead), rows, columns)
    a_zero = _column(node, a_zero, ranks[0])
    known = constant(b)
    sums = None
    if a_zero is not None and known is not None:
        sums = const(known.astype(np.int32).sum(axis=-2, keepdims=True, dtype=np.int32))
    extra = [x for x in (a_zero, b_zero, sums) if x is not None]

    def product(a: te.Tensor, b: te.Tensor, *rest: te.Tensor) -> te.Tensor:
        rest_list = list(rest)
        az = rest_list.pop(0) if a_zero is not None else None
        bz = rest_list.pop(0) if b_zero is not None else None
        column_sums = rest_list.pop(0) if sums is not None else None
        total = te.compute(sizes, _dot(a, b, depth), name="integer_matmul")
        if az is not None and column_sums is None:
            column_sums = _sums(b, -2)
        row_sums = _sums(a, -1) if bz is not None else None

        def corrected(*index: Any) -> Any:
            value = total(*index)
            if az is not None:
                value = value - element(az, index).astype("int32") * element(column_sums, index)
            if bz is not None:
                value = value - element(bz, index).astype("int32") * element(row_sums, index)
            if az is not None and bz is not None:
                both = element(az, index).astype("int32") * element(bz, index).astype("int32")
                value = value + tirx.const(depth, "int32") * both
            return value

        if az is None and bz is None:
            return total
        return te.compute(sizes, corrected, name="zero_points")

    result = node.te(product, a, b, *extra, name="integer_matmul")
    squeezed = [axis for axis, rank in ((-2, ranks[0]), (-1, ranks[1])) if rank == 1]
    return node.emit(relax.op.squeeze(result, squeezed)) if squeezed else result


def _column(node: Node, zero: Any, rank: int) -> Any:
    """A zero point per row, ``[M]``, as ``[M, 1]``; a scalar as it is."""
    if zero is None or len(shape(zero)) != 1 or shape(zero)[0] == 1 or rank == 1:
        return zero
    return node.emit(relax.op.expand_dims(zero, 1))


def _dot(a: te.Tensor, b: te.Tensor, depth: int) -> Callable[..., Any]:
    k = te.reduce_axis((0, depth), "k")

    def at(*index: Any) -> Any:
        *lead, row, column = index
        left = element(a, (*lead, row, k)).astype("int32")
        return te.sum(left * element(b, (*lead, k, column)).astype("int32"), axis=k)

    return at


def _sums(x: te.Tensor, axis: int) -> te.Tensor:
    return topi.sum(topi.cast(x, "int32"), axis=axis, keepdims=True)


def _check_bytes(*operands: Any) -> None:
    for operand in operands:
        if dtype(operand) not in _BYTES:
            raise UnsupportedModelError(f"integer arithmetic on {dtype(operand)} is not implemented")


def conv(node: Node, x: Any, w: Any, x_zero: Any, w_zero: Any) -> Any:
    """Convolution ``[N, O, ...]`` in int32 of bytes, zero points taken off; padding counts as zero."""
    _check_bytes(x, w)
    x_zero, w_zero = zero_or_none(x_zero), zero_or_none(w_zero)
    if x_zero is not None and np.prod(shape(x_zero)) != 1:
        raise UnsupportedModelError(
            "a convolution with one zero point for each input channel is not implemented"
        )
    geometry = window(node, shape(x)[2:], shape(w)[2:])
    known = constant(w)
    sums = None
    if x_zero is not None and known is not None:
        sums = const(known.reshape(known.shape[0], -1).astype(np.int32).sum(axis=1, dtype=np.int32))
    extra = [v for v in (x_zero, w_zero, sums) if v is not None]
    groups = node.int("group", 1)

    def product(x: te.Tensor, w: te.Tensor, *rest: te.Tensor) -> te.Tensor:
        rest_list = list(rest)
        xz = rest_list.pop(0) if x_zero is not None else None
        wz = rest_list.pop(0) if w_zero is not None else None
        weight_sums = rest_list.pop(0) if sums is not None else None
        if xz is not None and weight_sums is None:
            weight_sums = topi.sum(topi.cast(w, "int32"), axis=list(range(1, len(w.shape))))
        return _conv(x, w, xz, wz, weight_sums, geometry, groups)

    return node.te(product, x, w, *extra, name="integer_conv")


def _conv(
    x: te.Tensor, w: te.Tensor, xz: Any, wz: Any, weight_sums: Any, geometry: Window, groups: int
) -> te.Tensor:
    depth = int(w.shape[1])
    per_group = int(w.shape[0]) // groups
    padded = geometry.padded(x, tirx.const(0, x.dtype) if xz is None else scalar(xz))
    axes = [te.reduce_axis((0, int(size)), f"k{i}") for i, size in enumerate(w.shape[1:])]

    def read(n: Any, o: Any, place: Sequence[Any]) -> Any:
        channel = axes[0] if groups == 1 else (o // per_group) * depth + axes[0]
        return padded(n, channel, *geometry.read(place, axes[1:])).astype("int32")

    sizes = (int(x.shape[0]), int(w.shape[0]), *geometry.output)
    total = te.compute(
        sizes,
        lambda n, o, *p: te.sum(read(n, o, p) * w(o, *axes).astype("int32"), axis=axes),
        name="integer_conv",
    )
    if xz is None and wz is None:
        return total
    windows: Any = None
    if wz is not None:
        windows = te.compute(sizes, lambda n, o, *p: te.sum(read(n, o, p), axis=axes), name="window_sums")
    count = tirx.const(depth * int(np.prod(geometry.kernel)), "int32")

    def corrected(n: Any, o: Any, *p: Any) -> Any:
        value = total(n, o, *p)
        if xz is not None:
            value = value - scalar(xz).astype("int32") * weight_sums(o)
        if wz is not None:
            own = (scalar(wz) if all(int(s) == 1 for s in wz.shape) else wz(o)).astype("int32")
            value = value - own * windows(n, o, *p)
            if xz is not None:
                value = value + count * scalar(xz).astype("int32") * own
        return value

    return te.compute(sizes, corrected, name="zero_points")


def requantized(
    node: Node, total: Any, scales: Sequence[Any], zero: Any, kind: str, axis: int, bias: Any = None
) -> Any:
    """An int32 tensor times ``scales[0] * scales[1] / scales[2]``, rounded, with the zero point, as ``kind``.

    Scales (and the int32 ``bias``) with more than one element lie along ``axis``, or broadcast as they are.
    """
    known = [constant(s) for s in scales]
    rank = len(shape(total))
    if all(k is not None for k in known):
        left, right, out = (_spread(np.asarray(k, np.float32), axis, rank) for k in known)
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


def _spread(array: np.ndarray[Any, Any], axis: int, rank: int) -> np.ndarray[Any, Any]:
    """A vector along ``axis``, ready to broadcast."""
    if array.ndim != 1 or array.size == 1:
        return array.reshape(()) if array.size == 1 else array
    return array.reshape([-1 if a == axis % rank else 1 for a in range(rank)])


def _spread_expr(node: Node, value: Any, axis: int, rank: int) -> Any:
    known = constant(value)
    if known is not None:
        return const(_spread(known, axis, rank))
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
    return len(shape(x)) == 4 and dtype(x) in _BYTES and dtype(w) in _BYTES and np.prod(shape(x_zero)) == 1


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
