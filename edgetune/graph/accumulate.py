"""In which type sums are kept: wide enough that the order of their terms does not show.

16-bit floats are summed in float32 and rounded once, as ONNX Runtime and NumPy do. float32 is enough for the few
thousand terms of a layer; beyond that its rounding errors, which point one way where all terms are positive, reach
the digits that count, so long sums are kept in float64.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax, te, tirx, topi

from edgetune.kernels.window import largest

HALVES = ("float16", "bfloat16")
LONG = 4096
"""Terms of a float32 sum from which on it is kept in float64."""

_WITH_OUT_DTYPE: dict[str, Callable[..., Any]] = {
    "relax.matmul": relax.op.matmul,
    **{f"relax.nn.conv{n}d": getattr(relax.op.nn, f"conv{n}d") for n in (1, 2, 3)},
    **{f"relax.nn.conv{n}d_transpose": getattr(relax.op.nn, f"conv{n}d_transpose") for n in (1, 2, 3)},
}
"""Operators that can be told in which type to sum up."""

_FUNCTIONS = ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "erf", "sinh", "tan")
_WHOLLY_WIDE = frozenset(
    {
        "relax.nn.log_softmax",
        "relax.nn.gelu",
        "relax.nn.gelu_tanh",
        *(f"relax.{name}" for name in _FUNCTIONS),
        "relax.cumsum",
        *(f"relax.nn.avg_pool{n}d" for n in (1, 2, 3)),
    }
)
"""Operators that are computed in float32 as a whole."""


def widen_sums(mod: tvm.IRModule) -> tvm.IRModule:
    """Let products, convolutions and averages of 16-bit floats be summed up in float32."""

    @relax.expr_functor.mutator
    class Widen(relax.PyExprMutator):
        def visit_call_(self, op: Any) -> Any:
            call = super().visit_call_(op)
            name = getattr(call.op, "name", "")
            own = str(getattr(op.ty, "dtype", ""))
            if own not in HALVES:
                return call
            if name in _WITH_OUT_DTYPE:
                wide = self.builder_.emit(_summed_in_float32(call, _WITH_OUT_DTYPE[name]))
                return relax.op.astype(wide, own)
            if name in _WHOLLY_WIDE:
                operand = self.builder_.emit(relax.op.astype(call.args[0], "float32"))
                wide = tvm.ir.Call(call.op, [operand, *call.args[1:]], call.attrs, call.ty_args)
                return relax.op.astype(self.builder_.emit(wide), own)
            return call

    widened = Widen(mod)
    for var, func in mod.functions.items():
        if isinstance(func, relax.Function):
            widened.builder_.update_func(var, widened.visit_expr(func))
    return widened.builder_.get()


def _summed_in_float32(call: Any, operator: Callable[..., Any]) -> Any:
    names = [name for name in inspect.signature(operator).parameters if hasattr(call.attrs, name)]
    fields = {name: getattr(call.attrs, name) for name in names}
    return operator(*call.args, **{**fields, "out_dtype": "float32"})


def legalizations() -> dict[str, Callable[[relax.BlockBuilder, Any], Any]]:
    """Sums, means, maxima and minima, by Relax operator."""
    return {
        "relax.sum": _total(mean=False),
        "relax.mean": _total(mean=True),
        "relax.max": _extreme(te.max, topi.max),
        "relax.min": _extreme(te.min, topi.min),
        **{f"relax.nn.max_pool{n}d": _max_pool for n in (1, 2, 3)},
        "relax.argmax": _place,
        "relax.argmin": _place,
        "relax.maximum": _larger(lambda a, b: a > b, topi.maximum),
        "relax.minimum": _larger(lambda a, b: a < b, topi.minimum),
    }


def _axes(call: Any) -> list[int]:
    rank = len(call.args[0].ty.shape)
    axes = call.attrs.axis
    return list(range(rank)) if axes is None else [int(a) % rank for a in axes]


def _dtype(expr: Any) -> str:
    return str(expr.ty.dtype)


def _total(mean: bool) -> Callable[[relax.BlockBuilder, Any], Any]:
    def legalize(builder: relax.BlockBuilder, call: Any) -> Any:
        x, axes, keep = call.args[0], _axes(call), bool(call.attrs.keepdims)
        own = _dtype(x)
        count = math.prod(int(x.ty.shape[axis]) for axis in axes)
        if count == 0:
            nothing = math.nan if mean and "float" in own else 0
            return builder.call_te(topi.full, [int(d) for d in call.ty.shape], own, tirx.const(nothing, own))
        if own in HALVES:
            kind = "float32"
        elif own == "float32" and count > LONG:
            kind = "float64"
        else:
            return call.op.get_attr("FLegalize")(builder, call)

        def summed(x: te.Tensor) -> te.Tensor:
            total = topi.sum(topi.cast(x, kind), axes, keep)
            if mean:
                total = topi.divide(total, tirx.const(count, kind))
            return topi.cast(total, own)

        return builder.call_te(summed, x, primfunc_name_hint="mean" if mean else "sum")

    return legalize


def _extreme(reduce: Any, combine: Callable[..., Any]) -> Callable[[relax.BlockBuilder, Any], Any]:
    """Maximum or minimum over axes; of floating-point numbers through integers of the same order.

    TVM's reducers start from the largest finite number, so that the maximum of nothing but minus infinity is finite,
    and lose NaN; others of ours its schedules could not split.
    """

    def legalize(builder: relax.BlockBuilder, call: Any) -> Any:
        x, axes, keep = call.args[0], _axes(call), bool(call.attrs.keepdims)
        own = _dtype(x)

        def reduced(x: te.Tensor) -> te.Tensor:
            if own not in _KEYS or not axes:
                return combine(x, axes, keep)
            keys = te.compute(x.shape, lambda *i: _key(x(*i), reduce is te.max), name="keys")
            found = combine(keys, axes, keep)
            return te.compute(found.shape, lambda *i: _of_key(found(*i), own), name="extreme")

        return builder.call_te(reduced, x, primfunc_name_hint=call.op.name.rsplit(".", 1)[-1])

    return legalize


def _place(builder: relax.BlockBuilder, call: Any) -> Any:
    """ArgMax and ArgMin, where every element is what TVM's reducer starts from: it then gives -1, not 0."""
    found = builder.emit(call.op.get_attr("FLegalize")(builder, call))

    def place(found: te.Tensor) -> te.Tensor:
        return te.compute(found.shape, lambda *i: te.max(found(*i), tirx.const(0, found.dtype)), name="place")

    return builder.call_te(place, found, primfunc_name_hint="place")


