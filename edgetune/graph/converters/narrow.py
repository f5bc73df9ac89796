"""Casts to bfloat16, and from and to 8- and 4-bit floats and 4- and 2-bit integers, which are held in bytes.

How they are held: ``narrow_types.py``. A code becomes a number by a table of all of them. A number becomes a code by
counting the limits between the numbers that have one: rounding to nearest, halves to even, is in the limits.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
from tvm import relax, te, tirx

from edgetune.dtypes import BFLOAT16
from edgetune.errors import UnsupportedModelError
from edgetune.graph.converters.base import Node, const, converter, dtype

Array = np.ndarray[Any, Any]

_SCALES = "float8_e8m0fnu"
"""Powers of two without a sign: the code is float32's exponent."""


def is_float(kind: str) -> bool:
    """Whether a narrow type is a float, held by its code; integers are held by their value."""
    return kind.startswith("float")


def limits_of(kind: str) -> tuple[int, int]:
    """The smallest and the largest number of a narrow integer type."""
    limits = ml_dtypes.iinfo(kind)
    return int(limits.min), int(limits.max)


def decoded(node: Node, codes: Any, kind: str) -> Any:
    """The numbers that codes stand for, in float32."""
    bits = 4 if kind.startswith("float4") else 8
    table = np.arange(2**bits, dtype=np.uint8).view(np.dtype(getattr(ml_dtypes, kind))).astype(np.float32)

    def kernel(codes: te.Tensor, table: te.Tensor) -> te.Tensor:
        mask = tirx.const(2**bits - 1, "int32")
        return te.compute(codes.shape, lambda *i: table(codes(*i).astype("int32") & mask), name="decoded")

    return node.te(kernel, codes, const(table), name="decode")


def encoded(node: Node, x: Any, kind: str, saturate: bool, rounding: str = "up") -> Any:
    """Codes of the nearest numbers to a float32 tensor; beyond the largest one that one, or infinity or NaN."""
    if kind == _SCALES:
        return _encoded_scales(node, x, saturate, rounding)
    limits, beyond, nan, sign = _limits(kind, saturate)

    def kernel(x: te.Tensor, limits: te.Tensor) -> te.Tensor:
        k = te.reduce_axis((0, limits.shape[0]), "k")

        def passed(*index: Any) -> Any:
            return te.sum(te.if_then_else(te.abs(x(*index)) >= limits(k), 1, 0), axis=k)

        counts = te.compute(x.shape, passed, name="counts")

        def code(*index: Any) -> Any:
            value, count = x(*index), counts(*index)
            if beyond is not None:
                last = tirx.const(int(limits.shape[0]), "int32")
                count = tirx.Select(count >= last, tirx.const(beyond, "int32"), count)
            negative = tirx.reinterpret("int32", value) < tirx.const(0, "int32")
            if "fnuz" in kind:
                # Zero and NaN have no sign there.
                negative = tirx.all(negative, count > 0, count != tirx.const(nan, "int32"))
            count = tirx.Select(negative, count | tirx.const(sign, "int32"), count)
            return tirx.Select(tirx.isnan(value), tirx.const(nan, "int32"), count).astype("uint8")

        return te.compute(x.shape, code, name="encoded")

    return node.te(kernel, x, const(limits), name="encode")


def _limits(kind: str, saturate: bool) -> tuple[Array, int | None, int, int]:
    """From which magnitude on each code but the first holds; the code beyond all; NaN's code; the sign's bit."""
    own = np.dtype(getattr(ml_dtypes, kind))
    sign = 8 if kind.startswith("float4") else 128
    values = np.arange(sign, dtype=np.uint8).view(own).astype(np.float64)
    values = values[np.isfinite(values)]
    past = not (saturate or kind.startswith("float4"))
    if past:
        values = np.append(values, 2 * values[-1] - values[-2])
    middles = ((values[1:] + values[:-1]) / 2).astype(np.float32)
    # A half goes to the even code: to the lower one where that is even.
    lower_is_even = np.arange(len(middles)) % 2 == 0
    limits = np.where(lower_is_even, np.nextafter(middles, np.float32(np.inf)), middles)
    with np.errstate(all="ignore"):
        nan = int(np.array(np.nan, np.float32).astype(own).view(np.uint8))
        infinity = int(np.array(np.inf, np.float32).astype(own).view(np.uint8))
    return limits.astype(np.float32), infinity if past else None, nan, sign


def _encoded_scales(node: Node, x: Any, saturate: bool, rounding: str) -> Any:
    """float32's exponents, rounded by the mantissa as ONNX Runtime does it: a half goes up.

    There is no zero, and no sign: what is below the smallest scale becomes that one, or NaN without saturation, and
    what is above the largest likewise.
    """
    if rounding not in ("up", "down", "nearest"):
        raise UnsupportedModelError(f"the rounding {rounding!r} is not one of the standard's")

    def number(value: int) -> Any:
        return tirx.const(value, "int32")

    def kernel(x: te.Tensor) -> te.Tensor:
        def code(*index: Any) -> Any:
            bits = tirx.reinterpret("int32", x(*index))
            exponent, fraction = (bits >> number(23)) & number(255), bits & number(0x7FFFFF)
            # The smallest scale is no normal number of float32: its one stands in the mantissa.
            small = exponent == number(0)
            rest = tirx.Select(small, fraction - number(0x400000), fraction)
            least = {
                "up": number(1),
                "down": number(1 << 30),
                "nearest": tirx.Select(small, number(0x200000), number(0x400000)),
            }[rounding]
            scale = exponent + tirx.Select(rest >= least, number(1), number(0))
            below, above = (0, 254) if saturate else (255, 255)
            beyond = tirx.any(
                exponent == number(255), tirx.all(exponent == number(254), fraction > number(0))
            )
            scale = tirx.Select(beyond, number(above), scale)
            scale = tirx.Select(tirx.any(bits < number(0), rest < number(0)), number(below), scale)
            return tirx.Select(tirx.isnan(x(*index)), number(255), scale).astype("uint8")

        return te.compute(x.shape, code, name="encoded")

    return node.te(kernel, x, name="encode")


