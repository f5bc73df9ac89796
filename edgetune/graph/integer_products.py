"""Convolutions and products of bytes less their zero point, as the target's integer kernels.

The importer writes ConvInteger, MatMulInteger and what is made of them as a product in int16 with its sums in int32:
bytes, cast and less a zero point that may be known at run time only, times constant weights less theirs. The operator
says the same without these rules, on targets for which there are none.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from edgetune.graph.blocked import BlockedValue, Rewriter
from edgetune.graph.geometry import Geometry
from edgetune.graph.packing import block_channels, const, pad_to, shape_of
from edgetune.kernels import integer
from edgetune.kernels.dots import Dot, best_dot

_PRODUCT_LIKE = 4
"""Relax's fusion pattern (``OpPatternKind``) of what takes elementwise work after it."""
_EXACT = 2**24
"""Integers up to this size are exact in float32."""
BYTES = ("uint8", "int8")


def is_depthwise(weight: np.ndarray, channels: int, groups: int) -> bool:
    """Whether a convolution with these weights gives each channel one filter of its own."""
    return groups == channels == weight.shape[0] and groups > 1


def depthwise_sums(
    rewriter: Rewriter, x: Any, zero: Any, weight: np.ndarray, geometry: Geometry
) -> BlockedValue | None:
    """Depthwise sums of bytes ``x`` less ``zero [1]``, in float32; None where they may not be exact in it."""
    # One product for each value read: the multiply-add of float32 takes as many a cycle as any of integers, and its
    # sums are exact as long as they stay below 2^24.
    if 255 * float(np.abs(weight.astype(np.int64)).sum(axis=(1, 2, 3)).max()) >= _EXACT:
        return None
    value = rewriter.blocked_or_none(x) or rewriter.blocked(x)
    packed = block_channels(weight[:, 0], value.groups, rewriter.lanes).transpose(0, 2, 3, 1)
    total = rewriter.emit_te(
        integer.depthwise, value.expr, zero, const(packed.astype(np.float32)), *geometry.arguments(),
        name="integer_depthwise", primfunc_attrs={"op_pattern": _PRODUCT_LIKE},
    )  # fmt: skip
    return BlockedValue(total, weight.shape[0], *geometry.output, value.groups)


def conv_sums(
    rewriter: Rewriter, x: Any, zero: Any, weight: np.ndarray, geometry: Geometry, groups: int, dot: Dot
) -> BlockedValue | None:
    """Sums in int32 of bytes ``x`` in the form that the instruction reads, times ``weight [O, I, KH, KW]``.

    None where the target has no such vectors. See :func:`edgetune.kernels.integer.offset` for what the form adds.
    """
    if dot.lanes != rewriter.lanes:
        return None
    plain_input = shape_of(x)[1] < rewriter.lanes and groups == 1
    source = rewriter.plain(x) if plain_input else rewriter.blocked(x, groups).expr
    packed = const(_pack(weight, groups, rewriter.lanes, plain_input, dot))
    total = rewriter.emit_te(
        functools.partial(integer.conv2d, dot=dot), source, zero, packed,
        *geometry.arguments(), groups, plain_input,
        name="integer_conv2d", primfunc_attrs={"op_pattern": _PRODUCT_LIKE},
    )  # fmt: skip
    return BlockedValue(total, weight.shape[0], *geometry.output, groups)


