"""How each operator is computed on blocked tensors: the table that ``blocked.Rewriter`` works through.

A rule takes the rewriter and the call; it returns a ``BlockedValue``, a plain expression, or None to decline.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, topi

from edgetune.graph import winograd
from edgetune.graph.blocked import BlockedValue, Rewriter, Rule
from edgetune.graph.geometry import Geometry, image_shape, pair
from edgetune.graph.joining import JOINS_ATTR
from edgetune.graph.packing import block_channels, const, pack_conv_weight, pad_to, shape_of
from edgetune.graph.shuffle import convolve_shuffled
from edgetune.kernels import products, window


def rules() -> dict[str, Rule]:
    """The rule of each operator, by Relax name."""
    table: dict[str, Rule] = {
        "relax.nn.conv1d": _convolution,
        "relax.nn.conv2d": _convolution,
        "relax.nn.conv2d_transpose": _conv2d_transpose,
        "relax.nn.max_pool1d": _max_pool,
        "relax.nn.max_pool2d": _max_pool,
        "relax.nn.avg_pool1d": _avg_pool,
        "relax.nn.avg_pool2d": _avg_pool,
        "relax.mean": _mean,
        "relax.concat": _concat,
        "relax.image.resize2d": _resize,
        "relax.matmul": _matmul,
        "relax.divide": _divide,
    }
    table.update(dict.fromkeys(_UNARY, _unary))
    table.update({name: _binary for name in _BINARY if name != "relax.divide"})
    return table


# Finite in, finite out: padded lanes stay harmless. The others decline when channels are padded.
_FINITE_UNARY = {
    "relax.nn.relu", "relax.clip", "relax.sigmoid", "relax.tanh", "relax.abs", "relax.negative", "relax.nn.leakyrelu",
    "relax.nn.silu", "relax.nn.gelu", "relax.nn.gelu_tanh", "relax.erf", "relax.floor", "relax.ceil", "relax.round",
}  # fmt: skip
_UNARY = _FINITE_UNARY | {"relax.exp", "relax.sqrt", "relax.rsqrt", "relax.log"}
_FINITE_BINARY = {"relax.add", "relax.subtract", "relax.multiply", "relax.maximum", "relax.minimum"}
_BINARY = _FINITE_BINARY | {"relax.divide", "relax.power"}


_LAYOUTS = ("NCHW", "NCW")
_OPAQUE = 8
"""Relax's fusion pattern (``OpPatternKind``) of what is never fused."""


def _is_float32_image(expr: Any) -> bool:
    """Whether an expression is float32 and has the rank of an image or a sequence."""
    ty = expr.ty
    return (
        isinstance(ty, relax.TensorType)
        and str(ty.dtype) == "float32"
        and ty.shape is not None
        and len(ty.shape) in (3, 4)
    )


def _convolution(rewriter: Rewriter, call: Any) -> BlockedValue | None:
    attrs = call.attrs
    weight = rewriter.constant(call.args[1])
    if weight is None or not _is_float32_image(call.args[0]) or str(attrs.data_layout) not in _LAYOUTS:
        return None
    rank = weight.ndim
    batch, channels, height, width = image_shape(shape_of(call.args[0]))
    weight = weight.reshape(image_shape(weight.shape))
    out_channels, _, kernel_h, kernel_w = weight.shape
    groups = int(attrs.groups)
    geometry = Geometry(attrs, (height, width), (kernel_h, kernel_w), rank)
    output = geometry.output
    if width == geometry.output[1] == kernel_w == 1:
        # One column: seen as one row, which tiles.
        weight = weight.transpose(0, 1, 3, 2)
        geometry.transpose()
    lanes = rewriter.lanes
    if groups == channels == out_channels and groups > 1:
        value = rewriter.blocked_or_none(call.args[0]) or rewriter.blocked(call.args[0])
        packed = block_channels(weight[:, 0], value.groups, lanes).transpose(0, 2, 3, 1)
        expr = rewriter.emit_te(
            window.depthwise, value.expr, const(packed), *geometry.arguments(), name="depthwise_conv2d"
        )
        return BlockedValue(expr, out_channels, *output, value.groups)
    if groups > 1 and rank == 4:
        shuffled = convolve_shuffled(rewriter, call, weight, geometry)
        if shuffled is not None:
            return BlockedValue(shuffled, out_channels, *output, groups)
    plain_input = channels < lanes and groups == 1
    shape = (batch, channels, out_channels)
    form = None if plain_input else winograd.best_form(rewriter.target, shape, geometry, groups)
    if form is not None:
        expr = winograd.convolve(rewriter, rewriter.blocked(call.args[0]), weight, geometry, form)
        return BlockedValue(expr, out_channels, *output)
    if plain_input:
        source = rewriter.plain(call.args[0])
        if shape_of(source)[2:] != geometry.size:
            source = rewriter.emit(relax.op.reshape(source, (*shape_of(source)[:2], *geometry.size)))
    else:
        source = rewriter.blocked(call.args[0], groups).expr
    expr = rewriter.emit_te(
        functools.partial(products.conv2d, registers=rewriter.registers),
        source,
        const(pack_conv_weight(weight, groups, lanes, plain_input)),
        *geometry.arguments(),
        groups,
        plain_input,
        name="conv2d",
    )
    return BlockedValue(expr, out_channels, *output, groups)


