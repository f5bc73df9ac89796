"""Convolutions and matrix products of 8-bit integers, summed up in int32.

The layout is that of ``kernels.products``: channels in blocks, the weights packed in the order in which they are read.
Each thread first copies the part of the input that it needs into the form that the target's instruction takes
(``kernels.dots``), padding included: bytes less their zero point as int16, or bytes moved into the range of the other
signedness. What such a move changes is known when the model is compiled, and comes in with the bias.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import tvm
from tvm import te
from tvm.s_tir import Schedule

from edgetune.kernels import dots, window  # dots: schedules need its intrinsics
from edgetune.kernels.contraction import parallel_chunks
from edgetune.kernels.schedules import (
    KERNEL_ATTR,
    axis_extents,
    extent_of,
    inline_into_last,
    option,
    spread,
    tile,
    unflatten,
)
from edgetune.kernels.tiles import RegisterFile, register_tiles, unroll_tile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tvm.s_tir.schedule import LoopRV, SBlockRV

    from edgetune.kernels.schedules import Space
    from edgetune.targets import Target

KIND = "integer"
STAGE = "integer_products"
STAGED = "staged"
_AXES = ("n", "o", "h", "w", "i", "rc", "kh", "kw", "ri", "rg")
_INTRINSIC = "edgetune.intrinsic"


def conv2d(
    x: te.Tensor,
    zero: te.Tensor,
    weight: te.Tensor,
    size: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int, int, int],
    dilation: tuple[int, int],
    groups: int,
    plain_input: bool,
    dot: dots.Dot,
) -> te.Tensor:
    """Direct 2-d convolution of bytes, in int32.

    Args:
        x: ``[N, C/b, H*W, b]``, or ``[N, C, H, W]`` when ``plain_input`` (few input channels); uint8 or int8.
        zero: ``[1]``, the zero point of ``x`` in its own type.
        weight: ``[O/b, I/b', KH, KW, b'/g, b, g]``, ``g`` the dot's group.
        size: height and width of the input.
        stride, padding, dilation: as in ONNX Conv; padding is top, left, bottom, right, and counts as zero.
        groups: number of groups; blocks must not straddle them.
        plain_input: whether ``x`` is in NCHW.
        dot: the instruction.

    Returns:
        ``[N, O/b, OH*OW, b]``: the sums of products of the staged values. Those are ``x - zero`` (int16), or
        ``x`` itself in the dot's signedness; see :func:`offset`.
    """
    height, width = size
    out_blocks, in_blocks, kernel_h, kernel_w, inner, lanes, group = (int(d) for d in weight.shape)
    top, left, bottom, right = padding
    out_h, out_w = window.output_size(size, (kernel_h, kernel_w), stride, padding, dilation)
    if kernel_h == kernel_w == 1 and tuple(stride) == (1, 1) and not any(padding) and not plain_input:
        height, width, out_h, out_w = 1, height * width, 1, height * width
    channels = int(x.shape[1])

    def read(n: Any, c: Any, y: Any, z: Any, i: Any) -> Any:
        return x[n, i, y, z] if plain_input else x[n, c, y * width + z, i]

    def staged(n: Any, c: Any, y: Any, z: Any, i: Any) -> Any:
        inside = [y >= top, y < top + height] if top or bottom else []
        inside += [z >= left, z < left + width] if left or right else []
        inside += [i < channels] if plain_input and channels < inner * group else []
        value = convert(read(n, c, y - top, z - left, i), zero[0], x.dtype, dot.activation)
        return (
            te.if_then_else(te.all(*inside), value, convert(zero[0], zero[0], x.dtype, dot.activation))
            if inside
            else value
        )

    shape = (int(x.shape[0]), 1 if plain_input else channels, height + top + bottom, width + left + right)
    source = te.compute((*shape, inner * group), staged, name=STAGED)
    rc, kh, kw, ri, rg = (
        te.reduce_axis((0, extent), name)
        for extent, name in zip((in_blocks, kernel_h, kernel_w, inner, group), _AXES[5:], strict=True)
    )

    def product(n: Any, o: Any, h: Any, w: Any, i: Any) -> Any:
        block = rc if groups == 1 else (o // (out_blocks // groups)) * in_blocks + rc
        row, column = h * stride[0] + kh * dilation[0], w * stride[1] + kw * dilation[1]
        left_side = source[n, block, row, column, ri * group + rg].astype("int32")
        return te.sum(left_side * weight[o, rc, kh, kw, ri, i, rg].astype("int32"), axis=[rc, kh, kw, ri, rg])

    result = te.compute(
        (shape[0], out_blocks, out_h, out_w, lanes), product, name=STAGE,
        attrs={KERNEL_ATTR: KIND, _INTRINSIC: dot.intrinsic},
    )  # fmt: skip
    return te.compute(
        (shape[0], out_blocks, out_h * out_w, lanes),
        lambda n, o, f, i: result[(n, o, *unflatten(f, out_h, out_w), i)],
        name="flatten",
    )


def dense(x: te.Tensor, zero: te.Tensor, weight: te.Tensor, columns: int, dot: dots.Dot) -> te.Tensor:
    """Product ``[M, N]`` in int32 of ``x [M, K]`` and ``weight [N/b, 1, 1, 1, K/g, b, g]``, as :func:`conv2d`."""
    rows, depth = (int(d) for d in x.shape)
    out_blocks, _, _, _, inner, lanes, group = (int(d) for d in weight.shape)

    def staged(m: Any, k: Any) -> Any:
        value = convert(x[m, k], zero[0], x.dtype, dot.activation)
        if inner * group == depth:
            return value
        return te.if_then_else(k < depth, value, convert(zero[0], zero[0], x.dtype, dot.activation))

    source = te.compute((rows, inner * group), staged, name=STAGED)
    rc, kh, kw, ri, rg = (
        te.reduce_axis((0, extent), name)
        for extent, name in zip((1, 1, 1, inner, group), _AXES[5:], strict=True)
    )
    result = te.compute(
        (1, out_blocks, 1, rows, lanes),
        lambda n, o, h, w, i: te.sum(
            source[w, ri * group + rg].astype("int32") * weight[o, rc, kh, kw, ri, i, rg].astype("int32"),
            axis=[rc, kh, kw, ri, rg],
        ),
        name=STAGE,
        attrs={KERNEL_ATTR: KIND, _INTRINSIC: dot.intrinsic},
    )
    return te.compute(
        (rows, columns),
        lambda m, c: result[0, c // lanes, 0, m, c % lanes],
        name="flatten",
    )


def convert(value: Any, zero: Any, own: str, kind: str) -> Any:
    """A byte of type ``own`` in the form that the instruction reads."""
    if kind == "int16":
        return value.astype("int16") - zero.astype("int16")
    if own == kind:
        return value
    # From one signedness to the other by moving all values by 128: the highest bit changes.
    return tvm.tirx.reinterpret(kind, value ^ tvm.tirx.const(-128 if own == "int8" else 128, own))


def offset(zero: int, own: str, kind: str) -> int:
    """What :func:`convert` leaves of a zero point: products have to be corrected by so many times the weights' sum."""
    if kind == "int16":
        return 0
    return zero if own == kind else zero + (128 if own == "int8" else -128)


