"""Tensor expressions of ours for operators whose stock form is slow or wrong.

``exp`` and what is built on it call ``expf`` for each element in stock TVM; here they are polynomials that LLVM
turns into vectors. Clip and ReLU keep NaN, as ONNX asks, at no cost.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx, topi

from edgetune.graph import accumulate

Legalization = Callable[[relax.BlockBuilder, Any], Any]


def legalizations() -> dict[str, Legalization]:
    """Legalizations by Relax operator, for ``LegalizeOps``."""
    return {
        "relax.clip": _clip,
        "relax.nn.relu": _elementwise(relu),
        "relax.exp": _elementwise(exp),
        "relax.sigmoid": _elementwise(sigmoid),
        "relax.tanh": _elementwise(tanh),
        "relax.nn.silu": _elementwise(_in_float32(lambda x: shared(x, lambda x: x * sigmoid(x)))),
        "relax.nn.softmax": _softmax,
        "relax.power": _power,
        "relax.quantize": _quantize,
        "relax.dequantize": _dequantize,
        **accumulate.legalizations(),
    }


def _dtype(x: te.PrimExpr) -> str:
    return str(x.ty.dtype)


def shared(value: te.PrimExpr, body: Callable[[te.PrimExpr], te.PrimExpr]) -> te.PrimExpr:
    """Give body(value) with the value computed once.

    An expression is a tree: a value that is written twice, and with it all that is inlined into it, doubles in
    size, and a chain of such functions grows exponentially.
    """
    variable = tirx.Var("shared", _dtype(value))
    return tirx.Let(variable, value, body(variable))


def _sharing(function: Callable[[te.PrimExpr], te.PrimExpr]) -> Callable[[te.PrimExpr], te.PrimExpr]:
    """Compute the argument of a function once."""

    @functools.wraps(function)
    def once(x: te.PrimExpr) -> te.PrimExpr:
        return shared(x, function)

    return once


def _in_float32(function: Callable[[te.PrimExpr], te.PrimExpr]) -> Callable[[te.PrimExpr], te.PrimExpr]:
    """Compute a function of 16-bit floats in float32, so that only its result is rounded."""

    @functools.wraps(function)
    def wide(x: te.PrimExpr) -> te.PrimExpr:
        own = _dtype(x)
        if own not in accumulate.HALVES:
            return function(x)
        return function(x.astype("float32")).astype(own)

    return wide


@_sharing
def relu(x: te.PrimExpr) -> te.PrimExpr:
    """Give max(x, 0), NaN kept: a comparison with NaN is false."""
    zero = tirx.const(0, _dtype(x))
    return tirx.Select(x < zero, zero, x)


@_in_float32
@_sharing
def exp(x: te.PrimExpr) -> te.PrimExpr:
    """Give e to the x in float32, within 2 units in the last place; other types go to the C library.

    2^n * e^r with n = round(x / ln 2) and |r| <= ln(2) / 2; e^r by the polynomial of Cephes' ``expf``
    (S. Moshier, netlib.org/cephes). ln 2 is subtracted in two parts (Cody and Waite) to keep r exact. Overflow gives
    infinity, NaN stays; below the smallest normal number the result is zero.
    """
    if _dtype(x) != "float32":
        return te.exp(x)

    def number(value: float) -> te.PrimExpr:
        return tirx.const(value, "float32")

    low, high = number(-87.33654), number(88.72283)
    # Comparisons with NaN are false: it passes through here, and with it through the polynomial.
    bounded = tirx.Select(x > high, high, tirx.Select(x < low, low, x))

    def reduced(bounded: te.PrimExpr, n: te.PrimExpr) -> te.PrimExpr:
        return bounded - n * number(0.693359375) - n * number(-2.12194440e-4)

    def polynomial(r: te.PrimExpr) -> te.PrimExpr:
        value = number(1.9875691500e-4)
        for coefficient in (
            1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1,
        ):  # fmt: skip
            value = value * r + number(coefficient)
        return value * r * r + r + number(1.0)

    def scaled(value: te.PrimExpr, whole: te.PrimExpr) -> te.PrimExpr:
        # 2^n by writing n into the exponent, half of it twice so that n = 128 does not overflow on the way.
        half = whole >> tirx.const(1, "int32")
        bias, shift = tirx.const(127, "int32"), tirx.const(23, "int32")
        scale = [tirx.reinterpret("float32", (part + bias) << shift) for part in (half, whole - half)]
        return value * scale[0] * scale[1]

    def raised(bounded: te.PrimExpr, n: te.PrimExpr) -> te.PrimExpr:
        value = shared(reduced(bounded, n), polynomial)
        # The maximum makes a number of NaN, of which there is no integer.
        whole = te.max(n, number(-127)).astype("int32")
        return shared(whole, lambda w: scaled(value, w))

    def of_bounded(bounded: te.PrimExpr) -> te.PrimExpr:
        n = te.floor(bounded * number(1.44269504088896341) + number(0.5))
        return shared(n, lambda n: raised(bounded, n))

    result = tirx.Select(x > high, number(float("inf")), shared(bounded, of_bounded))
    return tirx.Select(x < low, number(0.0), result)


@_in_float32
def sigmoid(x: te.PrimExpr) -> te.PrimExpr:
    """1 / (1 + e^-x), within 3 units in the last place in float32."""
    one = tirx.const(1, _dtype(x))
    return one / (one + exp(-x))


@_in_float32
@_sharing
def tanh(x: te.PrimExpr) -> te.PrimExpr:
    """Hyperbolic tangent in float32, within 2 units in the last place; other types go to the C library.

    1 - 2 / (e^2x + 1) away from zero, a polynomial near it (Cephes ``tanhf``).
    """
    if _dtype(x) != "float32":
        return te.tanh(x)

    def number(value: float) -> te.PrimExpr:
        return tirx.const(value, "float32")

    def signed(far: te.PrimExpr) -> te.PrimExpr:
        return tirx.Select(x < number(0), -far, far)

    def near(square: te.PrimExpr) -> te.PrimExpr:
        polynomial = number(-5.70498872745e-3)
        for coefficient in (2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1):
            polynomial = polynomial * square + number(coefficient)
        return polynomial * square * x + x

    def either(magnitude: te.PrimExpr) -> te.PrimExpr:
        far = number(1) - number(2) / (exp(magnitude + magnitude) + number(1))
        return tirx.Select(magnitude < number(0.625), shared(x * x, near), shared(far, signed))

    return shared(tirx.Select(x < number(0), -x, x), either)


def power(x: te.PrimExpr, exponent: float) -> te.PrimExpr:
    """Give x to a constant power; multiples of a quarter below 5 in size by roots and products.

    These are within 5 units in the last place in float32. The roots of minus infinity are NaN.
    """
    if not math.isfinite(exponent):
        return te.power(x, tirx.const(exponent, _dtype(x)))
    if exponent < 0:
        return tirx.const(1, _dtype(x)) / power(x, -exponent)
    return shared(x, lambda x: _positive_power(x, exponent))


def _positive_power(x: te.PrimExpr, exponent: float) -> te.PrimExpr:
    whole, quarters = int(exponent), (exponent - int(exponent)) * 4
    if quarters not in (0, 1, 2, 3) or whole > 4:
        return te.power(x, tirx.const(exponent, _dtype(x)))
    factors = [x] * whole
    if quarters >= 2:
        factors.append(te.sqrt(x))
    if quarters % 2:
        factors.append(te.sqrt(te.sqrt(x)))
    return functools.reduce(lambda a, b: a * b, factors) if factors else tirx.const(1, _dtype(x))


def _power(builder: relax.BlockBuilder, call: Any) -> Any:
    exponent = call.args[1]
    constant = np.asarray(exponent.value.numpy()) if isinstance(exponent, tvm.ir.GenericConst) else None
    if (
        constant is None
        or constant.size != 1
        or constant.ndim > len(call.args[0].ty.shape)
        or constant.dtype != np.float32
    ):
        return builder.call_te(topi.power, call.args[0], call.args[1], primfunc_name_hint="power")

    def compute(x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *i: power(x(*i), float(constant.reshape(()))), name="T_power")

    return builder.call_te(compute, call.args[0], primfunc_name_hint="power")


def _elementwise(function: Callable[[te.PrimExpr], te.PrimExpr]) -> Legalization:
    def legalize(builder: relax.BlockBuilder, call: Any) -> Any:
        def compute(x: te.Tensor) -> te.Tensor:
            return te.compute(x.shape, lambda *index: function(x(*index)), name="T_elementwise")

        name = call.op.name.rsplit(".", 1)[-1]
        return builder.call_te(compute, call.args[0], primfunc_name_hint=name)

    return legalize


def _clip(builder: relax.BlockBuilder, call: Any) -> Any:
    low, high = call.args[1], call.args[2]

    def compute(x: te.Tensor) -> te.Tensor:
        def element(*index: te.Var) -> te.PrimExpr:
            value = x(*index)
            bounds = [tvm.tirx.const(bound.value, x.dtype) for bound in (low, high)]

            def clip(x: te.PrimExpr) -> te.PrimExpr:
                return tirx.Select(x > bounds[1], bounds[1], tirx.Select(x < bounds[0], bounds[0], x))

            return shared(value, clip)

        return te.compute(x.shape, element, name="T_clip")

    return builder.call_te(compute, call.args[0], primfunc_name_hint="clip")


def _parameters(call: Any, scale: te.Tensor, zero: te.Tensor, index: Any) -> list[te.PrimExpr]:
    axis = int(call.attrs.axis)
    return [p() if len(p.shape) == 0 else p(index[axis]) for p in (scale, zero)]


def _quantize(builder: relax.BlockBuilder, call: Any) -> Any:
    """Round halves to even, as ONNX asks; TVM's own rounds them away from zero."""
    kind = str(call.attrs.out_dtype)
    low, high = (tirx.const(float(limit), "float32") for limit in (np.iinfo(kind).min, np.iinfo(kind).max))

    def compute(x: te.Tensor, scale: te.Tensor, zero: te.Tensor) -> te.Tensor:
        def at(*index: te.Var) -> te.PrimExpr:
            step, origin = _parameters(call, scale, zero, index)
            steps = te.nearbyint(x(*index) / step) + origin.astype("float32")
            return te.max(te.min(steps, high), low).astype("int32").astype(kind)

        return te.compute(x.shape, at, name="quantized")

    return builder.call_te(compute, *call.args, primfunc_name_hint="quantize")