def wrapped(node: Node, x: Any, kind: str) -> Any:
    """A tensor as narrow integers, of which the lowest bits are kept.

    Of a float it is the nearest integer, halves away from zero, and 0 of what 32 bits do not hold: the standard leaves
    both open, and ONNX Runtime does so.
    """
    low, high = limits_of(kind)
    bits, signed = (high - low).bit_length(), low < 0
    shift, mask = tirx.const(32 - bits, "int32"), tirx.const(high, "int32")

    def kernel(x: te.Tensor) -> te.Tensor:
        def at(*index: Any) -> Any:
            value = x(*index)
            whole = _nearest(value) if "float" in value.ty.dtype else value.astype("int32")
            if signed:
                return ((whole << shift) >> shift).astype("int8")
            return (whole & mask).astype("uint8")

        return te.compute(x.shape, at, name="wrapped")

    return node.te(kernel, x, name="wrap")


def _nearest(value: Any) -> Any:
    """The integer nearest to a float32 or float64, halves away from zero; 0 for what int32 does not hold, and NaN."""
    kind = value.ty.dtype
    cut = te.trunc(value)
    away = tirx.Select(value < tirx.const(0, kind), tirx.const(-1, kind), tirx.const(1, kind))
    whole = tirx.Select(te.abs(value - cut) >= tirx.const(0.5, kind), cut + away, cut)
    fits = te.abs(whole) < tirx.const(2.0**31, kind)
    return tirx.Select(fits, whole, tirx.const(0, kind)).astype("int32")


def cast(node: Node) -> Any:
    """Cast from or to a type that is held in bytes."""
    x, source, target = node.needed(0), node.text("source", ""), node.text("target", "")
    if source and is_float(source):
        x = decoded(node, x, source)
    if not target:
        kind = str(onnx.helper.tensor_dtype_to_np_dtype(int(node.attributes["to"])))
        return x if dtype(x) == kind else relax.op.astype(x, kind)
    if not is_float(target):
        if dtype(x) in ("float16", "bfloat16"):
            x = node.emit(relax.op.astype(x, "float32"))
        return wrapped(node, x, target)
    if dtype(x) != "float32":
        if dtype(x) == "float64":
            raise UnsupportedModelError(
                f"a cast from float64 to {target} is not implemented: cast to float32 first"
            )
        x = node.emit(relax.op.astype(x, "float32"))
    return encoded(node, x, target, bool(node.int("saturate", 1)), node.text("round_mode", "up"))


def _cast_by(operator: str) -> type:
    """Cast or CastLike between types that TVM has."""

    def convert(node: Node) -> Any:
        x = node.needed(0)
        if operator == "Cast":
            target = onnx.helper.tensor_dtype_to_np_dtype(node.int("to", 0)).name
        else:
            target = dtype(node.needed(1))
        if dtype(x) == BFLOAT16 and "int" in target:
            # TVM asks of floats that become integers whether they are finite, and cannot of bfloat16.
            x = node.emit(relax.op.astype(x, "float32"))
        if target != BFLOAT16 or dtype(x) == BFLOAT16:
            return node.by_importer(operator, [x, *node.inputs[1:]], node.attributes)
        if dtype(x) != "float32":
            x = node.emit(relax.op.astype(x, "float32"))
        return relax.op.astype(_rounded_to_bfloat16(node, x), BFLOAT16)

    return converter(convert)


def _rounded_to_bfloat16(node: Node, x: Any) -> Any:
    """float32 numbers that bfloat16 has: the nearest, halves to even.

    TVM rounds where it stores, and within one kernel it keeps float32 in place of bfloat16.
    """

    def number(value: int) -> Any:
        return tirx.const(value, "uint32")

    def kernel(x: te.Tensor) -> te.Tensor:
        def at(*index: Any) -> Any:
            bits = tirx.reinterpret("uint32", x(*index))
            rounded = bits + number(0x7FFF) + ((bits >> number(16)) & number(1))
            quiet = bits | number(0x400000)
            kept = tirx.Select(tirx.isnan(x(*index)), quiet, rounded) & number(0xFFFF0000)
            return tirx.reinterpret("float32", kept)

        return te.compute(x.shape, at, name="rounded")

    return node.te(kernel, x, name="round_to_bfloat16")


CONVERTERS: dict[str, type] = {
    "Cast": _cast_by("Cast"),
    "CastLike": _cast_by("CastLike"),
    "edgetune.Cast": converter(cast),
}
