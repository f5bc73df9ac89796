"""Where the windows of a convolution or pooling lie."""

from __future__ import annotations

from typing import Any

from edgetune.kernels import window


class Geometry:
    """Stride, padding, dilation and output size of a convolution or pooling."""

    def __init__(self, attrs: Any, size: tuple[int, int], kernel: tuple[int, int]) -> None:
        self.size, self.kernel = size, kernel
        self.stride = pair(attrs.strides)
        self.dilation = pair(attrs.dilation)
        padding = [int(p) for p in attrs.padding]
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

    def grow_for_ceil(self) -> None:
        """Pad at the end so that the last, partial window counts (ceil_mode of ONNX pooling).

        A window that would start in the padding after the input is dropped, as ONNX says.
        """
        padding = list(self.padding)
        output = list(self.output)
        for axis in (0, 1):
            span = self.dilation[axis] * (self.kernel[axis] - 1) + 1
            total = self.size[axis] + padding[axis] + padding[axis + 2]
            count = -(-(total - span) // self.stride[axis]) + 1
            if (count - 1) * self.stride[axis] >= self.size[axis] + padding[axis]:
                count -= 1
            missing = (count - 1) * self.stride[axis] + span - total
            padding[axis + 2] += max(missing, 0)
            output[axis] = count
        self.padding = (padding[0], padding[1], padding[2], padding[3])
        self.output = (output[0], output[1])


def pair(values: Any) -> tuple[int, int]:
    """One number for both directions, or one for each."""
    numbers = [int(v) for v in values]
    return (numbers[0], numbers[-1])
