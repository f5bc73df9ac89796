"""Kernels of small models under every schedule of their spaces, run and compared with the unscheduled kernel."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import tvm
import tvm_ffi
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import Trace

from edgetune.kernels.registry import design_spaces
from edgetune.metaschedule import apply_trace, trace_text
from edgetune.records import Task
from edgetune.targets import Target
from edgetune.tuning.arguments import argument_specs, disagreement, random_arguments


class Reference:
    """Arguments of a task's kernel, and what it computes unscheduled."""

    def __init__(self, task: Task, target: Target) -> None:
        self.target = target.tvm()
        kernel = tvm.ir.load_json(task.ir)
        self.specs = argument_specs(kernel["main"])
        self.arguments = random_arguments(self.specs, task.workload)
        self.expected = self.run(kernel)

    def run(self, mod: tvm.IRModule) -> list[np.ndarray]:
        tensors = [tvm.runtime.tensor(a) for a in self.arguments]
        tvm.tirx.build(mod, target=self.target)["main"](*tensors)
        return [t.numpy() for t in tensors]

    def problem(self, mod: tvm.IRModule) -> str | None:
        """Where a scheduled kernel computes something else; None where it does not."""
        for expected, got in zip(self.expected, self.run(mod), strict=True):
            found = disagreement(expected, got)
            if found:
                return found
        return None


def samples(task: Task, target: Target, count: int) -> Iterator[tuple[int, Schedule | None]]:
    """The first decisions of every space, then ``count`` random ones each.

    None stands for decisions that do not fit the kernel: a failure of that candidate, which tuning records.
    """
    kernel = tvm.ir.load_json(task.ir)
    for index, space in enumerate(design_spaces(task, target)):
        yield index, space
        for seed in range(1, count + 1):
            schedule = Schedule(kernel, seed=seed, debug_mask=0, error_render_level="none")
            try:
                Trace(space.trace.insts, {}).apply_to_schedule(schedule, remove_postproc=False)
            except (RuntimeError, ValueError):
                yield index, None
                continue
            yield index, schedule


def replays(task: Task, schedule: Schedule) -> bool:
    """Whether the schedule's trace as JSON gives the same kernel."""
    again = apply_trace(trace_text(schedule.trace), tvm.ir.load_json(task.ir))
    return bool(tvm_ffi.structural_equal(again.mod, schedule.mod))
