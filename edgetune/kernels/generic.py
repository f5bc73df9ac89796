"""Every other kernel: elementwise chains, reductions, softmax, layout changes.

The default schedule inlines what is cheap to recompute, runs rows in parallel, computes everything that a row needs
inside its loop, and puts the innermost loop into vectors. MetaSchedule's own rules give the remaining spaces.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import tvm
import tvm_ffi
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import ScheduleError

from edgetune.kernels.schedules import (
    LAUNCH_ELEMENTS,
    block_names,
    extent_of,
    is_spatial,
    spread,
    vector_lanes,
)
from edgetune.metaschedule import tune_context

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tvm.s_tir.schedule import LoopRV, SBlockRV

    from edgetune.kernels.schedules import Space
    from edgetune.targets import Target

KIND = "generic"
_COSTLY = {
    "tirx.reinterpret",
    "tirx.exp",
    "tirx.tanh",
    "tirx.erf",
    "tirx.log",
    "tirx.pow",
    "tirx.sqrt",
    "tirx.call_pure_extern",
}


def spaces(mod: tvm.IRModule, target: Target) -> Iterator[Space]:
    """Schedules of any kernel: the default, the default on one thread, and MetaSchedule's."""
    yield functools.partial(_default, Schedule(mod), target, serial=False)
    yield functools.partial(_default, Schedule(mod), target, serial=True)
    for schedule in _stock(mod, target):
        yield functools.partial(Schedule.copy, schedule)


def _default(sch: Schedule, target: Target, serial: bool) -> Schedule:
    _inline_cheap(sch)
    for name in block_names(sch):
        _reduce_by_lanes(sch, sch.get_sblock(name), target)
    names = block_names(sch)
    last = sch.get_sblock(names[-1])
    row = None
    if len(names) > 1 or not is_spatial(sch, last):
        row = _rows(sch, last, serial)
    placed = _place_in_row(sch, names[:-1], row) if row is not None else set()
    for name in names:
        block = sch.get_sblock(name)
        inside = name in placed or (row is not None and name == names[-1])
        if is_spatial(sch, block):
            if inside:
                _vectorize_last(sch, block, target)
            else:
                spread(sch, block, target, serial)
        else:
            _reduce(sch, block, target)
    return sch


def _inline_cheap(sch: Schedule) -> None:
    """Inline every block without reduction that has one reader, or that costs no arithmetic."""
    for name in block_names(sch):
        block = sch.get_sblock(name)
        if not is_spatial(sch, block) or not sch.get_consumers(block):
            continue
        if len(sch.get_consumers(block)) > 1 and _is_costly(sch, block):
            continue
        try:
            sch.compute_inline(block)
        except ScheduleError:
            continue


def _is_costly(sch: Schedule, block: SBlockRV) -> bool:
    """Whether a block calls a function (exp and its kin)."""
    calls = []

    def visit(call: tvm.ir.Call) -> None:
        if isinstance(call.op, tvm.ir.Op) and call.op.name in _COSTLY:
            calls.append(call)

    tvm_ffi.structural_walk(sch.get(block).body, (tvm.ir.Call, visit))
    return bool(calls)


def _rows(sch: Schedule, last: SBlockRV, serial: bool) -> LoopRV | None:
    """Fuse the outer loops of the last block into rows; None when there is nothing to fuse."""
    spatial, _ = _axes(sch, last)
    inner = 1 if is_spatial(sch, last) or _reads_along(sch, last, 0) else 0
    while inner < len(spatial) and extent_of(sch, spatial[-1 - inner]) == 1:
        inner += 1
    outer = spatial[: len(spatial) - inner] if inner else spatial
    if not outer:
        return None
    row = sch.fuse(*outer) if len(outer) > 1 else outer[0]
    elements = math.prod(extent_of(sch, loop) for loop in sch.get_loops(last))
    if not serial and extent_of(sch, row) > 1 and elements >= LAUNCH_ELEMENTS // 8:
        sch.parallel(row)
    return row