def spaces(mod: tvm.IRModule, target: Target) -> Iterator[Space]:
    """Schedules of an integer contraction, best guess first: what stays in the cache, where the input is staged."""
    probe = Schedule(mod)
    extents = axis_extents(probe, probe.get_sblock(STAGE), _AXES)
    # Two registers hold products before they are added.
    tiles = register_tiles(extents["o"], extents["w"], RegisterFile.of(target, reserved=2))
    best: dict[int, list[int]] = {}
    for merit, blocks, columns in tiles:
        if merit >= 0.5 * tiles[0][0]:
            best.setdefault(blocks, []).append(columns)
    reuse = extents["o"] > 1 and extents["h"] * extents["w"] > 1
    for blocks, widths in best.items():
        for keep in ("weights", "input") if reuse else ("weights",):
            yield functools.partial(_schedule, Schedule(mod), extents, target, blocks, widths[:6], keep)


def _schedule(
    sch: Schedule, extents: dict[str, int], target: Target, blocks: int, columns: list[int], keep: str
) -> Schedule:
    stage = sch.get_sblock(STAGE)
    last = inline_into_last(sch, stage)
    if last is None:
        raise ValueError("a contraction has a block that flattens it")
    (n, o, h, w, i), rest = _output_loops(sch, stage, last, extents)
    o_outer, o_tile = sch.split(o, [None, blocks])
    w_outer, w_tile = sch.split(w, [None, option(sch, columns, columns[0])])
    depth = {**extents, "ri": extents["ri"] * extents["rg"]}
    o_chunk, h_chunk, w_chunk = parallel_chunks(depth, target, blocks, columns[0])
    h_parallel, h_inner = tile(sch, h, h_chunk)
    w_parallel, w_inner = tile(sch, w_outer, w_chunk)
    o_parallel, o_inner = tile(sch, o_outer, o_chunk)
    inner = (o_inner, h_inner, w_inner) if keep == "weights" else (h_inner, w_inner, o_inner)
    sch.reorder(n, o_parallel, h_parallel, w_parallel, *inner, o_tile, w_tile, i)
    parallel = sch.fuse(n, o_parallel, h_parallel, w_parallel)
    sch.parallel(parallel)
    sch.unroll(o_tile)
    sch.unroll(w_tile)
    sch.vectorize(i)
    sch.compute_at(stage, inner[-1], preserve_unit_loops=True)
    sch.set_scope(stage, 0, "local")
    _stage_input(sch, parallel, target)
    _reduce_in_registers(sch, stage, wide=columns[0] >= blocks)
    if rest is not None:
        spread(sch, rest, target)
    return sch


