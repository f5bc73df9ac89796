"""Proposes candidates for a task: MetaSchedule's evolutionary search over the task's design spaces.

The design spaces come as schedules with traces. Their own decisions are proposed first, the default
schedule before all. After that a small population, seeded with the best measured candidates, is mutated
for a few generations under the cost model; a part of each batch is random. No candidate is proposed
twice, nor one that an earlier run measured: equal are candidates with the same trace or the same
scheduled code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from edgetune.metaschedule import apply_trace, trace_text, tune_context
from edgetune.records import Candidate, Failure, Task, Timing
from edgetune.tuning.build import entry_module
from edgetune.tuning.cost_model import CostModel, Extractor, as_metaschedule
from edgetune.tuning.mutator import mutate_categorical

if TYPE_CHECKING:
    from tvm.s_tir import Schedule

    from edgetune.targets import Target

POPULATION = 32
GENERATIONS = 2
"""MetaSchedule's defaults, 512 and 4, cost more than building and measuring what they find: extracting the
features of one candidate for the cost model takes 5 to 15 ms."""
RANDOM_SHARE = 0.15
_MUTATIONS = {"tile": 0.45, "categorical": 0.45, "location": 0.05, "unroll": 0.03, "parallel": 0.02}
_SEEDS = 48
"""How many known candidates, the best of them, enter the population and the cost model of a new search."""
_ROUNDS = 3
"""Searches for one batch, as known candidates come up again. So many in a row without a new one: the design
spaces are exhausted."""
_PICKS = 16
_LARGE = 1_000_000

Spaces = Callable[[Task, "Target"], "list[Schedule]"]
"""Gives the design spaces of a task; the first one's decisions are the default schedule."""

Measured = tuple[Candidate, Timing | Failure]


class SearchPolicy(Protocol):
    """Chooses what to measure for one task. Threads: one at a time."""

    def propose(self, count: int) -> list[Candidate]:
        """Return up to ``count`` new candidates; none when there are no others."""
        ...

    def learn(self, results: Sequence[Measured]) -> None:
        """Take note of measured candidates."""
        ...


SearchFactory = Callable[[Task, Sequence[Measured]], SearchPolicy]
"""Starts a search for a task, given what was measured for it before."""


@dataclass(frozen=True)
class SearchSettings:
    """What the searches of a run share.

    Attributes:
        target: what to search for.
        spaces: the design spaces of each task; a module's function, since searches run in a process of
            their own.
        seed: of every random choice.
        threads: for MetaSchedule's parallel loops and the cost model.
    """

    target: Target
    spaces: Spaces
    seed: int
    threads: int


@dataclass(frozen=True)
class _Proposal:
    schedule: Schedule
    trace: str
    code: int


