"""MetaSchedule's own design spaces, for kernels that are none of edgetune's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgetune.metaschedule import tune_context
from edgetune.records import Task
from edgetune.tuning.build import entry_module

if TYPE_CHECKING:
    from tvm.s_tir import Schedule

    from edgetune.targets import Target


def stock_spaces(task: Task, target: Target) -> list[Schedule]:
    """Return the design spaces of MetaSchedule's default rules for any CPU.

    Those that it has for a CPU with VNNI or dot products name tensor intrinsics, which take long to register.
    """
    import tvm
    from tvm.s_tir.meta_schedule.space_generator import PostOrderApply

    mod = entry_module(tvm.ir.load_json(task.ir))
    rules = PostOrderApply(sch_rules="llvm", postprocs="llvm", mutator_probs="llvm")
    return list(tune_context(mod, target.tvm(), rules).generate_design_space())