def _max_pool(builder: relax.BlockBuilder, call: Any) -> Any:
    """The maximum of each window, of minus infinities too; ``[N, C, ...]``."""
    x, attrs = call.args[0], call.attrs
    kernel, stride, dilation = (
        [int(v) for v in getattr(attrs, n)] for n in ("pool_size", "strides", "dilation")
    )
    rank, size = len(kernel), [int(d) for d in x.ty.shape][2:]
    if (
        "float" not in _dtype(x)
        or str(attrs.layout) != str(attrs.out_layout)
        or not str(attrs.layout).startswith("NC")
    ):
        return call.op.get_attr("FLegalize")(builder, call)
    before = [int(p) for p in attrs.padding][:rank]
    shape = [int(d) for d in call.ty.shape]

    def pool(x: te.Tensor) -> te.Tensor:
        offsets = [te.reduce_axis((0, k), f"k{i}") for i, k in enumerate(kernel)]

        def at(n: Any, c: Any, *place: Any) -> Any:
            own = [p * stride[i] + offsets[i] * dilation[i] - before[i] for i, p in enumerate(place)]
            inside = te.all(*(te.all(i >= 0, i < s) for i, s in zip(own, size, strict=True)))
            return largest(
                te.if_then_else(inside, x(n, c, *own), tirx.const(-math.inf, x.dtype)), axis=offsets
            )

        return te.compute(shape, at, name="max_pool")

    return builder.call_te(pool, x, primfunc_name_hint="max_pool")


_KEYS = {"float16": "int16", "float32": "int32", "float64": "int64"}


def _key(x: Any, nan_is_highest: bool) -> Any:
    """An integer for a floating-point number, in the same order; NaN above or below all others."""
    kind = _KEYS[_dtype(x)]
    limit = tirx.max_value(kind) if nan_is_highest else tirx.min_value(kind)
    return tirx.Select(tirx.isnan(x), limit, _flipped(tirx.reinterpret(kind, x)))


def _of_key(key: Any, kind: str) -> Any:
    return tirx.reinterpret(kind, _flipped(key))


def _flipped(bits: Any) -> Any:
    """The bits of a number below zero but for its sign turned over: these compare backwards. Its own inverse."""
    kind = _dtype(bits)
    sign = tirx.const(int(kind.removeprefix("int")) - 1, kind)
    return bits ^ ((bits >> sign) & tirx.max_value(kind))


def _larger(before: Callable[[Any, Any], Any], stock: Any) -> Callable[[relax.BlockBuilder, Any], Any]:
    def legalize(builder: relax.BlockBuilder, call: Any) -> Any:
        name = call.op.name.rsplit(".", 1)[-1]
        if "float" not in _dtype(call.args[0]):
            return builder.call_te(stock, *call.args, primfunc_name_hint=name)
        shape = [int(d) for d in call.ty.shape]

        def chosen(a: Any, b: Any) -> Any:
            # NaN stays: a comparison with it is false.
            return tirx.Select(tirx.any(before(a, b), tirx.isnan(a)), a, b)

        def compute(a: te.Tensor, b: te.Tensor) -> te.Tensor:
            return te.compute(shape, lambda *i: chosen(_element(a, i), _element(b, i)), name=f"T_{name}")

        return builder.call_te(compute, *call.args, primfunc_name_hint=name)

    return legalize


def _element(tensor: te.Tensor, index: Any) -> Any:
    """``tensor`` at ``index``, broadcast."""
    own = list(index)[len(index) - len(tensor.shape) :]
    return tensor(*(0 if int(size) == 1 else i for size, i in zip(tensor.shape, own, strict=True)))
