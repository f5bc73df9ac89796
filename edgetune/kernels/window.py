"""Depthwise convolution and pooling: a small window slides over each channel by itself.

With channels innermost (``[N, C/b, H*W, b]``) every step of the window is one vector operation; a tile of columns
keeps its accumulators in registers while the window is unrolled over it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import tvm
from tvm import te
from tvm.s_tir import Schedule

from edgetune.kernels.schedules import (
    KERNEL_ATTR,
    LAUNCH_FLOPS,
    axis_extents,
    chunk,
    divisors,
    inline_into_last,
    option,
    schedule_padding,
    tile,
    unflatten,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from edgetune.kernels.schedules import Space
    from edgetune.targets import Target

KIND = "window"
_STAGE = "window"
_AXES = ("n", "c", "h", "w", "i", "kh", "kw")


largest = te.comm_reducer(
    lambda a, b: te.max(a, b), lambda kind: tvm.tirx.const(float("-inf"), kind), name="largest"
)
"""The maximum of floating-point numbers; TVM's own starts from the largest finite number."""


def output_size(
    size: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int, int, int],
    dilation: tuple[int, int],
) -> tuple[int, int]:
    """Height and width of the output; padding is top, left, bottom, right."""
    height = size[0] + padding[0] + padding[2] - dilation[0] * (kernel[0] - 1) - 1
    width = size[1] + padding[1] + padding[3] - dilation[1] * (kernel[1] - 1) - 1
    return height // stride[0] + 1, width // stride[1] + 1


def depthwise(
    x: te.Tensor,
    weight: te.Tensor,
    size: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int, int, int],
    dilation: tuple[int, int],
) -> te.Tensor:
    """Depthwise convolution of ``x [N, C/b, H*W, b]`` with ``weight [C/b, KH, KW, b]``."""
    kernel = (int(weight.shape[1]), int(weight.shape[2]))
    return slide(
        x,
        size,
        kernel,
        stride,
        padding,
        dilation,
        0.0,
        te.sum,
        lambda value, c, kh, kw, i: value * weight[c, kh, kw, i],
    )


def max_pool(
    x: te.Tensor,
    size: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int, int, int],
    dilation: tuple[int, int],
) -> te.Tensor:
    """Maximum over each window of ``x [N, C/b, H*W, b]``; padding never wins."""
    whole = "int" in str(x.dtype)
    lowest = te.min_value(str(x.dtype)) if whole else tvm.tirx.const(float("-inf"), x.dtype)
    reducer = te.max if whole else largest
    return slide(x, size, kernel, stride, padding, dilation, lowest, reducer, lambda value, *_: value)


