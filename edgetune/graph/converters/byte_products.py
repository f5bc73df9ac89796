"""Matrix products and convolutions of 8-bit integers, summed up in int32.

The products are of the integers as they are stored, which is what the dot-product instructions of CPUs compute:
the zero points come in afterwards, by the sums of rows and columns,

    sum (a - za) (b - zb) = sum a b - za sum b - zb sum a + K za zb

where terms of a zero point of zero fall away and sums over constants are constants. Where the weights are constant and
the other operand has one zero point, the sums are written as the difference itself, in int16, which the rules of
``graph.integer_products`` turn into the target's own kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx, topi

from edgetune.errors import UnsupportedModelError
from edgetune.graph.converters.base import Node, const, constant, dtype, element, shape
from edgetune.graph.converters.geometry import Window, window
from edgetune.graph.converters.quantization import scalar, zero_or_none

BYTES = ("uint8", "int8")


def matmul(node: Node, a: Any, b: Any, a_zero: Any, b_zero: Any) -> Any:
    """The product ``[..., M, N]`` in int32 of matrices of bytes, zero points taken off; vectors as in NumPy."""
    _check_bytes(a, b)
    a_zero, b_zero = zero_or_none(a_zero), zero_or_none(b_zero)
    known = constant(b)
    if known is not None and known.ndim == 2 and len(shape(a)) > 1 and _are_scalar_and_known(a_zero, b_zero):
        weights = const(_less_zero(known, b_zero))
        return node.emit(relax.op.matmul(_widened(node, a, a_zero), weights, out_dtype="int32"))
    return _any_matmul(node, a, b, a_zero, b_zero)


def _are_scalar_and_known(zero: Any, weight_zero: Any) -> bool:
    """Whether zero points are one for all values, and constant for the weights."""
    return (zero is None or int(np.prod(shape(zero))) == 1) and (
        weight_zero is None or constant(weight_zero) is not None
    )


def _less_zero(weights: np.ndarray[Any, Any], zero: Any, axis: int = -1) -> np.ndarray[Any, Any]:
    """Constant weights less their zero points, those along ``axis``, in int16."""
    known = constant(zero) if zero is not None else None
    if known is None:
        return weights.astype(np.int16)
    return weights.astype(np.int16) - spread(known.astype(np.int16), axis, weights.ndim)


def _widened(node: Node, values: Any, zero: Any) -> Any:
    """Bytes less their zero point in int16, in the form that the rules of ``graph.integer_products`` know."""
    wide = node.emit(relax.op.astype(values, "int16"))
    if zero is None:
        return wide
    known = constant(zero)
    if known is not None:
        origin = const(known.reshape(()).astype(np.int16))
    else:
        single = zero if not shape(zero) else node.emit(relax.op.reshape(zero, ()))
        origin = node.emit(relax.op.astype(single, "int16"))
    return node.emit(relax.op.subtract(wide, origin))


def _any_matmul(node: Node, a: Any, b: Any, a_zero: Any, b_zero: Any) -> Any:
    """The product of operands that are computed both, or that have a zero point for each row."""
    ranks = len(shape(a)), len(shape(b))
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
        if dtype(operand) not in BYTES:
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
    if known is not None and known.ndim == 4 and _are_scalar_and_known(x_zero, w_zero):
        return node.emit(
            relax.op.nn.conv2d(
                _widened(node, x, x_zero),
                const(_less_zero(known, w_zero, 0)),
                strides=list(geometry.stride),
                padding=[*geometry.before, *geometry.after],
                dilation=list(geometry.dilation),
                groups=node.int("group", 1),
                out_dtype="int32",
            )
        )
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


def spread(array: np.ndarray[Any, Any], axis: int, rank: int) -> np.ndarray[Any, Any]:
    """A vector along ``axis``, ready to broadcast."""
    if array.ndim != 1 or array.size == 1:
        return array.reshape(()) if array.size == 1 else array
    return array.reshape([-1 if a == axis % rank else 1 for a in range(rank)])
