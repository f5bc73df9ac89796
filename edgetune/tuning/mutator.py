"""A mutation that MetaSchedule lacks: another choice for a categorical decision.

Its own mutators change tile sizes, compute locations, unrolling and the number of parallel jobs. A
``sample_categorical`` that picks among a schedule's variants would stay as it was first drawn.
"""

from __future__ import annotations

import random
from typing import Any


def mutate_categorical(seed: int) -> Any:
    """Return a MetaSchedule mutator that changes one categorical decision of a trace."""
    from tvm.ir.utils import derived_object
    from tvm.s_tir.meta_schedule.mutator import PyMutator

    @derived_object
    class MutateCategorical(PyMutator):
        def __init__(self) -> None:
            super().__init__()
            self.random = random.Random(seed)

        def _initialize_with_tune_context(self, context: Any) -> None:
            pass

        def apply(self, trace: Any, _: Any) -> Any:
            choices = [
                inst
                for inst in trace.insts
                if inst.kind.name == "SampleCategorical"
                and len(inst.attrs[0]) > 1
                and inst in trace.decisions
            ]
            if not choices:
                return None
            chosen = self.random.choice(choices)
            current = int(trace.decisions[chosen])
            others = [i for i in range(len(chosen.attrs[0])) if i != current]
            return trace.with_decision(chosen, self.random.choice(others), remove_postproc=True)

        def clone(self) -> Any:
            return mutate_categorical(self.random.randrange(2**31))

    return MutateCategorical()
