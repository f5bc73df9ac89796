"""QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear, and the arithmetic that all quantised operators share.

Rounding is to nearest, halves to even; values outside the integer type saturate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from tvm import relax, te, tirx

from edgetune.errors import UnsupportedModelError
from edgetune.graph.converters import narrow as narrow_types
from edgetune.graph.converters.base import Node, const, constant, converter, dtype, positive_axis, shape

QUANTIZED = ("uint8", "int8", "uint16", "int16")
"""The integer types that values are quantised to here."""


def saturate(value: Any, kind: str, limits: tuple[int, int] | None = None) -> Any:
    """A floating-point expression rounded, halves to even, and clamped to an integer type, or to ``limits`` within."""
    own = str(value.ty.dtype)
    low, high = limits or (np.iinfo(kind).min, np.iinfo(kind).max)
    bounded = te.max(te.min(te.nearbyint(value), tirx.const(float(high), own)), tirx.const(float(low), own))
    return bounded.astype("int32").astype(kind)


def quantized(value: Any, scale: Any, zero: Any, kind: str, limits: tuple[int, int] | None = None) -> Any:
    """round(value / scale) + zero, clamped as by :func:`saturate`; ``zero`` is an integer expression or None."""
    own = str(value.ty.dtype)
    steps = te.nearbyint(value / scale)
    return saturate(steps if zero is None else steps + zero.astype(own), kind, limits)


def dequantized(value: Any, scale: Any, zero: Any) -> Any:
    """(value - zero) * scale in float32; ``zero`` may be None."""
    steps = value.astype("int32")
    if zero is not None:
        steps = steps - zero.astype("int32")
    return steps.astype("float32") * scale.astype("float32")


def scalar(tensor: te.Tensor) -> Any:
    """The one value of a tensor of one element."""
    return tensor(*[0] * len(tensor.shape))


def parameter(tensor: te.Tensor, index: Sequence[Any], axis: int, block: int) -> Any:
    """A scale or zero point at ``index``: one for all, one along ``axis``, or one for each block along it."""
    if block:
        return tensor(*(i // block if a == axis else i for a, i in enumerate(index)))
    if all(int(size) == 1 for size in tensor.shape):
        return scalar(tensor)
    return tensor(index[axis])


def _axis(node: Node, operand: Any) -> int:
    rank, axis = len(shape(operand)), node.int("axis", 1)
    if rank <= 1 and axis == 1:
        axis = 0
    if np.prod(shape(node.needed(1))) == 1 and not node.int("block_size", 0):
        return 0
    return positive_axis(axis, rank)


def _check_parameters(node: Node, operand: Any, axis: int) -> None:
    sizes, block = shape(node.needed(1)), node.int("block_size", 0)
    if block:
        whole = tuple(-(-s // block) if a == axis else s for a, s in enumerate(shape(operand)))
        if sizes != whole:
            raise UnsupportedModelError(f"a scale of shape {list(sizes)} does not fit blocks of {block}")
    elif np.prod(sizes) != 1 and (len(sizes) != 1 or sizes[0] != shape(operand)[axis]):
        raise UnsupportedModelError(f"a scale of shape {list(sizes)} does not fit axis {axis}")


def element_type(code: int) -> str:
    """NumPy's name of an ONNX element type."""
    return str(onnx.helper.tensor_dtype_to_np_dtype(code))


def quantize_linear(node: Node) -> Any:
    """QuantizeLinear: of a tensor, along an axis, or in blocks."""
    x, scale, zero = node.needed(0), node.needed(1), node.input(2)
    code, narrow = node.int("output_dtype", 0), node.text("narrow", "")
    limits = None
    if narrow:
        if narrow_types.is_float(narrow):
            return _quantize_to_float(node, narrow)
        limits = narrow_types.limits_of(narrow)
        kind = "int8" if limits[0] < 0 else "uint8"
    else:
        kind = dtype(zero) if zero is not None else element_type(code) if code else "uint8"
    if kind not in QUANTIZED:
        raise UnsupportedModelError(f"quantising to {kind} is not implemented")
    if dtype(x) not in ("float32", "float16", "int32"):
        raise UnsupportedModelError(f"quantising {dtype(x)} is not implemented")
    axis, block = _axis(node, x), node.int("block_size", 0)
    _check_parameters(node, x, axis)
    if not narrow and dtype(x) == "float32" and _is_operator(node, kind):
        return quantize_operator(node, x, scale, zero if zero is not None else default_zero(kind), axis)

    def quantize(x: te.Tensor, scale: te.Tensor, *zero: te.Tensor) -> te.Tensor:
        def at(*index: Any) -> Any:
            steps = parameter(scale, index, axis, block).astype("float32")
            origin = parameter(zero[0], index, axis, block) if zero else None
            return quantized(x(*index).astype("float32"), steps, origin, kind, limits)

        return te.compute(x.shape, at, name="quantized")

    return node.te(quantize, x, scale, *([] if zero is None else [zero]), name="quantize")


def _is_operator(node: Node, kind: str) -> bool:
    """Whether Relax's own operators say it: bytes (or a bias) of constant scale and zero point, not in blocks."""
    given = [node.input(index) for index in (1, 2) if node.input(index) is not None]
    return (
        kind in ("uint8", "int8", "int32")
        and not node.int("block_size", 0)
        and all(constant(value) is not None for value in given)
        and dtype(node.needed(1)) == "float32"
    )


