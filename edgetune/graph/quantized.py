"""Quantised models in blocked layout: 8-bit tensors in memory, integer products inside the convolutions.

The importer leaves QuantizeLinear and DequantizeLinear as operators around float ones, and makes the same of the
QLinear operators. Here a convolution or product of two dequantised tensors becomes one of integers with its sums in
int32; what follows it up to the next QuantizeLinear is computed on those sums while they are in registers. Element
by element, dequantise, compute, quantise is one pass over bytes. No dequantised tensor is stored.

A convolution whose result is quantised at once, a ReLU between at most, is requantised as QLinearConv is: the sum with
the int32 bias, times ``x_scale * w_scale / y_scale`` in float32, rounded half to even. Everything else is
computed in float32 as the graph says, and may so be one step of the output's scale off what a runtime gives that
fuses the operators in another way.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax, te

from edgetune.graph import integer_products
from edgetune.graph.blocked import BlockedValue, Rewriter, Rule, same_padding
from edgetune.graph.geometry import Geometry
from edgetune.graph.integer_products import BYTES
from edgetune.graph.packing import const, shape_of
from edgetune.graph.quantized_values import (
    Deferred,
    Dequantized,
    Joined,
    Quantised,
    Sums,
    Weights,
    quantize,
    requantized,
    rounded,
    summed,
)
from edgetune.graph.rules import joined, operand, pooled
from edgetune.kernels import integer, window
from edgetune.kernels.dots import Dot, best_dot

_EXACT = 2**24
"""Integers up to this size are exact in float32."""


def with_quantized(rules: dict[str, Rule]) -> dict[str, Rule]:
    """The rules, with those for quantised operands tried first."""
    own: dict[str, Rule] = {
        "relax.quantize": _quantize,
        "relax.dequantize": _dequantize,
        "relax.nn.conv2d": _conv2d,
        "relax.add": _add,
        "relax.multiply": _elementwise,
        "relax.subtract": _elementwise,
        "relax.mean": _mean,
        "relax.nn.relu": _relu,
        "relax.nn.max_pool2d": _max_pool,
        "relax.concat": _concat,
        "relax.matmul": _matmul,
    }

    integers: dict[str, Rule] = {
        "relax.nn.conv2d": integer_products.conv2d,
        "relax.matmul": integer_products.matmul,
    }
    for more in (integers, own):
        rules = {**rules, **{name: _first(rule, rules.get(name)) for name, rule in more.items()}}
    return rules


def _first(rule: Rule, other: Rule | None) -> Rule:
    """``rule``, and ``other`` where it declines."""

    def apply(rewriter: Rewriter, call: Any) -> Any:
        result = rule(rewriter, call)
        return other(rewriter, call) if result is None and other is not None else result

    return apply


def _scalar(expr: Any) -> Any:
    """The value of a constant of one element, else None."""
    if not isinstance(expr, tvm.ir.GenericConst):
        return None
    array = np.asarray(expr.value.numpy())
    return array.reshape(())[()] if array.size == 1 else None


def _quantised(rewriter: Rewriter, expr: Any) -> Quantised | None:
    """What an expression dequantises, if it does so with one scale."""
    call = rewriter.definition(expr)
    if call is None or call.op.name != "relax.dequantize" or str(call.args[0].ty.dtype) not in BYTES:
        return None
    scale, zero = _scalar(call.args[1]), _scalar(call.args[2])
    return None if scale is None or zero is None else Quantised(call.args[0], np.float32(scale), int(zero))


def _weights(rewriter: Rewriter, expr: Any) -> Weights | None:
    """Constant quantised weights, transposed ones too."""
    call = rewriter.definition(expr)
    if call is None:
        return None
    if call.op.name == "relax.permute_dims":
        inner = _weights(rewriter, call.args[0])
        rank = len(call.ty.shape)
        axes = (
            [int(a) % rank for a in call.attrs.axes]
            if call.attrs.axes is not None
            else list(range(rank))[::-1]
        )
        if inner is None:
            return None
        return Weights(inner.values.transpose(axes), inner.scale, axes.index(inner.axis))
    if call.op.name != "relax.dequantize":
        return None
    values, scale, zero = (rewriter.constant(a) for a in call.args)
    if values is None or scale is None or zero is None or str(values.dtype) not in BYTES:
        return None
    axis = int(call.attrs.axis) % values.ndim
    origin = zero.astype(np.int16)
    if origin.size > 1:
        origin = origin.reshape([-1 if a == axis else 1 for a in range(values.ndim)])
    return Weights(
        values.astype(np.int16) - origin.reshape(origin.shape or ()), scale.astype(np.float32), axis
    )


def _conv2d(rewriter: Rewriter, call: Any) -> BlockedValue | None:
    x, w = _quantised(rewriter, call.args[0]), _weights(rewriter, call.args[1])
    if x is None or w is None or str(call.attrs.data_layout) != "NCHW":
        return None
    scale, weight = w.by_output(0), w.values
    _, channels, height, width = shape_of(x.values)
    groups = int(call.attrs.groups)
    geometry = Geometry(call.attrs, (height, width), weight.shape[2:])
    if scale is None:
        return None
    factor = (x.scale * scale).astype(np.float32)
    zero = relax.const(np.array([x.zero], str(x.values.ty.dtype)))
    if integer_products.is_depthwise(weight, channels, groups):
        total = integer_products.depthwise_sums(rewriter, x.values, zero, weight, geometry)
        bias = np.zeros(weight.shape[0], np.int32)
    else:
        dot = best_dot(rewriter.target, weight)
        total = integer_products.conv_sums(rewriter, x.values, zero, weight, geometry, groups, dot)
        bias = _bias(x, weight.reshape(weight.shape[0], -1), dot)
    return None if total is None else Sums(rewriter, total, bias, factor)


def _bias(x: Quantised, weight: np.ndarray, dot: Dot) -> np.ndarray:
    """What the form in which the instruction reads ``x`` adds to the sums, taken off; ``weight`` is ``[O, K]``."""
    moved = integer.offset(x.zero, str(x.values.ty.dtype), dot.activation)
    return (-moved * weight.astype(np.int64).sum(axis=1)).astype(np.int32)


def _add(rewriter: Rewriter, call: Any) -> BlockedValue | None:
    """A bias that is a whole number of steps of the sums joins them."""
    for value, other in (call.args, call.args[::-1]):
        sums, constant = rewriter.blocked_or_none(value), rewriter.constant(other)
        if not isinstance(sums, Sums) or sums.floor or constant is None or constant.size != sums.channels:
            continue
        if (1,) * (4 - constant.ndim) + constant.shape != (1, sums.channels, 1, 1):
            continue
        added = constant.reshape(-1)
        steps = np.rint(added.astype(np.float64) / sums.factor)
        bias = sums.bias + steps
        # Beyond this a float32 no longer says which whole number it was.
        whole = np.abs(steps).max() < _EXACT / 4 and np.allclose(
            steps * sums.factor, added, rtol=1e-6, atol=0
        )
        integers = str(sums.total.expr.ty.dtype) == "int32"
        if whole and (integers or np.abs(bias).max() < _EXACT / 2):
            return Sums(rewriter, sums.total, bias.astype(np.int32), sums.factor)
    return _elementwise(rewriter, call)


def _relu(rewriter: Rewriter, call: Any) -> BlockedValue | None:
    sums = rewriter.blocked_or_none(call.args[0])
    if not isinstance(sums, Sums):
        return None
    return Sums(rewriter, sums.total, sums.bias, sums.factor, floor=True)


def _quantize(rewriter: Rewriter, call: Any) -> BlockedValue | None:
    value = rewriter.blocked_or_none(call.args[0])
    scale, zero = _scalar(call.args[1]), _scalar(call.args[2])
    kind = str(call.ty.dtype)
    if value is None or scale is None or zero is None or kind not in BYTES:
        return None
    return _quantised_as(rewriter, value, float(scale), float(zero), kind)


def _quantised_as(
    rewriter: Rewriter, value: BlockedValue, scale: float, zero: float, kind: str
) -> BlockedValue:
    """A float tensor as bytes of one scale; each part of a joined one by itself, where it is made."""
    limits = np.iinfo(kind)
    bounds = float(limits.min), float(limits.max)
    if isinstance(value, Joined):
        parts = [_quantised_as(rewriter, part, scale, zero, kind) for part in value.parts]
        return value.like(joined(rewriter, parts, alone=True))
    if isinstance(value, Dequantized):
        return requantized(rewriter, value, scale, zero, kind)
    if not isinstance(value, Sums):
        values = functools.partial(quantize, scale=scale, zero=zero, bounds=bounds, kind=kind)
        return value.like(rewriter.emit_te(values, value.expr, name="quantize"))
    bounds = (max(bounds[0], zero) if value.floor else bounds[0]), bounds[1]

    def requantize(*given: te.Tensor) -> te.Tensor:
        return te.compute(
            given[0].shape,
            lambda *i: rounded(summed(given, i), zero, bounds, kind),
            name="requantized",
        )

    factor = (value.factor / np.float32(scale)).astype(np.float32)
    return value.like(rewriter.emit_te(requantize, *value.operands(factor), name="requantize"))


def _dequantize(rewriter: Rewriter, call: Any) -> BlockedValue | None:
    value = rewriter.blocked_or_none(call.args[0])
    scale, zero = _scalar(call.args[1]), _scalar(call.args[2])
    if value is None or scale is None or zero is None or str(call.args[0].ty.dtype) not in BYTES:
        return None
    return Dequantized(rewriter, value, float(scale), int(zero))


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "relax.add": lambda a, b: a + b,
    "relax.multiply": lambda a, b: a * b,
    "relax.subtract": lambda a, b: a - b,
}


def _elementwise(rewriter: Rewriter, call: Any) -> BlockedValue | None:
    """An operator on two tensors that reads the bytes of those that are quantised."""
    sides = [rewriter.blocked_or_none(a) for a in call.args]
    if not any(isinstance(side, Dequantized) for side in sides) or len(shape_of(call)) != 4:
        return None
    known = [side for side in sides if side is not None]
    model = max(known, key=lambda v: v.height * v.width)
    _, channels, height, width = shape_of(call)
    form = BlockedValue(None, channels, height, width, model.groups)
    if (model.channels, model.height, model.width) != (form.channels, form.height, form.width):
        return None
    operands, readers = [], []
    for side, argument in zip(sides, call.args, strict=True):
        if isinstance(side, Dequantized) and _same_form(side, form, rewriter.lanes):
            operands.append(side.values.expr)
            readers.append(side.read)
        else:
            operands.append(operand(rewriter, argument, form, rank=4))
            readers.append(lambda values: values)
    if any(operand is None for operand in operands):
        return None

    def compute(*given: te.Tensor) -> te.Tensor:
        def at(*index: Any) -> Any:
            parts = [
                read(x)(
                    *(
                        i if int(size) > 1 else 0
                        for i, size in zip(index[len(index) - len(x.shape) :], x.shape, strict=True)
                    )
                )
                for read, x in zip(readers, given, strict=True)
            ]
            return _OPERATORS[call.op.name](*parts)

        return te.compute(shape, at, name="computed")

    shape = [int(d) for d in max((o.ty.shape for o in operands), key=lambda s: np.prod([int(d) for d in s]))]
    return form.like(rewriter.emit_te(compute, *operands, name=call.op.name.rsplit(".", 1)[-1]))


def _same_form(value: BlockedValue, form: BlockedValue, lanes: int) -> bool:
    sizes = (value.height, value.width) in ((form.height, form.width), (1, 1))
    return sizes and value.channels == form.channels and same_padding(value, form.groups, lanes)


def _mean(rewriter: Rewriter, call: Any) -> BlockedValue | None:
    """Global average pooling: the sum is one of integers."""
    value = rewriter.blocked_or_none(call.args[0])
    axes = [int(a) % 4 for a in call.attrs.axis] if call.attrs.axis is not None else []
    if not isinstance(value, Dequantized) or sorted(axes) != [2, 3] or not call.attrs.keepdims:
        return None
    count = value.height * value.width
    factor = tvm.tirx.const(value.scale / count, "float32")

    def mean(x: te.Tensor) -> te.Tensor:
        k = te.reduce_axis((0, count), "k")
        n, blocks, _, lanes = x.shape
        total = te.compute(
            (n, blocks, 1, lanes), lambda n, c, _, i: te.sum(x[n, c, k, i].astype("int32"), axis=k)
        )
        # Sums of bytes over less than 65,536 pixels are exact in float32, and so is their zero point.
        origin = tvm.tirx.const(float(count * value.zero), "float32")
        return te.compute(
            total.shape, lambda *i: (total(*i).astype("float32") - origin) * factor, name="mean"
        )

    expr = rewriter.emit_te(mean, value.values.expr, name="mean")
    return BlockedValue(expr, value.channels, 1, 1, value.groups)


def _max_pool(rewriter: Rewriter, call: Any) -> BlockedValue | None:
    """The maximum of bytes, dequantised after it."""
    x = _quantised(rewriter, call.args[0])
    value, geometry = pooled(rewriter, call)
    bytes_ = None if x is None else rewriter.blocked_or_none(x.values)
    if x is None or bytes_ is None or value is None or geometry is None:
        return None
    size, stride, padding, dilation = geometry.arguments()
    expr = rewriter.emit_te(
        window.max_pool, bytes_.expr, size, geometry.kernel, stride, padding, dilation, name="max_pool2d"
    )
    largest = BlockedValue(expr, bytes_.channels, *geometry.output, bytes_.groups)
    return Dequantized(rewriter, largest, float(x.scale), x.zero)


def _concat(rewriter: Rewriter, call: Any) -> BlockedValue | None:
    """Bytes are joined as they are where they have one scale; else what reads them says in which form."""
    fields = call.args[0].fields if isinstance(call.args[0], relax.Tuple) else []
    values = [rewriter.blocked_or_none(field) for field in fields]
    known = [value for value in values if value is not None]
    if len(known) < len(fields) or call.attrs.axis is None or int(call.attrs.axis) != 1:
        return None
    if not any(isinstance(v, Deferred) for v in known) or any(v.padded(rewriter.lanes) for v in known):
        return None
    whole = Joined(rewriter, known)
    parts = [value for value in known if isinstance(value, Dequantized)]
    scales = {(v.scale, v.zero, str(v.values.expr.ty.dtype)) for v in parts}
    if len(parts) == len(known) and len(scales) == 1:
        steps = whole.like(joined(rewriter, [part.values for part in parts], alone=True))
        return Dequantized(rewriter, steps, parts[0].scale, parts[0].zero)
    return whole


def _matmul(rewriter: Rewriter, call: Any) -> Any:
    """A product of quantised rows and constant quantised columns; float32."""
    x, w = _quantised(rewriter, call.args[0]), _weights(rewriter, call.args[1])
    if x is None or w is None or w.values.ndim != 2:
        return None
    scale = w.by_output(1)
    if scale is None or len(shape_of(x.values)) < 2:
        return None
    zero = relax.const(np.array([x.zero], str(x.values.ty.dtype)))
    dot = best_dot(rewriter.target, w.values)
    total = integer_products.dense_sums(rewriter, x.values, zero, w.values, dot)

    def rescale(total: te.Tensor, bias: te.Tensor, factor: te.Tensor) -> te.Tensor:
        return te.compute(
            total.shape, lambda m, c: (total[m, c] + bias[c]).astype("float32") * factor[c], name="scaled"
        )

    bias = _bias(x, w.values.T, dot)
    factor = (x.scale * scale).astype(np.float32)
    expr = rewriter.emit_te(rescale, total, const(bias), const(factor), name="scale")
    return expr if shape_of(expr) == shape_of(call) else rewriter.emit(relax.op.reshape(expr, shape_of(call)))
