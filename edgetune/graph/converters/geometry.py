"""Strides, padding and dilation of convolutions and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import te

from edgetune.errors import UnsupportedModelError
from edgetune.graph.converters.base import Node


@dataclass(frozen=True)
class Window:
    """How a window moves over the spatial axes; every field has one entry for each of them."""

    size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    output: tuple[int, ...]

    def padded(self, x: te.Tensor, value: Any) -> te.Tensor:
        """``x`` ``[N, C, ...]`` with ``value`` around its spatial axes."""
        if not any((*self.before, *self.after)):
            return x
        sizes = [b + s + a for b, s, a in zip(self.before, self.size, self.after, strict=True)]

        def at(n: Any, c: Any, *place: Any) -> Any:
            own = [p - b for p, b in zip(place, self.before, strict=True)]
            inside = [te.all(i >= 0, i < s) for i, s in zip(own, self.size, strict=True)]
            return te.if_then_else(te.all(*inside), x(n, c, *own), value)

        return te.compute((x.shape[0], x.shape[1], *sizes), at, name="padding")

    def read(self, place: Sequence[Any], offset: Sequence[Any]) -> list[Any]:
        """Where in the padded tensor a window at ``place`` reads its element ``offset``."""
        return [p * s + k * d for p, s, k, d in zip(place, self.stride, offset, self.dilation, strict=True)]


def window(node: Node, size: Sequence[int], kernel: Sequence[int]) -> Window:
    """The window that a node's attributes describe, over an input of ``size``.

    Raises:
        UnsupportedModelError: the attributes contradict each other.
    """
    rank = len(size)
    stride = node.ints("strides", [1] * rank) or [1] * rank
    dilation = node.ints("dilations", [1] * rank) or [1] * rank
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    auto = node.text("auto_pad", "NOTSET")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        output = [-(-n // s) for n, s in zip(size, stride, strict=True)]
        total = [max((o - 1) * s + r - n, 0) for o, s, r, n in zip(output, stride, reach, size, strict=True)]
        small, large = [t // 2 for t in total], [t - t // 2 for t in total]
        before, after = (small, large) if auto == "SAME_UPPER" else (large, small)
    else:
        pads = node.ints("pads", [0] * 2 * rank) if auto == "NOTSET" else [0] * 2 * rank
        assert pads is not None
        before, after = pads[:rank], pads[rank:]
        spans = [n + b + a - r for n, b, a, r in zip(size, before, after, reach, strict=True)]
        if node.int("ceil_mode", 0):
            output = [-(-span // s) + 1 for span, s in zip(spans, stride, strict=True)]
            # A window that would start in the padding behind the input is left out.
            output = [
                o - ((o - 1) * s >= n + b) for o, s, n, b in zip(output, stride, size, before, strict=True)
            ]
        else:
            output = [span // s + 1 for span, s in zip(spans, stride, strict=True)]
    if min(output, default=1) < 1:
        raise UnsupportedModelError("the window is larger than the padded input")
    return Window(
        *(tuple(int(v) for v in values) for values in (size, kernel, stride, dilation, before, after, output))
    )