def _dequantize(builder: relax.BlockBuilder, call: Any) -> Any:
    def compute(x: te.Tensor, scale: te.Tensor, zero: te.Tensor) -> te.Tensor:
        def at(*index: te.Var) -> te.PrimExpr:
            step, origin = _parameters(call, scale, zero, index)
            return (x(*index).astype("int32") - origin.astype("int32")).astype("float32") * step

        return te.compute(x.shape, at, name="dequantized")

    return builder.call_te(compute, *call.args, primfunc_name_hint="dequantize")


def _softmax(builder: relax.BlockBuilder, call: Any) -> Any:
    """Softmax by rows: maximum, exponentials, their sum, quotient."""
    axis = int(call.attrs.axis) % len(call.args[0].ty.shape)

    def compute(x: te.Tensor) -> te.Tensor:
        length = x.shape[axis]
        outer = [d for i, d in enumerate(x.shape) if i != axis]

        def at(index: tuple[te.Var, ...], position: te.PrimExpr) -> tuple[te.PrimExpr, ...]:
            return (*index[:axis], position, *index[axis:])

        def without(index: tuple[te.Var, ...]) -> tuple[te.Var, ...]:
            return (*index[:axis], *index[axis + 1 :])

        k = te.reduce_axis((0, length), "k")
        shape = outer or [1]
        drop = (lambda index: without(index)) if outer else (lambda index: (0,))
        highest = te.compute(
            shape, lambda *i: te.max(x(*at(i if outer else (), k)), axis=k), name="T_softmax_max"
        )
        raised = te.compute(x.shape, lambda *i: exp(x(*i) - highest(*drop(i))), name="T_softmax_exp")
        j = te.reduce_axis((0, length), "j")
        own = x.dtype
        kind = "float32" if own in accumulate.HALVES else own
        total = te.compute(
            shape,
            lambda *i: te.sum(raised(*at(i if outer else (), j)).astype(kind), axis=j),
            name="T_softmax_sum",
        )
        return te.compute(x.shape, lambda *i: raised(*i) / total(*drop(i)).astype(own), name="T_softmax_norm")

    return builder.call_te(compute, call.args[0], primfunc_name_hint="softmax")
