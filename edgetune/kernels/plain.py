"""The schedule of last resort: the loops as they are, the outermost ones in parallel."""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import ScheduleError

from edgetune.kernels.schedules import block_names


def is_schedulable(func: tvm.tirx.PrimFunc) -> bool:
    """Whether there is something to schedule: blocks, and no loop without iterations.

    TVM's analyser divides by the extents of loops, so it must not see one of zero.
    """
    blocks: list[str] = []
    tvm_ffi.structural_walk(func.body, (tvm.s_tir.SBlock, lambda block: blocks.append(block.name_hint)))
    return any(name != "root" for name in blocks) and not has_empty_loops(func)


def has_empty_loops(func: tvm.tirx.PrimFunc) -> bool:
    """Whether there is a loop without iterations."""
    empty: list[tvm.tirx.For] = []

    def visit_loop(loop: tvm.tirx.For) -> None:
        if isinstance(loop.extent, tvm.tirx.IntImm) and int(loop.extent) == 0:
            empty.append(loop)

    tvm_ffi.structural_walk(func.body, (tvm.tirx.For, visit_loop))
    return bool(empty)


def schedule(kernel: tvm.IRModule) -> Schedule:
    """Any kernel, with as little done to it as possible."""
    sch = Schedule(kernel)
    if not is_schedulable(kernel["main"]):
        return sch
    for name in block_names(sch):
        loops = sch.get_loops(sch.get_sblock(name))
        try:
            if loops:
                sch.parallel(loops[0])
        except ScheduleError:
            continue
    return sch
