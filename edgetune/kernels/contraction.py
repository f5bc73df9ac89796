"""Convolutions and matrix products as one register-tiled contraction.

Data layout: activations are ``[N, ceil(C / b), H * W, b]`` ("blocked"): ``b`` is the number of vector lanes,
so that one load fills a register with neighbouring channels, and the two spatial dimensions are one, so that a
pointwise convolution can tile across rows. Weights are packed once, at compile time, in the order in which the
inner loops read them. The inner loops keep a tile of ``blocks x columns`` accumulators in registers, which is
how Goto and van de Geijn's matrix product ("Anatomy of High-Performance Matrix Multiplication", ACM TOMS 34(3),
2008) and the direct convolution of Georganas et al. ("Anatomy of High-Performance Deep Learning Convolutions on
SIMD Architectures", SC 2018) are built.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import tvm
from tvm import te
from tvm.s_tir import Schedule

from edgetune.kernels.schedules import (
    KERNEL_ATTR,
    LAUNCH_FLOPS,
    axis_extents,
    divisors,
    extent_of,
    inline_into_last,
    option,
    schedule_padding,
    spread,
    tile,
    unflatten,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tvm.s_tir.schedule import LoopRV, SBlockRV

    from edgetune.kernels.schedules import Space
    from edgetune.targets import Target

KIND = "contraction"
_STAGE = "contraction"
_AXES = ("n", "o", "h", "w", "i", "rc", "kh", "kw", "ri")


def conv2d(
    x: te.Tensor,
    weight: te.Tensor,
    size: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int, int, int],
    dilation: tuple[int, int],
    groups: int,
    plain_input: bool,
    registers: int,
) -> te.Tensor:
    """Direct 2-d convolution with blocked output.

    Args:
        x: ``[N, C/b, H*W, b]``, or ``[N, C, H, W]`` when ``plain_input`` (few input channels).
        weight: ``[O/b, I/b, KH, KW, b, b]`` (output channel innermost); ``[O/b, I, KH, KW, 1, b]`` for plain input.
        size: height and width of the input.
        stride, padding, dilation: as in ONNX Conv; padding is top, left, bottom, right.
        groups: number of groups; blocks must not straddle them.
        plain_input: whether ``x`` is in NCHW.
        registers: vector registers of the target, which decide how many columns are computed.

    Returns:
        ``[N, O/b, OH*OW, b]``.
    """
    height, width = size
    batch = x.shape[0]
    out_blocks, in_blocks, kernel_h, kernel_w, inner, lanes = (int(d) for d in weight.shape)
    top, left, bottom, right = padding
    out_h = (height + top + bottom - dilation[0] * (kernel_h - 1) - 1) // stride[0] + 1
    out_w = (width + left + right - dilation[1] * (kernel_w - 1) - 1) // stride[1] + 1
    blocks_per_group = out_blocks // groups
    if kernel_h == kernel_w == 1 and tuple(stride) == (1, 1) and not any(padding) and not plain_input:
        # Rows need not be told apart: one row of H*W columns tiles better.
        height, width, out_h, out_w = 1, height * width, 1, height * width
    columns = padded_columns(out_blocks // groups, out_w, registers)
    right += (columns - out_w) * stride[1]

    def read(n: te.Var, c: te.PrimExpr, y: te.PrimExpr, z: te.PrimExpr, i: te.PrimExpr) -> te.PrimExpr:
        return x[n, c, y, z] if plain_input else x[n, c, y * width + z, i]

    source = read
    if any((top, left, bottom, right)):
        padded = te.compute(
            (batch, int(x.shape[1]), height + top + bottom, width + left + right, inner),
            lambda n, c, y, z, i: te.if_then_else(
                te.all(y >= top, y < top + height, z >= left, z < left + width),
                read(n, c, y - top, z - left, i),
                tvm.tirx.const(0, x.dtype),
            ),
            name="padding",
        )

        def source(n: te.Var, c: te.PrimExpr, y: te.PrimExpr, z: te.PrimExpr, i: te.PrimExpr) -> te.PrimExpr:
            return padded[n, c, y, z, i]

    rc = te.reduce_axis((0, in_blocks), "rc")
    kh = te.reduce_axis((0, kernel_h), "kh")
    kw = te.reduce_axis((0, kernel_w), "kw")
    ri = te.reduce_axis((0, inner), "ri")

    def channel(o: te.Var) -> te.PrimExpr:
        return rc if groups == 1 else (o // blocks_per_group) * in_blocks + rc

    result = te.compute(
        (batch, out_blocks, out_h, columns, lanes),
        lambda n, o, h, w, i: te.sum(
            source(n, channel(o), h * stride[0] + kh * dilation[0], w * stride[1] + kw * dilation[1], ri)
            * weight[o, rc, kh, kw, ri, i],
            axis=[rc, kh, kw, ri],
        ),
        name=_STAGE,
        attrs={KERNEL_ATTR: KIND},
    )
    return te.compute(
        (batch, out_blocks, out_h * out_w, lanes),
        lambda n, o, f, i: result[(n, o, *unflatten(f, out_h, out_w), i)],
        name="flatten",
    )


def dense(x: te.Tensor, weight: te.Tensor, columns: int) -> te.Tensor:
    """Matrix product with a packed constant right-hand side.

    Args:
        x: ``[..., M, K]`` with leading dimensions of one.
        weight: ``[ceil(N / b), 1, 1, 1, K, b]``.
        columns: N.

    Returns:
        ``[..., M, N]``.
    """
    out_blocks, _, _, _, depth, lanes = (int(d) for d in weight.shape)
    lead = [0] * (len(x.shape) - 2)
    rows = x.shape[-2]
    rc = te.reduce_axis((0, 1), "rc")
    kh = te.reduce_axis((0, 1), "kh")
    kw = te.reduce_axis((0, 1), "kw")
    ri = te.reduce_axis((0, depth), "ri")
    result = te.compute(
        (1, out_blocks, 1, rows, lanes),
        lambda n, o, h, w, i: te.sum(x[(*lead, w, ri)] * weight[o, rc, kh, kw, ri, i], axis=[rc, kh, kw, ri]),
        name=_STAGE,
        attrs={KERNEL_ATTR: KIND},
    )
    return te.compute(
        (*x.shape[:-1], columns),
        lambda *index: result[0, index[-1] // lanes, 0, index[-2], index[-1] % lanes],
        name="flatten",
    )


def spaces(mod: tvm.IRModule, target: Target) -> Iterator[Space]:
    """Schedules of a contraction, best guess first.

    Each combination of register blocks and loop order is a space of its own, as a trace cannot branch; columns,
    chunks and unrolling are sampled inside.
    """
    probe = Schedule(mod)
    extents = axis_extents(probe, probe.get_sblock(_STAGE), _AXES)
    tiles = register_tiles(extents["o"], extents["w"], target.vector_registers)
    best: dict[int, list[int]] = {}
    for merit, blocks, columns in tiles:
        if merit >= 0.5 * tiles[0][0]:
            best.setdefault(blocks, []).append(columns)
    reuse = extents["o"] > 1 and extents["h"] * extents["w"] > 1
    for blocks, widths in best.items():
        for keep in ("weights", "input") if reuse else ("weights",):
            yield functools.partial(_schedule, Schedule(mod), extents, target, blocks, widths[:6], keep)


def register_tiles(blocks: int, columns: int, registers: int) -> list[tuple[float, int, int]]:
    """Tiles ``(merit, output blocks, columns)`` whose accumulators stay in registers, best first.

    A tile of ``b x c`` does ``b * c`` multiply-adds for ``b`` loads of weights and ``c`` broadcasts, of which the
    weights count twice, as they come from further away; it needs ``b * c`` accumulators, up to two weight vectors
    and one broadcast, and hides the latency of the multiply-add when it has about ten accumulators.
    """
    tiles = []
    for b in (d for d in divisors(blocks) if d <= 8):
        for c in divisors(columns):
            work = b * c
            if work + min(b, 2) + 1 <= registers + (b == 1):
                tiles.append((min(work, 10) / 10 * work / (2 * b + c), b, c))
    return sorted(tiles, reverse=True)


def padded_columns(blocks: int, columns: int, registers: int) -> int:
    """How many columns to compute where a row is a prime number of them, say: up to an eighth more, if that pays."""

    def cost(count: int) -> float:
        # Results computed beside the epilogue instead of in it cost another pass over them.
        return count / register_tiles(blocks, count, registers)[0][0] * (1.0 if count == columns else 1.08)

    return min(range(columns, columns + max(1, -(-columns // 8)) + 1), key=cost) if columns > 1 else columns


def _schedule(
    sch: Schedule, extents: dict[str, int], target: Target, blocks: int, columns: list[int], keep: str
) -> Schedule:
    """One space: tile the epilogue, compute the contraction inside its innermost tile.

    ``keep`` says what stays in the cache while the other streams by: ``weights`` or ``input``.
    """
    stage = sch.get_sblock(_STAGE)
    last = inline_into_last(sch, stage)
    if last is None:
        raise ValueError("a contraction has a block that flattens it")
    width = _row_width(sch, last, extents)
    if width < extents["w"]:
        return _schedule_rows(sch, extents, target, blocks, columns, keep, last, width)
    (n, o, h, w, i), rest = _output_loops(sch, stage, last, extents)
    o_outer, o_tile = sch.split(o, [None, blocks])
    w_outer, w_tile = sch.split(w, [None, option(sch, columns, columns[0])])
    o_chunk, h_chunk, w_chunk = parallel_chunks(extents, target, blocks, columns[0])
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
    _reduce_in_registers(sch, stage, extents)
    schedule_padding(sch, parallel)
    if rest is not None:
        _finish_row(sch, rest, h_inner, extents, target)
    return sch


def parallel_chunks(
    extents: dict[str, int], target: Target, blocks: int, columns: int
) -> tuple[int, int, int]:
    """Default chunks of one thread's turn: output tiles, rows, column tiles.

    Of the ways to cut the work evenly among the threads, the one that moves the least data past the second-level
    cache: every cut along the image reads all weights again, every cut along the output channels reads the input
    again, and input that does not fit the cache is read again for each tile of output channels.
    """
    o, h, w = extents["o"] // blocks, extents["h"], extents["w"] // columns
    flops = 2 * math.prod(extents.values())
    threads = target.threads if flops >= LAUNCH_FLOPS else 1
    depth = 4 * extents["rc"] * extents["ri"]
    weights = depth * extents["kh"] * extents["kw"] * extents["o"] * extents["i"]
    cache = max(target.l2_bytes, target.l1d_bytes) // 2

    def traffic(chunks: tuple[int, int, int]) -> float:
        outputs, rows, tiles = chunks
        cuts = (h // rows) * (w // tiles)
        pieces = cuts * (o // outputs)
        chunk_input = depth * (rows + extents["kh"] - 1) * tiles * columns
        reads = 1 if chunk_input <= cache else outputs
        uneven = -(-pieces // threads) * threads / pieces
        return uneven * (weights * cuts + chunk_input * reads * pieces) * (1.0 if uneven <= 1.1 else 10.0)

    # Several rows are cut between rows only; a single row, as of a pointwise convolution, between columns.
    images = [(rows, tiles) for rows in divisors(h) for tiles in ([w] if h > 1 else divisors(w))]
    return min(((outputs, *image) for outputs in divisors(o) for image in images), key=traffic)


def _row_width(sch: Schedule, last: SBlockRV, extents: dict[str, int]) -> int:
    """Columns that ``last`` keeps of each of several rows; as many as are computed where it has another form."""
    shape = [int(v.dom.extent) for v in sch.get(last).iter_vars]
    rows = extents["h"]
    if rows == 1 or len(shape) != 4 or [shape[0], shape[1], shape[3]] != [extents[axis] for axis in "noi"]:
        return extents["w"]
    return extents["w"] if shape[2] % rows else min(shape[2] // rows, extents["w"])


def _output_loops(
    sch: Schedule, stage: SBlockRV, last: SBlockRV, extents: dict[str, int]
) -> tuple[list[LoopRV], SBlockRV | None]:
    """Loops ``n, o, h, w, i`` to tile, and the block that remains to be scheduled after them, if any.

    Mostly the loops are those of the block that writes the result, everything after the stage inlined into it. Where
    the result has another shape than what is computed (columns or channels padded, a larger broadcast), they
    are those of a copy out of the registers, which the remaining block then reads.
    """
    lanes = extents["i"]
    loops = sch.get_loops(last)
    sizes = [extent_of(sch, loop) for loop in loops]
    if sizes == [extents["n"], extents["o"], extents["h"] * extents["w"], lanes]:
        n, o, f, i = loops
        h, w = sch.split(f, [extents["h"], extents["w"]])
        return [n, o, h, w, i], None
    if (
        math.prod(sizes[:-2]) == 1
        and sizes[-2:] == [extents["w"], extents["o"] * lanes]
        and extents["h"] == 1
    ):
        o, i = sch.split(loops[-1], [extents["o"], lanes])
        n, h, w = sch.split(loops[-2], [1, 1, extents["w"]])
        return [n, o, h, w, i], None
    return list(sch.get_loops(sch.cache_write(stage, 0, "local"))), last


def _schedule_rows(
    sch: Schedule,
    extents: dict[str, int],
    target: Target,
    blocks: int,
    columns: list[int],
    keep: str,
    last: SBlockRV,
    width: int,
) -> Schedule:
    """One space where rows are computed wider than the ``width`` that is kept: each goes through a buffer.

    The block that writes the result leads, so that it never reads a column beyond ``width``; bounds that TVM
    finds the other way round reach into the next row, which may be another thread's.
    """
    stage = sch.get_sblock(_STAGE)
    copy = sch.cache_write(stage, 0, "local")
    n, o, f, i = sch.get_loops(last)
    h, w = sch.split(f, [extents["h"], width])
    o_outer, o_tile = sch.split(o, [None, blocks])
    o_chunk, h_chunk, _ = parallel_chunks(extents, target, blocks, columns[0])
    h_parallel, h_inner = tile(sch, h, h_chunk)
    o_parallel, o_inner = tile(sch, o_outer, o_chunk)
    inner = (o_inner, h_inner) if keep == "weights" else (h_inner, o_inner)
    sch.reorder(n, o_parallel, h_parallel, *inner, o_tile, w, i)
    parallel = sch.fuse(n, o_parallel, h_parallel)
    sch.parallel(parallel)
    sch.vectorize(i)
    sch.compute_at(copy, h_inner, preserve_unit_loops=True)
    *_, o, h, w, i = sch.get_loops(copy)
    o_outer, o_tile = sch.split(o, [None, blocks])
    w_outer, w_tile = sch.split(w, [None, option(sch, columns, columns[0])])
    sch.reorder(h, w_outer, o_outer, o_tile, w_tile, i)
    sch.unroll(o_tile)
    sch.unroll(w_tile)
    sch.vectorize(i)
    sch.compute_at(stage, o_outer, preserve_unit_loops=True)
    _reduce_in_registers(sch, stage, extents)
    schedule_padding(sch, parallel)
    return sch


def _finish_row(sch: Schedule, last: SBlockRV, row: LoopRV, extents: dict[str, int], target: Target) -> None:
    """Schedule what reads the copied result: while it is in the cache, where it is a single row."""
    shape = [int(v.dom.extent) for v in sch.get(last).iter_vars]
    same_form = len(shape) == 4 and [shape[0], shape[1], shape[3]] == [extents[axis] for axis in "noi"]
    if same_form and extents["h"] == 1 and shape[2] <= extents["w"]:
        sch.reverse_compute_at(last, row, preserve_unit_loops=True)
        sch.vectorize(sch.get_loops(last)[-1])
    else:
        spread(sch, last, target)


def _reduce_in_registers(sch: Schedule, stage: SBlockRV, extents: dict[str, int]) -> None:
    """Order the contraction's own loops: reduction outside, the register tile inside."""
    *_, n, o, h, w, i, rc, kh, kw, ri = sch.get_loops(stage)
    depth = extents["ri"]
    unroll = option(sch, [d for d in (1, 2, 4, 8) if depth % d == 0], 1)
    ri_outer, ri_inner = sch.split(ri, [None, unroll])
    sch.reorder(rc, kh, kw, ri_outer, ri_inner, n, o, h, w, i)
    for loop in (ri_inner, o, w):
        sch.unroll(loop)
    sch.vectorize(i)
    init = sch.decompose_reduction(stage, rc)
    *_, o, h, w, i = sch.get_loops(init)
    sch.unroll(o)
    sch.unroll(w)
    sch.vectorize(i)