def _conv2d_transpose(rewriter: Rewriter, call: Any) -> Any:
    """Transposed convolution whose windows do not overlap: a pointwise convolution, then a shuffle of pixels."""
    attrs = call.attrs
    weight = rewriter.constant(call.args[1])
    if (
        weight is None
        or not _is_float32_image(call.args[0])
        or int(attrs.groups) != 1
        or str(attrs.data_layout) != "NCHW"
    ):
        return None
    _, channels, height, width = shape_of(call.args[0])
    _, out_channels, kernel_h, kernel_w = weight.shape
    stride = pair(attrs.strides)
    if stride != (kernel_h, kernel_w) or pair(attrs.dilation) != (1, 1):
        return None
    if any(int(p) for p in [*attrs.padding, *attrs.output_padding]):
        return None
    lanes = rewriter.lanes
    phases = kernel_h * kernel_w
    # Output channels in the order (row and column in the window, channel), each phase in whole blocks.
    by_phase = weight.transpose(2, 3, 1, 0).reshape(phases * out_channels, channels, 1, 1)
    packed = pack_conv_weight(by_phase, 1, lanes, False, out_groups=phases)
    value = rewriter.blocked(call.args[0])
    blocks = -(-out_channels // lanes)
    geometry = (height, width), (1, 1), (0, 0, 0, 0), (1, 1)
    product = rewriter.emit_te(
        functools.partial(products.conv2d, registers=rewriter.registers),
        value.expr,
        const(packed),
        *geometry,
        1,
        False,
        name="conv2d_transpose",
    )
    out_h, out_w = height * kernel_h, width * kernel_w

    def shuffle(x: te.Tensor) -> te.Tensor:
        def element(n: te.Var, c: te.Var, f: te.Var, i: te.Var) -> te.PrimExpr:
            row, column = f // out_w, f % out_w
            phase = (row % kernel_h) * kernel_w + column % kernel_w
            return x[n, phase * blocks + c, (row // kernel_h) * width + column // kernel_w, i]

        return te.compute((x.shape[0], blocks, out_h * out_w, lanes), element, name="pixel_shuffle")

    expr = rewriter.emit_te(shuffle, product, name="pixel_shuffle")
    return BlockedValue(expr, out_channels, out_h, out_w)


def _max_pool(rewriter: Rewriter, call: Any) -> BlockedValue | None:
    value, geometry = pooled(rewriter, call)
    if value is None or geometry is None:
        return None
    size, stride, padding, dilation = geometry.arguments()
    expr = rewriter.emit_te(
        window.max_pool, value.expr, size, geometry.kernel, stride, padding, dilation, name="max_pool2d"
    )
    return BlockedValue(expr, value.channels, *geometry.output, value.groups)


def _avg_pool(rewriter: Rewriter, call: Any) -> BlockedValue | None:
    value, geometry = pooled(rewriter, call)
    if value is None or geometry is None:
        return None
    size, stride, padding, dilation = geometry.arguments()
    expr = rewriter.emit_te(
        window.avg_pool,
        value.expr,
        size,
        geometry.kernel,
        stride,
        padding,
        dilation,
        bool(call.attrs.count_include_pad),
        name="avg_pool2d",
    )
    return BlockedValue(expr, value.channels, *geometry.output, value.groups)


def pooled(rewriter: Rewriter, call: Any) -> tuple[BlockedValue | None, Geometry | None]:
    """Blocked input and geometry of a pooling over an input that is blocked already."""
    value = rewriter.blocked_or_none(call.args[0])
    if value is None or str(call.attrs.layout) not in _LAYOUTS or call.attrs.ceil_mode:
        return None, None
    rank = len(call.ty.shape)
    kernel = pair(call.attrs.pool_size) if rank == 4 else (1, int(call.attrs.pool_size[0]))
    geometry = Geometry(call.attrs, (value.height, value.width), kernel, rank)
    if geometry.output != image_shape(shape_of(call))[2:]:
        return None, None
    return value, geometry


def _mean(rewriter: Rewriter, call: Any) -> BlockedValue | None:
    """Global average pooling."""
    value = rewriter.blocked_or_none(call.args[0])
    rank = len(shape_of(call.args[0]))
    axes = [int(a) % rank for a in call.attrs.axis] if call.attrs.axis is not None else []
    if value is None or sorted(axes) != list(range(2, rank)) or not call.attrs.keepdims:
        return None
    expr = rewriter.emit(relax.op.mean(value.expr, axis=[2], keepdims=True))
    return BlockedValue(expr, value.channels, 1, 1, value.groups)


def _concat(rewriter: Rewriter, call: Any) -> BlockedValue | None:
    fields = call.args[0].fields if isinstance(call.args[0], relax.Tuple) else []
    axis = call.attrs.axis
    if not fields or axis is None or int(axis) != 1:
        return None
    values = [rewriter.blocked_or_none(f) for f in fields]
    known = [v for v in values if v is not None]
    if len(known) < len(values) or any(v.padded(rewriter.lanes) for v in known):
        return None
    return BlockedValue(
        joined(rewriter, known), sum(v.channels for v in known), known[0].height, known[0].width
    )


def joined(rewriter: Rewriter, parts: Sequence[BlockedValue], alone: bool = False) -> Any:
    """The channels of blocked tensors of one type and size, none of them padded, one tensor after the other.

    ``alone``: nothing is fused into the kernel, which then goes wherever its parts can be written in their place.
    """
    exprs = [part.expr for part in parts]
    attrs = {JOINS_ATTR: 1} if all(shape_of(expr)[0] == 1 for expr in exprs) else {}
    if attrs and alone:
        attrs["op_pattern"] = _OPAQUE
    return rewriter.emit_te(topi.concatenate, exprs, 1, name="concatenate", primfunc_attrs=attrs or None)


def _resize(rewriter: Rewriter, call: Any) -> BlockedValue | None:
    """Nearest-neighbour resizing by whole factors."""
    value = rewriter.blocked_or_none(call.args[0])
    if value is None or str(call.attrs.layout) != "NCHW" or str(call.attrs.method) != "nearest_neighbor":
        return None
    _, _, height, width = shape_of(call)
    if height % value.height or width % value.width:
        return None
    if (
        str(call.attrs.coordinate_transformation_mode) != "asymmetric"
        or str(call.attrs.rounding_method) != "floor"
    ):
        return None
    factor_h, factor_w = height // value.height, width // value.width
    old_width = value.width

    def nearest(x: te.Tensor) -> te.Tensor:
        return te.compute(
            (x.shape[0], x.shape[1], height * width, x.shape[3]),
            lambda n, c, f, i: x[n, c, (f // width) // factor_h * old_width + (f % width) // factor_w, i],
            name="resize",
        )

    expr = rewriter.emit_te(nearest, value.expr, name="resize")
    return BlockedValue(expr, value.channels, height, width, value.groups)


def _unary(rewriter: Rewriter, call: Any) -> BlockedValue | None:
    value = rewriter.blocked_or_none(call.args[0])
    if value is None:
        return None
    if call.op.name not in _FINITE_UNARY and value.padded(rewriter.lanes):
        return None
    return value.like(
        rewriter.emit(tvm.ir.Call(call.op, [value.expr, *call.args[1:]], call.attrs, call.ty_args))
    )


def _divide(rewriter: Rewriter, call: Any) -> Any:
    """Division by a constant is a multiplication by its reciprocal (within one rounding)."""
    divisor = rewriter.constant(call.args[1])
    if (
        divisor is not None
        and divisor.dtype == np.float32
        and np.all(np.isfinite(1 / divisor.astype(np.float64)))
    ):
        reciprocal = const((1 / divisor.astype(np.float64)).astype(np.float32))
        product = relax.op.multiply(call.args[0], reciprocal)
        blocked = _binary(rewriter, _Typed(product, call.ty))
        return (
            blocked
            if blocked is not None
            else rewriter.emit(relax.op.multiply(rewriter.plain(call.args[0]), reciprocal))
        )
    return _binary(rewriter, call)


class _Typed:
    """A call given the type that the call it replaces had."""

    def __init__(self, call: Any, ty: Any) -> None:
        self.op, self.args, self.attrs, self.ty_args, self.ty = (
            call.op,
            call.args,
            call.attrs,
            call.ty_args,
            ty,
        )


def _binary(rewriter: Rewriter, call: Any) -> BlockedValue | None:
    sides = [rewriter.blocked_or_none(a) for a in call.args]
    known = [v for v in sides if v is not None]
    rank = len(shape_of(call))
    if not known or any(rewriter.constant(a) is None and len(shape_of(a)) != rank for a in call.args):
        return None
    _, channels, height, width = image_shape(shape_of(call))
    # Where both sides are blocked but padded differently, the larger one keeps its form.
    model = max(known, key=lambda v: v.height * v.width)
    form = BlockedValue(None, channels, height, width, model.groups)
    if model.channels != channels or (form.padded(rewriter.lanes) and call.op.name not in _FINITE_BINARY):
        return None
    operands = [operand(rewriter, argument, form, rank) for argument in call.args]
    if any(operand is None for operand in operands):
        return None
    return form.like(rewriter.emit(tvm.ir.Call(call.op, operands, call.attrs, call.ty_args)))


def operand(rewriter: Rewriter, argument: Any, form: BlockedValue, rank: int) -> Any:
    """One side of a binary operator in a given form, broadcast included; None where it has no blocked form.

    ``rank`` is that of the result.
    """
    constant = rewriter.constant(argument)
    if constant is not None:
        if constant.size == 1:
            return relax.const(constant.reshape(()), str(constant.dtype))
        if (1,) * (rank - constant.ndim) + constant.shape == (1, form.channels, 1, 1)[:rank]:
            packed = block_channels(constant.reshape(-1), form.groups, rewriter.lanes)
            return const(packed[None, :, None, :])
        return None
    if not _is_float32_image(argument):
        return None
    _, channels, height, width = image_shape(shape_of(argument))
    if channels != form.channels or (height, width) not in ((form.height, form.width), (1, 1)):
        return None
    return rewriter.blocked(argument, form.groups).expr


def _matmul(rewriter: Rewriter, call: Any) -> Any:
    """A product with a constant matrix reads it packed."""
    weight = rewriter.constant(call.args[1])
    left = call.args[0]
    if (
        weight is None
        or weight.dtype != np.float32
        or weight.ndim < 2
        or weight.size != np.prod(weight.shape[-2:])
    ):
        return None
    if not isinstance(left.ty, relax.TensorType) or str(left.ty.dtype) != "float32" or len(left.ty.shape) < 2:
        return None
    depth, columns = weight.shape[-2:]
    shape = shape_of(left)
    lanes = rewriter.lanes
    packed = pad_to(weight.reshape(depth, columns), 1, lanes).reshape(depth, -1, lanes).transpose(1, 0, 2)
    packed = packed[:, None, None, None]
    source = rewriter.plain(left)
    rows = int(np.prod(shape[:-1]))
    flat = rows != shape[-2]
    if flat:
        source = rewriter.emit(relax.op.reshape(source, (rows, depth)))
    expr = rewriter.emit_te(products.dense, source, const(packed), columns, name="dense")
    if tuple(shape_of(expr)) != shape_of(call):
        expr = rewriter.emit(relax.op.reshape(expr, shape_of(call)))
    return expr