def _pack(weight: np.ndarray, groups: int, lanes: int, plain_input: bool, dot: Dot) -> np.ndarray:
    """``[O, I, KH, KW]`` to ``[O/b, I/b', KH, KW, b'/g, b, g]``: b' is b, or for plain input all channels."""
    blocked = block_channels(weight, groups, lanes)
    inner = -(-weight.shape[1] // dot.group) * dot.group if plain_input else lanes
    padded = pad_to(blocked, 2, inner)
    out, _, depth, *kernel = padded.shape
    split = padded.reshape(out, lanes, depth // inner, inner // dot.group, dot.group, *kernel)
    return split.transpose(0, 2, 5, 6, 3, 1, 4).astype(dot.weight)


def dense_sums(rewriter: Rewriter, x: Any, zero: Any, weight: np.ndarray, dot: Dot) -> Any:
    """``[rows, N]`` in int32: rows of bytes ``x [..., K]`` in the instruction's form, times ``weight [K, N]``."""
    depth, columns = weight.shape
    rows = int(np.prod(shape_of(x)[:-1]))
    source = rewriter.emit(relax.op.reshape(rewriter.plain(x), (rows, depth)))
    lanes = dot.lanes
    padded = pad_to(pad_to(weight, 0, dot.group), 1, lanes)
    split = padded.reshape(-1, dot.group, padded.shape[1] // lanes, lanes)
    packed = split.transpose(2, 0, 3, 1)[:, None, None, None]
    return rewriter.emit_te(
        functools.partial(integer.dense, dot=dot), source, zero, const(packed.astype(dot.weight)), columns,
        name="integer_dense", primfunc_attrs={"op_pattern": _PRODUCT_LIKE},
    )  # fmt: skip


def _bytes_less_zero(rewriter: Rewriter, expr: Any) -> tuple[Any, Any] | None:
    """Bytes and their zero point ``[1]``, if an int16 expression is the one less the other."""
    call, zero = rewriter.definition(expr), None
    if call is not None and call.op.name == "relax.subtract":
        zero = call.args[1]
        call = rewriter.definition(call.args[0])
    if call is None or call.op.name != "relax.astype" or str(call.ty.dtype) != "int16":
        return None
    (values,) = call.args
    own = str(values.ty.dtype)
    if own not in BYTES:
        return None
    if zero is None:
        return values, const(np.zeros(1, own))
    known, wide = rewriter.constant(zero), rewriter.definition(zero)
    if (
        known is not None
        and known.size == 1
        and np.iinfo(own).min <= int(known.reshape(())) <= np.iinfo(own).max
    ):
        return values, const(known.reshape(1).astype(own))
    if wide is None or wide.op.name != "relax.astype" or str(wide.args[0].ty.dtype) != own or shape_of(wide):
        return None
    return values, rewriter.emit(relax.op.reshape(rewriter.plain(wide.args[0]), (1,)))


def conv2d(rewriter: Rewriter, call: Any) -> BlockedValue | None:
    """A convolution of bytes less their zero point, in int32."""
    found, weight = _bytes_less_zero(rewriter, call.args[0]), rewriter.constant(call.args[1])
    if found is None or weight is None or str(call.ty.dtype) != "int32" or weight.dtype != np.int16:
        return None
    x, zero = found
    _, channels, height, width = shape_of(x)
    groups, geometry = int(call.attrs.groups), Geometry(call.attrs, (height, width), weight.shape[2:])
    if is_depthwise(weight, channels, groups):
        total = depthwise_sums(rewriter, x, zero, weight, geometry)
        return None if total is None else total.like(rewriter.emit(relax.op.astype(total.expr, "int32")))
    dot = best_dot(rewriter.target, weight)
    total = conv_sums(rewriter, x, zero, weight, geometry, groups, dot)
    if total is None:
        return None
    sums = weight.reshape(weight.shape[0], -1).astype(np.int64).sum(axis=1).astype(np.int32)
    spread = block_channels(sums, groups, rewriter.lanes)[None, :, None]
    return total.like(_less_offset(rewriter, total.expr, zero, spread, str(x.ty.dtype), dot))


def matmul(rewriter: Rewriter, call: Any) -> Any:
    """A product of bytes less their zero point with a constant matrix, in int32."""
    found, weight = _bytes_less_zero(rewriter, call.args[0]), rewriter.constant(call.args[1])
    if found is None or weight is None or str(call.ty.dtype) != "int32" or weight.dtype != np.int16:
        return None
    x, zero = found
    if weight.ndim != 2 or len(shape_of(x)) < 2:
        return None
    dot = best_dot(rewriter.target, weight)
    total = dense_sums(rewriter, x, zero, weight, dot)
    sums = weight.astype(np.int64).sum(axis=0).astype(np.int32)[None]
    expr = _less_offset(rewriter, total, zero, sums, str(x.ty.dtype), dot)
    return expr if shape_of(expr) == shape_of(call) else rewriter.emit(relax.op.reshape(expr, shape_of(call)))


def _less_offset(rewriter: Rewriter, total: Any, zero: Any, sums: np.ndarray, own: str, dot: Dot) -> Any:
    """``total`` less what the instruction's form of the bytes adds to it; ``sums`` of the weights broadcast to it."""
    if dot.activation == "int16":
        return total
    moved = integer.offset(0, own, dot.activation)

    def correct(total: te.Tensor, zero: te.Tensor, sums: te.Tensor) -> te.Tensor:
        def at(*index: Any) -> Any:
            own_sum = sums(*(0 if int(d) == 1 else i for i, d in zip(index, sums.shape, strict=True)))
            return total(*index) - (zero(0).astype("int32") + tirx.const(moved, "int32")) * own_sum

        return te.compute(total.shape, at, name="corrected")

    return rewriter.emit_te(correct, total, zero, const(sums), name="zero_points")
