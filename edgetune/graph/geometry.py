"""Where the windows of a convolution or pooling lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgetune.kernels import window


class Geometry:
    """Stride, padding, dilation and output size of a convolution or pooling.

    One over ``[N, C, W]`` is one over a single row.
    """

    def __init__(self, attrs: Any, size: tuple[int, int], kernel: tuple[int, int], rank: int = 4) -> None:
        self.size, self.kernel = size, kernel
        self.stride = pair(attrs.strides)
        self.dilation = pair(attrs.dilation)
        padding = [int(p) for p in attrs.padding]
        if rank == 3:
            self.stride, self.dilation = (1, self.stride[1]), (1, self.dilation[1])
            padding = [0, padding[0], 0, padding[-1]]
        top, left, bottom, right = {1: padding * 4, 2: padding * 2, 4: padding}[len(padding)]
        self.padding = (top, left, bottom, right)
        self.output = window.output_size(size, kernel, self.stride, self.padding, self.dilation)

    def arguments(self) -> tuple[Any, Any, Any, Any]:
        """Input size, stride, padding and dilation, as the kernels take them."""
        return self.size, self.stride, self.padding, self.dilation

    def transpose(self) -> None:
        """Exchange rows and columns."""
        top, left, bottom, right = self.padding
        self.padding = (left, top, right, bottom)
        self.size, self.kernel = self.size[::-1], self.kernel[::-1]
        self.stride, self.dilation = self.stride[::-1], self.dilation[::-1]
        self.output = self.output[::-1]


def image_shape(shape: Sequence[int]) -> tuple[int, int, int, int]:
    """Batch, channels, height and width of a shape ``[N, C, H, W]``, or ``[N, C, W]``, which is one row high."""
    batch, channels, *rows, width = (int(d) for d in shape)
    (height,) = rows or (1,)
    return batch, channels, height, width


def pair(values: Any) -> tuple[int, int]:
    """One number for both directions, or one for each."""
    numbers = [int(v) for v in values]
    return (numbers[0], numbers[-1])
