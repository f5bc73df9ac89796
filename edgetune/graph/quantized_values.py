"""Quantised tensors while a model is rewritten: what they stand for, and the float forms that are made on demand."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import te

from edgetune.graph.blocked import BlockedValue, Rewriter
from edgetune.graph.packing import block_channels, const
from edgetune.graph.rules import joined

_INJECTIVE = 2
"""Relax's fusion pattern (``OpPatternKind``) of what is fused with what follows only."""


class Deferred(BlockedValue):
    """A blocked float tensor that is emitted anew wherever it is read, so that each reader computes it by itself."""

    make: Callable[[], Any]

    def __init__(self, make: Callable[[], Any], channels: int, height: int, width: int, groups: int) -> None:
        for name, value in (("channels", channels), ("height", height), ("width", width), ("groups", groups)):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "make", make)

    @property
    def expr(self) -> Any:
        """The float tensor."""
        return self.make()

    def like(self, expr: Any) -> BlockedValue:
        """Another tensor in the same form."""
        return BlockedValue(expr, self.channels, self.height, self.width, self.groups)


class Sums(Deferred):
    """The sums of a convolution: ``(total + bias) * factor``, at least zero where ``floor``.

    ``total`` is int32, or float32 that holds integers exactly; ``bias`` and ``factor`` go by output channel.
    """

    rewriter: Rewriter
    total: BlockedValue
    bias: np.ndarray
    factor: np.ndarray
    floor: bool

    def __init__(
        self,
        rewriter: Rewriter,
        total: BlockedValue,
        bias: np.ndarray,
        factor: np.ndarray,
        floor: bool = False,
    ) -> None:
        super().__init__(self._scaled, total.channels, total.height, total.width, total.groups)
        for name, value in (
            ("rewriter", rewriter), ("total", total), ("bias", bias), ("factor", factor), ("floor", floor),
        ):  # fmt: skip
            object.__setattr__(self, name, value)

    def _scaled(self) -> Any:
        floor = self.floor

        def scale(*given: te.Tensor) -> te.Tensor:
            def at(*index: Any) -> Any:
                value = summed(given, index)
                return te.max(value, tvm.tirx.const(0, "float32")) if floor else value

            return te.compute(given[0].shape, at, name="scaled")

        return self.rewriter.emit_te(scale, *self.operands(self.factor), name="scale")

    def operands(self, factor: np.ndarray) -> list[Any]:
        """Total, bias and factor as the epilogues take them."""
        bias = self.bias.astype(str(self.total.expr.ty.dtype))
        lanes, groups = self.rewriter.lanes, self.groups
        packed = [const(block_channels(a, groups, lanes)[None, :, None]) for a in (bias, factor)]
        return [self.total.expr, *packed]


def summed(given: Sequence[te.Tensor], index: Sequence[Any]) -> Any:
    """The float32 that sums stand for, of their total, bias and factor."""
    total, bias, factor = given
    n, o, f, i = index
    return (total[n, o, f, i] + bias[0, o, 0, i]).astype("float32") * factor[0, o, 0, i]


@dataclass(frozen=True)
class Quantised:
    """An integer tensor and what it stands for: ``(values - zero) * scale``, both of one element."""

    values: Any
    scale: np.float32
    zero: int


@dataclass(frozen=True)
class Weights:
    """Constant weights less their zero point, and their scales along an axis, or one scale."""

    values: np.ndarray
    scale: np.ndarray
    axis: int

    def by_output(self, axis: int) -> np.ndarray | None:
        """A scale for each output channel, if they go by those."""
        count = self.values.shape[axis]
        if self.scale.size == 1:
            return np.full(count, self.scale.reshape(()), np.float32)
        return self.scale if self.axis == axis else None


def rounded(value: Any, zero: float, bounds: tuple[float, float], kind: str) -> Any:
    """round(value) + zero, halves to even, within bounds."""
    low, high, origin = (tvm.tirx.const(number, "float32") for number in (*bounds, zero))
    steps = te.nearbyint(value) + origin
    return te.max(te.min(steps, high), low).astype("int32").astype(kind)


