"""Which family schedules which kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tvm
import tvm_ffi

from edgetune.kernels import contraction, generic, window
from edgetune.kernels.schedules import KERNEL_ATTR

if TYPE_CHECKING:
    from tvm.s_tir import Schedule

    from edgetune.records import Task
    from edgetune.targets import Target

FAMILIES = {family.KIND: family for family in (contraction, window, generic)}


def kind_of(func: tvm.tirx.PrimFunc) -> str:
    """Name of the family that schedules a kernel, read from its block annotations."""
    kinds: list[str] = []

    def visit(block: tvm.s_tir.SBlock) -> None:
        if KERNEL_ATTR in block.annotations:
            kinds.append(str(block.annotations[KERNEL_ATTR]))

    tvm_ffi.structural_walk(func.body, (tvm.s_tir.SBlock, visit))
    return kinds[0] if len(kinds) == 1 else generic.KIND


def design_spaces(task: Task, target: Target) -> list[Schedule]:
    """Every design space of a task; the decisions in the first one's trace are the default schedule."""
    return list(FAMILIES[task.kind].spaces(tvm.ir.load_json(task.ir), target))


def default_schedule(kernel: tvm.IRModule, target: Target) -> Schedule:
    """The schedule of a kernel (``main`` of a module) that nothing was measured for."""
    return next(FAMILIES[kind_of(kernel["main"])].spaces(kernel, target))
