"""Which family schedules which kernel, and what is done where a family cannot.

A schedule is written for the kernels that are known to arise. Where one does not apply to a kernel, the next space
is taken; where none of the family's does, the generic family's; and where these fail too, the loops stay as they are
and the outermost ones run in parallel. A model is never refused because of a schedule.

All kernels of a GPU are of one family, whatever their computation: see :mod:`edgetune.kernels.gpu`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import tvm
import tvm_ffi
from tvm.s_tir import Schedule

from edgetune.kernels import contraction, generic, gpu, integer, plain, window, winograd
from edgetune.kernels.schedules import KERNEL_ATTR

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from edgetune.records import Task
    from edgetune.targets import Target

_LOGGER = logging.getLogger("edgetune.kernels")
FAMILIES = {family.KIND: family for family in (contraction, integer, window, winograd, generic)}


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
    return list(_schedules(tvm.ir.load_json(task.ir), target))


def default_schedule(kernel: tvm.IRModule, target: Target) -> Schedule:
    """The schedule of a kernel (``main`` of a module) that nothing was measured for."""
    return next(_schedules(kernel, target))


def _schedules(kernel: tvm.IRModule, target: Target) -> Iterator[Schedule]:
    """The schedules of a kernel, best guess first; there is always one."""
    func = kernel["main"]
    if plain.is_schedulable(func):
        families = (gpu,) if target.kind == "cuda" else (FAMILIES[kind_of(func)], generic)
        for family in dict.fromkeys(families):
            found = False
            for schedule in _possible(family, kernel, target):
                found = True
                yield schedule
            if found:
                return
    yield last_resort(kernel, target)


def last_resort(kernel: tvm.IRModule, target: Target) -> Schedule:
    """A kernel with as little done to it as the target allows.

    Raises:
        UnsupportedModelError: it cannot be bound to a GPU's threads.
    """
    return gpu.last_resort(kernel, target) if target.kind == "cuda" else plain.schedule(kernel)


def _possible(family: ModuleType, kernel: tvm.IRModule, target: Target) -> Iterator[Schedule]:
    """The schedules of a family that can be applied to a kernel."""
    spaces = family.spaces(kernel, target)
    while True:
        try:
            space = next(spaces, None)
            if space is None:
                return
            schedule = space()
        except (
            Exception
        ) as error:  # TVM raises many types here, and each means that the schedule does not fit
            lines = str(error).strip().splitlines() or [""]
            _LOGGER.info(
                "a schedule of family %s does not fit: %s: %s", family.KIND, type(error).__name__, lines[-1]
            )
            continue
        yield schedule
