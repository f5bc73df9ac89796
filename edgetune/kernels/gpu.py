"""Every kernel on a GPU: bound to threads by default, and MetaSchedule's own spaces for CUDA.

A kernel of a CUDA target that is not bound to threads would run on the host, with addresses of the GPU's memory. So
the default schedule gives each element of a result a thread of its own; what cannot be bound so falls to TVM's
``DefaultGPUSchedule``; and what is still not bound is refused.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import tvm
import tvm_ffi
from tvm.s_tir import Schedule

from edgetune.errors import UnsupportedModelError
from edgetune.kernels import plain
from edgetune.kernels.schedules import block_names
from edgetune.metaschedule import tune_context

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edgetune.kernels.schedules import Space
    from edgetune.targets import Target

KIND = "gpu"


def spaces(mod: tvm.IRModule, target: Target) -> Iterator[Space]:
    """Schedules of a kernel: a thread for each element, threads that reduce together, and MetaSchedule's.

    The last ones are bound to threads by MetaSchedule's postprocessors, which the search applies. There is none for a
    kernel that starts its threads itself: it stays as it is.
    """
    from tvm.s_tir.dlight.gpu import Fallback, GeneralReduction

    if starts_threads(mod["main"]):
        return
    yield functools.partial(_by_rule, Fallback(), mod, target)
    yield functools.partial(_by_rule, GeneralReduction(), mod, target)
    for schedule in _stock(mod, target):
        yield functools.partial(Schedule.copy, schedule)


def _by_rule(rule: tvm.s_tir.dlight.ScheduleRule, mod: tvm.IRModule, target: Target) -> Schedule:
    """A kernel under a rule of TVM's dlight.

    Raises:
        ValueError: the rule is not for this kernel.
    """
    tvm_target = target.tvm()
    with tvm_target:
        schedule = rule.apply(mod["main"], tvm_target, False)
    if not isinstance(schedule, Schedule) or not is_bound(schedule):
        raise ValueError(f"{type(rule).__name__} is not for this kernel")
    return schedule


def _stock(mod: tvm.IRModule, target: Target) -> list[Schedule]:
    """Design spaces of MetaSchedule's general rules for CUDA, without tensor cores."""
    from tvm.s_tir.meta_schedule.schedule_rule import ScheduleRule
    from tvm.s_tir.meta_schedule.space_generator import PostOrderApply

    # All three given: else MetaSchedule adds what it has for the target, and tensor intrinsics that are not there.
    generator = PostOrderApply(sch_rules=ScheduleRule.create("cuda"), postprocs=[], mutator_probs={})
    return list(tune_context(mod, target.tvm(), generator).generate_design_space())


def last_resort(kernel: tvm.IRModule, target: Target) -> Schedule:
    """A kernel under TVM's own default, or as it is where it starts its threads itself or computes nothing.

    Raises:
        UnsupportedModelError: it is not bound to threads even so.
    """
    if plain.has_empty_loops(kernel["main"]) or starts_threads(kernel["main"]):
        return Schedule(kernel)
    with target.tvm():
        schedule = Schedule(tvm.s_tir.transform.DefaultGPUSchedule()(kernel))
    if not is_bound(schedule):
        name = kernel["main"].attrs.get("global_symbol", "main")
        raise UnsupportedModelError(
            f"the kernel {name} cannot be put onto the threads of a GPU; compile the model for the CPU "
            f"of {target.name} instead"
        )
    return schedule


def is_bound(schedule: Schedule) -> bool:
    """Whether every block of a kernel runs on a GPU's threads; not so for a kernel without blocks."""
    names = block_names(schedule)
    return bool(names) and all(_is_bound(schedule, name) for name in names)


def _is_bound(schedule: Schedule, name: str) -> bool:
    block = schedule.get_sblock(name)
    loops = (schedule.get(loop) for loop in schedule.get_loops(block))
    return any(loop.thread_binding is not None for loop in loops) or starts_threads(schedule.get(block))


def starts_threads(node: tvm.tirx.PrimFunc | tvm.s_tir.SBlock) -> bool:
    """Whether threads are started within, as in TVM's kernels that sort and sum up."""
    found: list[bool] = []

    def visit_attribute(attribute: tvm.tirx.AttrStmt) -> None:
        found.append(attribute.attr_key == "thread_extent")

    def visit_loop(loop: tvm.tirx.For) -> None:
        found.append(loop.kind == tvm.tirx.ForKind.THREAD_BINDING)

    tvm_ffi.structural_walk(node.body, (tvm.tirx.AttrStmt, visit_attribute))
    tvm_ffi.structural_walk(node.body, (tvm.tirx.For, visit_loop))
    return any(found)