def _place_in_row(sch: Schedule, names: list[str], row: LoopRV) -> set[str]:
    """Compute the producers, last first, inside the row loop; those that cannot stay at the root."""
    placed = set()
    for name in reversed(names):
        try:
            sch.compute_at(sch.get_sblock(name), row, preserve_unit_loops=True)
            placed.add(name)
        except ScheduleError:
            continue
    return placed


def _vectorize_last(sch: Schedule, block: SBlockRV, target: Target) -> None:
    loop = sch.get_loops(block)[-1]
    extent = extent_of(sch, loop)
    lanes = vector_lanes(sch, block, target)
    if extent > lanes and extent % lanes == 0:
        loop = sch.split(loop, [None, lanes])[1]
    elif extent not in (2, 4, 8, 16) or extent > lanes:
        return
    sch.vectorize(loop)


def _axes(sch: Schedule, block: SBlockRV) -> tuple[list[LoopRV], list[LoopRV]]:
    """The loops that the block's spatial axes are bound to, and those of its reduction axes."""
    name = sch.get(block).name_hint
    kinds: dict[str, int] = {}

    def visit(realize: tvm.s_tir.SBlockRealize) -> None:
        if realize.block.name_hint != name:
            return
        for axis, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
            tvm_ffi.structural_walk(
                value, (tvm.ir.Var, lambda var, kind=int(axis.iter_type): kinds.__setitem__(var.name, kind))
            )

    tvm_ffi.structural_walk(sch.mod["main"].body, (tvm.s_tir.SBlockRealize, visit))
    loops = [(loop, kinds.get(sch.get(loop).loop_var.name)) for loop in sch.get_loops(block)]
    return [loop for loop, kind in loops if kind == 0], [loop for loop, kind in loops if kind == 2]


def _reads_along(sch: Schedule, block: SBlockRV, iter_type: int) -> bool:
    """Whether neighbours in memory, of what a block reads, lie along an axis of this type (0: spatial)."""
    info = sch.get(block)
    index = info.reads[0].region[-1].min
    terms = [index, getattr(index, "a", None), getattr(index, "b", None)]
    return any(int(v.iter_type) == iter_type and any(v.var.same_as(t) for t in terms) for v in info.iter_vars)


def _reduce_by_lanes(sch: Schedule, block: SBlockRV, target: Target) -> None:
    """Give a reduction along memory one partial result for each lane, so that it can run in vectors."""
    if is_spatial(sch, block) or not sch.get(block).reads or not _reads_along(sch, block, 2):
        return
    spatial, reduction = _axes(sch, block)
    extent, lanes = extent_of(sch, reduction[-1]), vector_lanes(sch, block, target)
    width = math.gcd(extent, lanes)
    if width < 4 or extent < 4 * width:
        return
    _, by_lane = sch.split(reduction[-1], [None, width])
    sch.rfactor(by_lane, factor_axis=len(spatial))


def _reduce(sch: Schedule, block: SBlockRV, target: Target) -> None:
    """Vectorise a reduction over the spatial axis along which its input lies in memory."""
    spatial, reduction = _axes(sch, block)
    if not spatial or not reduction or not _reads_along(sch, block, 0):
        return
    inner, lanes = spatial[-1], vector_lanes(sch, block, target)
    extent = extent_of(sch, inner)
    if extent > lanes and extent % lanes == 0:
        inner = sch.split(inner, [None, lanes])[1]
    elif extent not in (2, 4, 8, 16) or extent > lanes:
        return
    sch.reorder(*reduction, inner)
    sch.vectorize(inner)
    init = sch.decompose_reduction(block, reduction[0])
    sch.vectorize(sch.get_loops(init)[-1])


def _stock(mod: tvm.IRModule, target: Target) -> list[Schedule]:
    """Design spaces of MetaSchedule's general rules; those for tensor intrinsics need kernels made for them."""
    from tvm.s_tir.meta_schedule.schedule_rule import ScheduleRule
    from tvm.s_tir.meta_schedule.space_generator import PostOrderApply

    generator = PostOrderApply(sch_rules=ScheduleRule.create(target.kind))
    return list(tune_context(mod, target.tvm(), generator).generate_design_space())
