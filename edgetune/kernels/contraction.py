"""Schedules of convolutions and matrix products (``kernels.products``): one register-tiled contraction.

The inner loops keep a tile of ``blocks x columns`` accumulators in registers; the loops around them are ordered
so that what a tile reads stays in the cache.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import tvm
from tvm.s_tir import Schedule

from edgetune.kernels.products import AXES, KIND, STAGE
from edgetune.kernels.schedules import (
    LAUNCH_FLOPS,
    axis_extents,
    divisors,
    extent_of,
    inline_into_last,
    option,
    schedule_padding,
    spread,
    tile,
)
from edgetune.kernels.tiles import RegisterFile, register_tiles, unroll_tile

__all__ = ["KIND", "spaces"]

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tvm.s_tir.schedule import LoopRV, SBlockRV

    from edgetune.kernels.schedules import Space
    from edgetune.targets import Target


def spaces(mod: tvm.IRModule, target: Target) -> Iterator[Space]:
    """Schedules of a contraction, best guess first.

    Each combination of register blocks and loop order is a space of its own, as a trace cannot branch; columns,
    chunks and unrolling are sampled inside.
    """
    probe = Schedule(mod)
    extents = axis_extents(probe, probe.get_sblock(STAGE), AXES)
    tiles = register_tiles(extents["o"], extents["w"], RegisterFile.of(target))
    best: dict[int, list[int]] = {}
    group = _columns_stored_together(probe)
    for merit, blocks, columns in tiles:
        if merit >= 0.5 * tiles[0][0] and (group is None or group % columns == 0):
            best.setdefault(blocks, []).append(columns)
    reuse = extents["o"] > 1 and extents["h"] * extents["w"] > 1
    for blocks, widths in best.items():
        for keep in ("weights", "input") if reuse else ("weights",):
            yield functools.partial(_schedule, Schedule(mod), extents, target, blocks, widths[:6], keep)


def _schedule(
    sch: Schedule, extents: dict[str, int], target: Target, blocks: int, columns: list[int], keep: str
) -> Schedule:
    """One space: tile the epilogue, compute the contraction inside its innermost tile.

    ``keep`` says what stays in the cache while the other streams by: ``weights`` or ``input``.
    """
    stage = sch.get_sblock(STAGE)
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
    _reduce_in_registers(sch, stage, extents, wide=columns[0] >= blocks)
    schedule_padding(sch, parallel)
    if rest is not None:
        _finish_row(sch, rest, h_inner, extents, target)
    return sch


def _columns_stored_together(sch: Schedule) -> int | None:
    """The group of columns that ``products.batched`` stores together, which no tile may straddle."""
    last = sch.get_consumers(sch.get_sblock(STAGE))
    shape = [int(axis.dom.extent) for axis in sch.get(last[0]).iter_vars] if last else []
    return shape[3] if len(shape) == 5 else None


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
        pieces = extents["n"] * cuts * (o // outputs)
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
    if len(sizes) == 5 and [sizes[0] * sizes[3], sizes[1], sizes[2], sizes[4]] == [
        extents[axis] for axis in "wnoi"
    ]:
        q, n, o, k, i = loops
        sch.reorder(n, o, q, k, i)
        h, w = sch.split(sch.fuse(q, k), [1, extents["w"]])
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
    stage = sch.get_sblock(STAGE)
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
    _reduce_in_registers(sch, stage, extents, wide=columns[0] >= blocks)
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


def _reduce_in_registers(sch: Schedule, stage: SBlockRV, extents: dict[str, int], wide: bool) -> None:
    """Order the contraction's own loops: reduction outside, the register tile inside."""
    *_, n, o, h, w, i, rc, kh, kw, ri = sch.get_loops(stage)
    depth = extents["ri"]
    unroll = option(sch, [d for d in (1, 2, 4, 8) if depth % d == 0], 1)
    ri_outer, ri_inner = sch.split(ri, [None, unroll])
    sch.reorder(rc, kh, kw, ri_outer, ri_inner, n, h, o, w, i)
    sch.unroll(ri_inner)
    unroll_tile(sch, o, w, wide)
    sch.vectorize(i)
    init = sch.decompose_reduction(stage, rc)
    *_, outer, inner, i = sch.get_loops(init)
    sch.unroll(outer)
    sch.unroll(inner)
    sch.vectorize(i)