class EvolutionarySearch:
    """MetaSchedule's evolutionary search, one batch at a time.

    Args:
        settings: what all searches share.
        model: the cost model, shared by all tasks.
        task: the kernel.
        known: what was measured before; it is not proposed again, and seeds the search.
        hints: traces to try right after the default schedule, where they fit.

    Raises:
        Exception: whatever the design spaces raise for this task.
    """

    def __init__(
        self,
        settings: SearchSettings,
        model: CostModel,
        task: Task,
        known: Sequence[Measured],
        hints: Sequence[str] = (),
    ) -> None:
        import tvm

        self._task = task
        self._model = model
        self._mod = entry_module(tvm.ir.load_json(task.ir))
        self._target = settings.target.tvm()
        self._spaces = list(settings.spaces(task, settings.target))
        if not self._spaces:
            raise ValueError("the task has no design space")
        self._seen_traces = {candidate.trace for candidate, _ in known}
        self._seen_code: set[int] = set()
        self._schedules: dict[str, Schedule] = {}
        self._extractor = Extractor()
        self._hints = list(hints)
        self._own = list(self._spaces)
        self._empty_rounds = 0
        self._start(settings)
        self.learn(sorted(known, key=_seconds)[:_SEEDS])

    def propose(self, count: int) -> list[Candidate]:
        """Return up to ``count`` candidates that nobody measured; none when the spaces are exhausted."""
        chosen: list[Candidate] = []
        while (self._own or self._hints) and len(chosen) < count:
            schedule = self._next_given()
            if schedule is not None:
                chosen += self._keep(self._new([schedule]))
        for _ in range(_ROUNDS):
            room = count - len(chosen)
            if room <= 0 or self._empty_rounds >= _ROUNDS:
                break
            fresh = self._new(self._evolve(room))
            self._empty_rounds = 0 if fresh else self._empty_rounds + 1
            chosen += self._keep(_share(fresh, room))
        return chosen

    def learn(self, results: Sequence[Measured]) -> None:
        """Seed later generations with good candidates, and train the cost model with all."""
        from tvm.s_tir.meta_schedule.database import TuningRecord
        from tvm.s_tir.meta_schedule.search_strategy import MeasureCandidate

        candidates, times = [], []
        for candidate, outcome in results:
            schedule = self._schedules.pop(candidate.trace, None) or self._replayed(candidate.trace)
            if schedule is None:
                continue
            time_s = outcome.median_s if isinstance(outcome, Timing) else None
            candidates.append(MeasureCandidate(schedule, self._args_info))
            times.append(time_s)
            if time_s is not None:
                self._database.commit_tuning_record(
                    TuningRecord(schedule.trace, self._workload, [time_s], self._target, self._args_info)
                )
        if candidates:
            self._model.add(self._task.workload, self._extractor.vectors(self._context, candidates), times)

    def _start(self, settings: SearchSettings) -> None:
        from tvm.s_tir.meta_schedule.arg_info import ArgInfo
        from tvm.s_tir.meta_schedule.database import MemoryDatabase
        from tvm.s_tir.meta_schedule.search_strategy import EvolutionarySearch as Strategy
        from tvm.s_tir.meta_schedule.space_generator import ScheduleFn

        # A task's own seed: the order in which tasks are searched must not matter.
        seed = (settings.seed * 31 + int(self._task.workload[:6], 16)) % (2**31 - 2) + 1
        kind = "cuda" if settings.target.kind == "cuda" else "llvm"
        self._postprocs, mutators = _rules(kind, seed)
        self._context = tune_context(
            self._mod,
            self._target,
            ScheduleFn(lambda _: self._spaces, [], self._postprocs, mutators),
            Strategy(
                population_size=POPULATION,
                init_measured_ratio=0.4,
                init_min_unmeasured=1,
                max_fail_count=5,
                genetic_num_iters=GENERATIONS,
                genetic_mutate_prob=0.85,
                genetic_max_fail_count=10,
                eps_greedy=RANDOM_SHARE,
            ),
            seed=seed,
            threads=settings.threads,
        )
        self._database = MemoryDatabase()
        self._workload = self._database.commit_workload(self._mod)
        self._args_info = ArgInfo.from_entry_func(self._mod, False)
        self._cost_model = as_metaschedule(self._model, self._extractor)
        self._batch = 0

    def _evolve(self, count: int) -> list[Schedule]:
        """Run one search for ``count`` or more; return the schedules it picks, best first, random ones last."""
        if self._batch < count or self._empty_rounds:
            # The number of picks is fixed when the search starts, which also forgets what it picked before: more than
            # was asked for, in a small space all there is.
            if self._batch:
                self._context.post_tuning()
            self._batch = max(count, _PICKS)
            self._context.pre_tuning(_LARGE, self._batch, self._spaces, self._database, self._cost_model)
        found = self._context.generate_measure_candidates()
        return [candidate.sch for candidate in found or ()]

    def _new(self, schedules: Sequence[Schedule]) -> list[_Proposal]:
        """Those, in their order, that equal none of the others and none seen before."""
        import tvm_ffi

        new: list[_Proposal] = []
        traces, codes = set(self._seen_traces), set(self._seen_code)
        for schedule in schedules:
            trace, code = trace_text(schedule.trace), tvm_ffi.structural_hash(schedule.mod)
            if trace not in traces and code not in codes:
                new.append(_Proposal(schedule, trace, code))
            traces.add(trace)
            codes.add(code)
        return new

    def _keep(self, proposals: Sequence[_Proposal]) -> list[Candidate]:
        """Remember as seen."""
        for proposal in proposals:
            self._seen_traces.add(proposal.trace)
            self._seen_code.add(proposal.code)
            self._schedules[proposal.trace] = proposal.schedule
        return [Candidate(self._task.workload, proposal.trace) for proposal in proposals]

    def _next_given(self) -> Schedule | None:
        """Take the next of the default schedule, the hints, and the other spaces' own decisions."""
        if self._own and (len(self._own) == len(self._spaces) or not self._hints):
            return self._finished(self._own.pop(0))
        return self._applied(self._hints.pop(0))

    def _finished(self, space: Schedule) -> Schedule | None:
        """Apply the postprocessors to a design space's own decisions; None where one refuses."""
        schedule = space.copy()
        schedule.enter_postproc()
        for postproc in self._context.space_generator.postprocs:
            if not postproc.apply(schedule):
                return None
        return schedule

    def _replayed(self, trace: str) -> Schedule | None:
        """Apply a trace of an earlier run, and remember its code; None where it does not fit any more."""
        import tvm_ffi

        schedule = self._applied(trace)
        if schedule is not None:
            self._seen_code.add(tvm_ffi.structural_hash(schedule.mod))
        return schedule

    def _applied(self, trace: str) -> Schedule | None:
        try:
            return apply_trace(trace, self._mod)
        except Exception:
            return None


def _share(proposals: Sequence[_Proposal], count: int) -> Sequence[_Proposal]:
    """``count`` of them, best first, with their share of random ones, which stand at the end."""
    if len(proposals) <= count:
        return proposals
    random_part = max(1, round(count * RANDOM_SHARE)) if count > 1 else 0
    return [*proposals[: count - random_part], *proposals[len(proposals) - random_part :]]


def _rules(kind: str, seed: int) -> tuple[list[Any], dict[Any, float]]:
    """Return postprocessors and mutators with their probabilities.

    Given explicitly, because MetaSchedule's choice "from the target" makes schedule rules as well, which
    need the tensor intrinsics that ``metaschedule.tune_context`` does not import.
    """
    from tvm.s_tir.meta_schedule import mutator
    from tvm.s_tir.meta_schedule.postproc import Postproc

    mutators: dict[Any, float] = {
        mutator.MutateTileSize(): _MUTATIONS["tile"],
        mutate_categorical(seed): _MUTATIONS["categorical"],
        mutator.MutateComputeLocation(): _MUTATIONS["location"],
        mutator.MutateUnroll(): _MUTATIONS["unroll"],
    }
    if kind == "cuda":
        mutators[mutator.MutateThreadBinding()] = _MUTATIONS["parallel"]
    else:
        mutators[mutator.MutateParallel(max_jobs_per_core=16)] = _MUTATIONS["parallel"]
    return list(Postproc.create(kind)), mutators


def _seconds(measured: Measured) -> float:
    outcome = measured[1]
    return outcome.median_s if isinstance(outcome, Timing) else float("inf")