def quantize(x: te.Tensor, scale: float, zero: float, bounds: tuple[float, float], kind: str) -> te.Tensor:
    """round(x / scale) + zero, halves to even, within bounds."""
    step = tvm.tirx.const(scale, "float32")
    return te.compute(x.shape, lambda *i: rounded(x(*i) / step, zero, bounds, kind), name="quantized")


def dequantize(x: te.Tensor, scale: float, zero: int) -> te.Tensor:
    """(x - zero) * scale; the difference is exact in float32."""
    step, origin = tvm.tirx.const(scale, "float32"), tvm.tirx.const(float(zero), "float32")
    return te.compute(x.shape, lambda *i: (x(*i).astype("float32") - origin) * step, name="dequantized")


class Dequantized(Deferred):
    """``(values - zero) * scale`` of blocked bytes."""

    values: BlockedValue
    scale: float
    zero: int

    def __init__(self, rewriter: Rewriter, values: BlockedValue, scale: float, zero: int) -> None:
        def make() -> Any:
            return rewriter.emit_te(
                functools.partial(dequantize, scale=self.scale, zero=self.zero), values.expr,
                name="dequantize", primfunc_attrs={"op_pattern": _INJECTIVE},
            )  # fmt: skip

        super().__init__(make, values.channels, values.height, values.width, values.groups)
        for name, value in (("values", values), ("scale", float(scale)), ("zero", int(zero))):
            object.__setattr__(self, name, value)

    def read(self, values: te.Tensor) -> Callable[..., Any]:
        """The float at an index of the values."""
        step, origin = tvm.tirx.const(self.scale, "float32"), tvm.tirx.const(float(self.zero), "float32")
        return lambda *index: (values(*index).astype("float32") - origin) * step


def requantized(rewriter: Rewriter, value: Dequantized, scale: float, zero: float, kind: str) -> BlockedValue:
    """Bytes of one scale as bytes of another: what dequantising and quantising give, in one multiplication.

    All that can come in is known, 256 values; where a product by the quotient of the scales gives the same for each,
    it replaces the product and the quotient, and where nothing changes there is no kernel.
    """
    given, taken = np.iinfo(str(value.values.expr.ty.dtype)), np.iinfo(kind)
    bounds = float(taken.min), float(taken.max)
    steps = np.arange(given.min, given.max + 1).astype(np.float32) - np.float32(value.zero)

    def of(quotients: np.ndarray) -> np.ndarray:
        return np.clip(np.rint(quotients) + np.float32(zero), *bounds)

    with np.errstate(all="ignore"):
        wanted = of(steps * np.float32(value.scale) / np.float32(scale))
        factor = np.float32(value.scale) / np.float32(scale)
        is_product = np.array_equal(of(steps * factor), wanted)
    if given.dtype == taken.dtype and np.array_equal(wanted, np.arange(given.min, given.max + 1)):
        return value.values

    def requantize(x: te.Tensor) -> te.Tensor:
        origin, product, step = (
            tvm.tirx.const(float(number), "float32") for number in (value.zero, factor, scale)
        )

        def at(*index: Any) -> Any:
            if is_product:
                quotient = (x(*index).astype("float32") - origin) * product
            else:
                quotient = value.read(x)(*index) / step
            return rounded(quotient, zero, bounds, kind)

        return te.compute(x.shape, at, name="requantized")

    return value.like(rewriter.emit_te(requantize, value.values.expr, name="requantize"))


class Joined(Deferred):
    """The channels of several tensors one after the other, none of them padded; joined where that is asked for."""

    parts: tuple[BlockedValue, ...]

    def __init__(self, rewriter: Rewriter, parts: Sequence[BlockedValue]) -> None:
        make = functools.cache(lambda: joined(rewriter, parts))
        super().__init__(make, sum(part.channels for part in parts), parts[0].height, parts[0].width, 1)
        object.__setattr__(self, "parts", tuple(parts))