def avg_pool(
    x: te.Tensor,
    size: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int, int, int],
    dilation: tuple[int, int],
    count_include_pad: bool,
) -> te.Tensor:
    """Mean over each window of ``x [N, C/b, H*W, b]``, over real elements only unless padding counts."""
    total = slide(x, size, kernel, stride, padding, dilation, 0.0, te.sum, lambda value, *_: value)
    _, out_w = output_size(size, kernel, stride, padding, dilation)

    def covered(position: te.PrimExpr, axis: int) -> te.PrimExpr:
        start = position * stride[axis] - padding[axis]
        inside = [
            te.if_then_else(
                te.all(start + k * dilation[axis] >= 0, start + k * dilation[axis] < size[axis]), 1.0, 0.0
            )
            for k in range(kernel[axis])
        ]
        return sum(inside[1:], inside[0])

    def mean(n: te.Var, c: te.Var, f: te.Var, i: te.Var) -> te.PrimExpr:
        if count_include_pad or not any(padding):
            return total[n, c, f, i] * tvm.tirx.const(1.0 / (kernel[0] * kernel[1]), x.dtype)
        return total[n, c, f, i] / (covered(f // out_w, 0) * covered(f % out_w, 1))

    return te.compute(total.shape, mean, name="mean")


def slide(
    x: te.Tensor,
    size: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int, int, int],
    dilation: tuple[int, int],
    fill: float | te.PrimExpr,
    reducer: Callable[..., te.PrimExpr],
    value: Callable[..., te.PrimExpr],
    convert: Callable[[te.PrimExpr], te.PrimExpr] | None = None,
) -> te.Tensor:
    """A window over each channel: ``reducer`` of ``value(element, channel block, row, column, lane)``.

    Elements are padded with ``fill``, and turned into another type by ``convert`` before that.
    """
    height, width = size
    top, left, bottom, right = padding
    batch, blocks, _, lanes = (int(d) for d in x.shape)
    out_h, out_w = output_size(size, kernel, stride, padding, dilation)
    filler = tvm.tirx.const(fill, x.dtype) if isinstance(fill, float) else fill

    def read(n: te.Var, c: te.Var, y: te.PrimExpr, z: te.PrimExpr, i: te.Var) -> te.PrimExpr:
        element = x[n, c, y * width + z, i]
        return element if convert is None else convert(element)

    source = read
    if any(padding) or convert is not None:
        padded = te.compute(
            (batch, blocks, height + top + bottom, width + left + right, lanes),
            lambda n, c, y, z, i: te.if_then_else(
                te.all(y >= top, y < top + height, z >= left, z < left + width),
                read(n, c, y - top, z - left, i),
                filler,
            ),
            name="padding",
        )

        def source(n: te.Var, c: te.Var, y: te.PrimExpr, z: te.PrimExpr, i: te.Var) -> te.PrimExpr:
            return padded[n, c, y, z, i]

    kh = te.reduce_axis((0, kernel[0]), "kh")
    kw = te.reduce_axis((0, kernel[1]), "kw")
    result = te.compute(
        (batch, blocks, out_h, out_w, lanes),
        lambda n, c, h, w, i: reducer(
            value(
                source(n, c, h * stride[0] + kh * dilation[0], w * stride[1] + kw * dilation[1], i),
                c,
                kh,
                kw,
                i,
            ),
            axis=[kh, kw],
        ),
        name=_STAGE,
        attrs={KERNEL_ATTR: KIND},
    )
    return te.compute(
        (batch, blocks, out_h * out_w, lanes),
        lambda n, c, f, i: result[(n, c, *unflatten(f, out_h, out_w), i)],
        name="flatten",
    )


def spaces(mod: tvm.IRModule, target: Target) -> Iterator[Space]:
    """Schedules of a sliding window, best guess first: padding per channel block, or per group of rows."""
    for rows_first in (False, True):
        yield functools.partial(_schedule, Schedule(mod), target, rows_first)


def _schedule(sch: Schedule, target: Target, rows_first: bool) -> Schedule:
    stage = sch.get_sblock(_STAGE)
    extents = axis_extents(sch, stage, _AXES)
    last = inline_into_last(sch, stage)
    assert last is not None
    n, c, f, i = sch.get_loops(last)
    h, w = sch.split(f, [extents["h"], extents["w"]])
    columns = [d for d in divisors(extents["w"]) if d <= max(4, target.vector_registers // 2)]
    best = max(columns)
    w_outer, w_tile = sch.split(w, [None, option(sch, columns, best)])
    work = 2 * extents["n"] * extents["c"] * extents["h"] * extents["w"] * extents["i"]
    work *= extents["kh"] * extents["kw"]
    pieces = target.threads if work >= LAUNCH_FLOPS else 1
    c_chunk = chunk(extents["c"], pieces)
    h_chunk = chunk(extents["h"], -(-pieces // (extents["c"] // c_chunk)))
    c_parallel, c_inner = tile(sch, c, c_chunk)
    h_parallel, h_inner = tile(sch, h, h_chunk)
    sch.reorder(n, c_parallel, h_parallel, c_inner, h_inner, w_outer, w_tile, i)
    parallel = sch.fuse(n, c_parallel, h_parallel)
    sch.parallel(parallel)
    sch.unroll(w_tile)
    sch.vectorize(i)
    sch.compute_at(stage, w_outer, preserve_unit_loops=True)
    sch.set_scope(stage, 0, "local")
    *_, n1, c1, h1, w1, i1, kh, kw = sch.get_loops(stage)
    kh_unroll = option(sch, sorted({1, extents["kh"]}), extents["kh"] if extents["kh"] <= 3 else 1)
    kh_outer, kh_inner = sch.split(kh, [None, kh_unroll])
    sch.reorder(kh_outer, kh_inner, kw, n1, c1, h1, w1, i1)
    for loop in (kh_inner, w1):
        sch.unroll(loop)
    if extents["kw"] <= 7:
        sch.unroll(kw)
    sch.vectorize(i1)
    init = sch.decompose_reduction(stage, kh_outer)
    *_, w0, i0 = sch.get_loops(init)
    sch.unroll(w0)
    sch.vectorize(i0)
    schedule_padding(sch, h_inner if rows_first else c_inner)
    return sch
