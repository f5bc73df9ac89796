"""Channel shuffles folded into what reads them (Zhang et al., "ShuffleNet", CVPR 2018).

A shuffle (reshape, transpose, reshape) between two grouped convolutions moves channels from each group into every
other one. A pointwise convolution reads its input channel by channel, in any order as fast; a depthwise
convolution and arithmetic with constants by channel do not care about order. So the channels stay where
the first convolution wrote them, the constants in between change places, and the last convolution looks for
its channels there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax

from edgetune.graph.blocked import BlockedValue, Rewriter, same_padding
from edgetune.graph.geometry import Geometry
from edgetune.graph.packing import block_channels, const, shape_of
from edgetune.kernels import products, window

_UNARY = ("relax.nn.relu", "relax.clip")
_BINARY = ("relax.add", "relax.multiply")


@dataclass(frozen=True)
class _Shuffle:
    """What is shuffled: a blocked value whose channels lie in ``groups`` groups."""

    value: BlockedValue
    groups: int

    def stored(self, array: np.ndarray) -> np.ndarray:
        """Constants by shuffled channel (the first axis), in the order in which the channels lie."""
        places = np.arange(len(array)).reshape(-1, self.groups).T.reshape(-1)
        return array[places]


def convolve_shuffled(rewriter: Rewriter, call: Any, weight: np.ndarray, geometry: Geometry) -> Any:
    """A grouped pointwise convolution of shuffled channels ``[N, O/b, H*W, b]``; None where it is not one.

    ``weight`` is ``[O, I, 1, 1]``.
    """
    groups = int(call.attrs.groups)
    if geometry.kernel != (1, 1) or geometry.stride != (1, 1) or any(geometry.padding):
        return None
    found = _between(rewriter, call.args[0])
    if found is None:
        return None
    steps, shuffle = found
    value = shuffle.value
    for step in reversed(steps):
        value = _repeat(rewriter, step, value, shuffle)
    blocked = block_channels(weight[:, :, 0, 0], groups, rewriter.lanes)
    return rewriter.emit_te(
        products.pointwise_shuffled,
        value.expr,
        const(blocked.transpose(0, 2, 1)[:, None, None, None]),
        groups,
        shuffle.groups,
        name="conv2d",
    )


def _between(rewriter: Rewriter, expr: Any) -> tuple[list[Any], _Shuffle] | None:
    """The operators from a shuffle to an expression, last first, one of them a depthwise convolution."""
    steps: list[Any] = []
    while True:
        shuffle = _shuffle(rewriter, expr)
        if shuffle is not None:
            return steps, shuffle
        call = rewriter.definition(expr)
        if call is None or not _ignores_order(rewriter, call):
            return None
        steps.append(call)
        expr = call.args[0]


def _ignores_order(rewriter: Rewriter, call: Any) -> bool:
    """Whether an operator computes each channel by itself."""
    if call.op.name in _UNARY:
        return True
    constant = rewriter.constant(call.args[1]) if len(call.args) > 1 else None
    if constant is None:
        return False
    channels = shape_of(call)[1]
    if call.op.name in _BINARY:
        return constant.size == 1 or constant.shape == (1, channels, 1, 1)
    return (
        call.op.name == "relax.nn.conv2d" and int(call.attrs.groups) == channels == shape_of(call.args[0])[1]
    )


def _shuffle(rewriter: Rewriter, expr: Any) -> _Shuffle | None:
    """The shuffle whose result an expression is."""
    last = rewriter.definition(expr)
    middle = (
        rewriter.definition(last.args[0]) if last is not None and last.op.name == "relax.reshape" else None
    )
    if middle is None or middle.op.name != "relax.permute_dims" or middle.attrs.axes is None:
        return None
    first = rewriter.definition(middle.args[0])
    if (
        first is None
        or first.op.name != "relax.reshape"
        or [int(a) for a in middle.attrs.axes] != [0, 2, 1, 3, 4]
    ):
        return None
    source, whole = first.args[0], shape_of(first.args[0])
    _, groups, *_ = split = shape_of(first)
    if whole != shape_of(expr) or split != (whole[0], groups, whole[1] // groups, *whole[2:]):
        return None
    value = rewriter.blocked_or_none(source)
    if value is None or not same_padding(value, groups, rewriter.lanes):
        return None
    return _Shuffle(value, groups)


def _repeat(rewriter: Rewriter, call: Any, value: BlockedValue, shuffle: _Shuffle) -> BlockedValue:
    """An operator applied to channels where they lie."""
    if call.op.name == "relax.nn.conv2d":
        weight = rewriter.constant(call.args[1])
        assert weight is not None
        geometry = Geometry(call.attrs, (value.height, value.width), weight.shape[2:])
        packed = block_channels(shuffle.stored(weight[:, 0]), value.groups, rewriter.lanes)
        expr = rewriter.emit_te(
            window.depthwise,
            value.expr,
            const(packed.transpose(0, 2, 3, 1)),
            *geometry.arguments(),
            name="depthwise_conv2d",
        )
        return BlockedValue(expr, value.channels, *geometry.output, value.groups)
    arguments = [value.expr, *call.args[1:]]
    constant = rewriter.constant(call.args[1]) if call.op.name in _BINARY else None
    if constant is not None and constant.size == 1:
        arguments[1] = relax.const(constant.reshape(()), str(constant.dtype))
    elif constant is not None:
        packed = block_channels(shuffle.stored(constant.reshape(-1)), value.groups, rewriter.lanes)
        arguments[1] = const(packed[None, :, None, :])
    return value.like(rewriter.emit(tvm.ir.Call(call.op, arguments, call.attrs, call.ty_args)))