def _output_loops(
    sch: Schedule, stage: SBlockRV, last: SBlockRV, extents: dict[str, int]
) -> tuple[list[LoopRV], SBlockRV | None]:
    """Loops ``n, o, h, w, i`` of the block that writes the result; else of a copy, which that block then reads."""
    loops = sch.get_loops(last)
    sizes = [extent_of(sch, loop) for loop in loops]
    lanes = extents["i"]
    if sizes == [extents["n"], extents["o"], extents["h"] * extents["w"], lanes]:
        n, o, f, i = loops
        h, w = sch.split(f, [extents["h"], extents["w"]])
        return [n, o, h, w, i], None
    rows = extents["n"] * extents["h"] == 1 and math.prod(sizes[:-2]) == 1
    if rows and sizes[-2:] == [extents["w"], extents["o"] * lanes]:
        o, i = sch.split(loops[-1], [extents["o"], lanes])
        n, h, w = sch.split(loops[-2], [1, 1, extents["w"]])
        return [n, o, h, w, i], None
    return list(sch.get_loops(sch.cache_write(stage, 0, "local"))), last


def _reduce_in_registers(sch: Schedule, stage: SBlockRV, wide: bool) -> None:
    """Order the contraction's own loops: reduction outside, the register tile inside, one instruction innermost."""
    *_, n, o, h, w, i, rc, kh, kw, ri, rg = sch.get_loops(stage)
    intrinsic = str(sch.get(stage).annotations[_INTRINSIC])
    sch.reorder(rc, kh, kw, ri, n, h, o, w, i, rg)
    unroll_tile(sch, o, w, wide)
    init = sch.decompose_reduction(stage, rc)
    if intrinsic:
        sch.tensorize(i, intrinsic)
    else:
        sch.vectorize(i)
    *_, outer, inner, i = sch.get_loops(init)
    sch.unroll(outer)
    sch.unroll(inner)
    sch.vectorize(i)


def _stage_input(sch: Schedule, at: LoopRV, target: Target) -> None:
    """Convert the input where it is used, one vector of channels at a time."""
    staged = sch.get_sblock(STAGED)
    sch.compute_at(staged, at, preserve_unit_loops=True)
    inner = sch.get_loops(staged)[-1]
    if extent_of(sch, inner) > 4 * target.lanes("float32"):
        inner = sch.split(inner, [None, 2 * target.lanes("float32")])[1]
    sch.vectorize(inner)


def depthwise(
    x: te.Tensor,
    zero: te.Tensor,
    weight: te.Tensor,
    size: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int, int, int],
    dilation: tuple[int, int],
) -> te.Tensor:
    """Depthwise convolution of bytes ``x [N, C/b, H*W, b]`` less ``zero [1]``, its integers held in float32.

    ``weight [C/b, KH, KW, b]`` is float32 as well; exact as long as no sum reaches 2^24.
    """
    return window.slide(
        x,
        size,
        (int(weight.shape[1]), int(weight.shape[2])),
        stride,
        padding,
        dilation,
        tvm.tirx.const(0, "float32"),
        te.sum,
        lambda value, c, kh, kw, i: value * weight[c, kh, kw, i],
        lambda value: value.astype("float32") - zero[0].astype("float32"),
    )