def quantize_operator(node: Node, x: Any, scale: Any, zero: Any, axis: int) -> Any:
    """Relax's quantize, which the rules for quantised models know (``graph.quantized``)."""
    return node.emit(relax.op.quantize(x, _flat(scale), _flat(zero), axis, dtype(zero)))


def dequantize_operator(node: Node, x: Any, scale: Any, zero: Any, axis: int) -> Any:
    """Relax's dequantize to float32, likewise."""
    return node.emit(relax.op.dequantize(x, _flat(scale), _flat(zero), axis, "float32"))


def _flat(value: Any) -> Any:
    """A constant of one element as a scalar; others as they are."""
    array = constant(value)
    return const(array.reshape(())) if array is not None and array.size == 1 else value


def _quantize_to_float(node: Node, kind: str) -> Any:
    """To an 8- or 4-bit float, which has no zero point but zero."""
    x, scale = node.needed(0), node.needed(1)
    axis, block = _axis(node, x), node.int("block_size", 0)
    _check_parameters(node, x, axis)

    def scaled(x: te.Tensor, scale: te.Tensor) -> te.Tensor:
        def at(*index: Any) -> Any:
            return x(*index).astype("float32") / parameter(scale, index, axis, block).astype("float32")

        return te.compute(x.shape, at, name="scaled")

    steps = node.te(scaled, x, scale, name="scale")
    return narrow_types.encoded(node, steps, kind, bool(node.int("saturate", 1)))


def dequantize_linear(node: Node) -> Any:
    """DequantizeLinear: of a tensor, along an axis, or in blocks."""
    x, scale, zero = node.needed(0), node.needed(1), node.input(2)
    narrow = node.text("narrow", "")
    if narrow and narrow_types.is_float(narrow):
        x, zero = narrow_types.decoded(node, x, narrow), None
    elif dtype(x) not in (*QUANTIZED, "int32"):
        raise UnsupportedModelError(f"dequantising {dtype(x)} is not implemented")
    code = node.int("output_dtype", 0)
    kind = element_type(code) if code else dtype(scale)
    if kind not in ("float32", "float16"):
        raise UnsupportedModelError(f"dequantising to {kind} is not implemented")
    axis, block = _axis(node, x), node.int("block_size", 0)
    _check_parameters(node, x, axis)
    if not narrow and kind == "float32" and _is_operator(node, dtype(x)):
        return dequantize_operator(node, x, scale, zero if zero is not None else default_zero(dtype(x)), axis)

    decoded = dtype(x) == "float32"

    def dequantize(x: te.Tensor, scale: te.Tensor, *zero: te.Tensor) -> te.Tensor:
        def at(*index: Any) -> Any:
            origin = parameter(zero[0], index, axis, block) if zero else None
            step = parameter(scale, index, axis, block)
            if decoded:
                return (x(*index) * step.astype("float32")).astype(kind)
            return dequantized(x(*index), step, origin).astype(kind)

        return te.compute(x.shape, at, name="dequantized")

    return node.te(dequantize, x, scale, *([] if zero is None else [zero]), name="dequantize")


def dynamic(node: Node, x: Any) -> tuple[Any, Any, Any]:
    """``x`` quantised to uint8 over its own range, with the scale and zero point (both of shape [])."""
    low, high = node.emit(relax.op.min(x)), node.emit(relax.op.max(x))

    def scale_of(low: te.Tensor, high: te.Tensor) -> te.Tensor:
        def step() -> Any:
            zero = tirx.const(0, "float32")
            spread = te.max(high(), zero) - te.min(low(), zero)
            # A tensor of zeros has no range; ONNX Runtime takes a scale of one.
            one = tirx.const(1, "float32")
            return tirx.Select(spread > zero, spread / tirx.const(255, "float32"), one)

        return te.compute((), step, name="scale")

    def zero_of(low: te.Tensor, scale: te.Tensor) -> te.Tensor:
        def origin() -> Any:
            zero = tirx.const(0, "float32")
            return saturate((zero - te.min(low(), zero)) / scale(), "uint8")

        return te.compute((), origin, name="zero_point")

    scale = node.te(scale_of, low, high, name="dynamic_scale")
    zero = node.te(zero_of, low, scale, name="dynamic_zero_point")

    def quantize(x: te.Tensor, scale: te.Tensor, zero: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *i: quantized(x(*i), scale(), zero(), "uint8"), name="quantized")

    return node.te(quantize, x, scale, zero, name="dynamic_quantize"), scale, zero


def dynamic_quantize_linear(node: Node) -> Any:
    """DynamicQuantizeLinear; outputs the tensor, its scale, its zero point."""
    return list(dynamic(node, node.needed(0)))


def zero_or_none(value: Any) -> Any:
    """A zero point, or None where it was left out or is known to be zero."""
    known = None if value is None else getattr(value, "value", None)
    if value is None or (known is not None and not np.any(known.numpy())):
        return None
    return value


def default_zero(kind: str = "uint8") -> Any:
    """The zero point of an operand without one, which also says its type."""
    return const(np.zeros((), kind))


CONVERTERS: dict[str, type] = {
    **{
        f"{domain}{name}": converter(convert)
        for domain in ("", "com.microsoft.")
        for name, convert in (("QuantizeLinear", quantize_linear), ("DequantizeLinear", dequantize_linear))
    },
    "DynamicQuantizeLinear": converter(dynamic_quantize_linear),
}
