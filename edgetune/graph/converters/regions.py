"""Operators that read images at places given by other tensors: RoiAlign, DeformConv."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import te, tirx

from edgetune.errors import UnsupportedModelError
from edgetune.graph.converters.base import Node, const, converter, dtype, shape
from edgetune.graph.converters.geometry import window


def roi_align(node: Node) -> Any:
    """RoiAlign; the mode ``max`` by a kernel of ours.

    The standard's maximum is over the four weighted neighbours of each sample, not over interpolated samples (its
    reference implementation, which ONNX Runtime follows).
    """
    if node.text("mode", "avg") != "max":
        return node.by_importer("RoiAlign", list(node.inputs), node.attributes)
    x, rois, batches = (node.needed(i) for i in range(3))
    samples = node.int("sampling_ratio", 0)
    if samples < 1:
        raise UnsupportedModelError("RoiAlign of mode max needs a sampling_ratio of at least 1")
    if dtype(x) not in ("float32", "float64"):
        raise UnsupportedModelError(f"RoiAlign of mode max is not implemented for {dtype(x)}")
    default = "half_pixel" if node.opset >= 16 else "output_half_pixel"
    half_pixel = node.text("coordinate_transformation_mode", default) == "half_pixel"
    scale, kind = node.float("spatial_scale", 1.0), dtype(x)
    pooled = node.int("output_height", 1), node.int("output_width", 1)
    _, channels, *size = shape(x)

    def number(value: float) -> Any:
        return tirx.const(value, kind)

    def places(rois: te.Tensor, n: Any, axis: int, bin_: Any, sample: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Lower and upper neighbour of a sample along an axis, their weights, and whether it counts."""
        edges = [
            rois(n, 1 - axis + 2 * end) * number(scale) - number(0.5 if half_pixel else 0.0) for end in (0, 1)
        ]
        length = edges[1] - edges[0]
        if not half_pixel:
            length = te.max(length, number(1.0))
        step = length / number(pooled[axis])
        at = edges[0] + bin_.astype(kind) * step
        at = at + (sample.astype(kind) + number(0.5)) * step / number(samples)
        counts = te.all(at >= number(-1.0), at <= number(size[axis]))
        at = te.max(te.min(at, number(size[axis] - 1)), number(0.0))
        low = te.floor(at).astype("int32")
        high = te.min(low + 1, tirx.const(size[axis] - 1, "int32"))
        upper = at - low.astype(kind)
        return low, high, number(1.0) - upper, upper, counts

    def kernel(x: te.Tensor, rois: te.Tensor, batches: te.Tensor) -> te.Tensor:
        ky, kx = te.reduce_axis((0, samples), "ky"), te.reduce_axis((0, samples), "kx")

        def value(n: Any, c: Any, row: Any, column: Any) -> Any:
            top, bottom, up, down, y_counts = places(rois, n, 0, row, ky)
            left, right, near, far, x_counts = places(rois, n, 1, column, kx)
            batch = batches(n).astype("int32")
            corners = [
                (wy * wx) * x(batch, c, y, at)
                for y, wy in ((top, up), (bottom, down))
                for at, wx in ((left, near), (right, far))
            ]
            largest = te.max(te.max(corners[0], corners[1]), te.max(corners[2], corners[3]))
            counted = tirx.Select(te.all(y_counts, x_counts), largest, number(0.0))
            return te.max(counted, axis=[ky, kx])

        return te.compute((shape(node.needed(1))[0], channels, *pooled), value, name="roi_align")

    return node.te(kernel, x, rois, batches, name="roi_align")


def deform_conv(node: Node) -> Any:
    """DeformConv over two spatial axes: convolution whose every tap is moved by an offset, and weighted by a mask."""
    x, w, offsets, bias, mask = (node.input(i) for i in range(5))
    if len(shape(x)) != 4 or dtype(x) not in ("float32", "float64"):
        raise UnsupportedModelError("DeformConv is implemented for images of float32 and float64")
    _, channels, *size = shape(x)
    outputs, depth, *taps = shape(w)
    place, kind = window(node, size, taps), dtype(x)
    per_group, per_offset = outputs // node.int("group", 1), channels // node.int("offset_group", 1)
    area = taps[0] * taps[1]
    if mask is None:
        mask = const(np.ones((1, 1, 1, 1), kind))
    if bias is None:
        bias = const(np.zeros(outputs, kind))
    whole = len(shape(mask)) == 4 and shape(mask)[1] == 1 and shape(mask)[2:] == (1, 1)

    def sampled(x: te.Tensor, offsets: te.Tensor, mask: te.Tensor) -> te.Tensor:
        """``[N, C, KH, KW, OH, OW]``: what each tap reads, between four neighbours; zero outside."""

        def at(n: Any, c: Any, *index: Any) -> Any:
            tap, target = index[:2], index[2:]
            first = (c // per_offset) * area + tap[0] * taps[1] + tap[1]
            moved = [
                (target[a] * place.stride[a] - place.before[a] + tap[a] * place.dilation[a]).astype(kind)
                + offsets(n, 2 * first + a, *target)
                for a in (0, 1)
            ]
            low = [te.floor(m).astype("int32") for m in moved]
            total: Any = tirx.const(0, kind)
            for dy in (0, 1):
                for dx in (0, 1):
                    spot = [low[0] + dy, low[1] + dx]
                    weight = tirx.const(1, kind)
                    for a, d in enumerate((dy, dx)):
                        beyond = moved[a] - low[a].astype(kind)
                        weight = weight * (beyond if d else tirx.const(1, kind) - beyond)
                    inside = te.all(*(te.all(s >= 0, s < z) for s, z in zip(spot, size, strict=True)))
                    total = total + te.if_then_else(inside, weight * x(n, c, *spot), tirx.const(0, kind))
            factor = mask(0, 0, 0, 0) if whole else mask(n, first, *target)
            return total * factor

        return te.compute((x.shape[0], channels, *taps, *place.output), at, name="sampled")

    def kernel(x: te.Tensor, w: te.Tensor, offsets: te.Tensor, mask: te.Tensor, bias: te.Tensor) -> te.Tensor:
        read = sampled(x, offsets, mask)
        k, ky, kx = (
            te.reduce_axis((0, extent), name)
            for extent, name in ((depth, "k"), *zip(taps, "yx", strict=True))
        )

        def at(n: Any, o: Any, *target: Any) -> Any:
            channel = (o // per_group) * depth + k
            return te.sum(read(n, channel, ky, kx, *target) * w(o, k, ky, kx), axis=[k, ky, kx])

        total = te.compute((x.shape[0], outputs, *place.output), at, name="deform_conv")
        return te.compute(total.shape, lambda n, o, *t: total(n, o, *t) + bias(o), name="biased")

    return node.te(kernel, x, w, offsets, mask, bias, name="deform_conv")


CONVERTERS: dict[str, type] = {"RoiAlign": converter(roi_align), "DeformConv": converter(deform_conv)}
