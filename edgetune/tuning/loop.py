"""The tuning run: spends a budget of trials on the tasks of a model.

::

    logs -> what is known            records of this target and device count, and are not measured again
         -> pipeline                 allocation, search, build (other threads and processes)
         -> measure                  here, batch by batch, between two runs of the reference kernel
         -> logs                     each trial, as soon as it is measured
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from edgetune.errors import TuningError
from edgetune.logs.values import is_settled
from edgetune.machine import usable_cores
from edgetune.records import Artifact, Candidate, Failure, FailureKind, Record, Task, Timing
from edgetune.tuning.allocation import AllocationPolicy, GainPolicy, TaskState
from edgetune.tuning.builder import Builder, CandidateBuilder
from edgetune.tuning.gate import Gate
from edgetune.tuning.interrupt import Interrupt
from edgetune.tuning.measure import DeviceMeasurer, Measurer
from edgetune.tuning.options import Budget, TuningOptions
from edgetune.tuning.outcome import BatchConditions, DriftReport, Progress, TuningOutcome
from edgetune.tuning.pipeline import Batch, Pipeline
from edgetune.tuning.pulse import build_pulse
from edgetune.tuning.search import Measured, SearchFactory, SearchSettings, Spaces
from edgetune.tuning.search_process import SearchProcess
from edgetune.tuning.workers import PRELOAD, ForkServer, WorkerPool
from edgetune.versions import versions

if TYPE_CHECKING:
    from edgetune.devices.transport import Device
    from edgetune.logs import TuningLogs
    from edgetune.targets import Target

ProgressCallback = Callable[[Progress], None]


def tune_tasks(
    tasks: Sequence[Task],
    target: Target,
    device: Device,
    logs: TuningLogs,
    *,
    spaces: Spaces,
    budget: Budget,
    options: TuningOptions | None = None,
    progress: ProgressCallback | None = None,
) -> TuningOutcome:
    """Tune tasks for a target on a device, and record every trial.

    Ctrl-C ends the run in an orderly way (a second one at once); what was found until then is returned.
    Every trial is in the logs before the next one starts: nothing else needs to survive a kill.

    Args:
        tasks: with distinct workloads.
        target: what to compile for.
        device: where to measure; it is brought up here, unless the caller has done so.
        logs: what is known, and where new records go.
        spaces: gives the design spaces of a task; a module's function.
        budget: what may be spent. Records of this target and device that the logs have already count.
        options: settings.
        progress: called in this thread after each measured candidate; must be quick.

    Raises:
        DeviceError: the device does not come up, or is lost on the way.
        TuningError: the build processes do not work.
        LogsError: the logs cannot be read or written.
    """
    options = options or TuningOptions()
    run = Run(tasks, target, device.name, logs, budget, options, progress)
    if run.has_work():
        hints = _hints(tasks, target, device.name, logs)
        seed = options.seed if options.seed is not None else random.randrange(1, 2**31)
        cores = usable_cores()
        with ExitStack() as stack:
            interrupt = stack.enter_context(Interrupt())
            server = stack.enter_context(ForkServer((*PRELOAD, *options.preload)))
            stack.enter_context(device.up())
            builds = stack.enter_context(WorkerPool(server, options.workers or cores))
            searching = stack.enter_context(WorkerPool(server, 1))
            pulse = _pulse_library(builds, target, options)
            measurer = DeviceMeasurer(
                device, target.kind, target.threads, pulse, options.measure, options.device_timeout_s
            )
            stack.callback(measurer.close)
            run.measure_all(
                SearchProcess(searching, SearchSettings(target, spaces, seed, cores), hints),
                Builder(builds, target, options.build_timeout_s, options.reference_timeout_s),
                measurer,
                Gate(device.shares_host),
                interrupt,
            )
    return run.outcome()


def _hints(
    tasks: Sequence[Task], target: Target, device: str, logs: TuningLogs
) -> dict[str, tuple[str, ...]]:
    """Traces worth trying first: the best ones of other devices, shipped logs and similar targets."""
    from edgetune.logs import LayeredLogs

    layered = LayeredLogs(logs)
    hints = {}
    for task in tasks:
        best = layered.best(task.workload, target)
        found = [best] if best is not None and best.device != device else []
        found += layered.similar(task.workload, target)
        if found:
            hints[task.workload] = tuple(dict.fromkeys(record.trace for record in found))
    return hints


def _pulse_library(pool: WorkerPool, target: Target, options: TuningOptions) -> bytes:
    """Build the reference kernel: the first thing that fails where a target cannot be built for."""
    try:
        library: bytes = pool.call(build_pulse, target, timeout_s=options.reference_timeout_s)
    except TuningError:
        raise
    except Exception as error:
        raise TuningError(
            f"Cannot build the reference kernel for target '{target.name}': {error}. "
            "Check the target with `edgetune targets show`."
        ) from error
    return library


class Run:
    """The state of a tuning run, and the thread that measures.

    Built from parts that can be replaced (``measure_all``), which is how policies are tested on recorded
    timings.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        target: Target,
        device: str,
        logs: TuningLogs,
        budget: Budget,
        options: TuningOptions,
        progress: ProgressCallback | None = None,
        policy: AllocationPolicy | None = None,
    ) -> None:
        self._started = time.monotonic()
        self._target = target
        self._device = device
        self._logs = logs
        self._budget = budget
        self._options = options
        self._progress = progress
        self._policy = policy or GainPolicy(options.batch, options.first_batch, options.patience)
        self._versions = versions()
        self._states = [TaskState(task) for task in tasks]
        self._records: dict[str, list[Record]] = {task.workload: [] for task in tasks}
        self._failures: Counter[str] = Counter()
        self._drift = DriftReport(bound=options.measure.drift_bound)
        self._pulses: list[float] = []
        self._spent = 0
        self.interrupted = False
        self._recall()

    @property
    def reused(self) -> int:
        """Trials taken from the logs."""
        return sum(state.reused for state in self._states)

    def has_work(self) -> bool:
        """Whether any task may still get a trial."""
        return self._policy.choose(self._states, self._left()) is not None and not self._time_is_up()

    def measure_all(
        self,
        searches: SearchFactory,
        builder: CandidateBuilder,
        measurer: Measurer,
        gate: Gate,
        interrupt: Interrupt,
    ) -> None:
        """Measure until the budget is spent, nothing is left to measure, or Ctrl-C."""

        def stop() -> bool:
            self.interrupted = interrupt.requested
            return self.interrupted or self._time_is_up()

        def known(state: TaskState) -> list[Measured]:
            return [_measured(record) for record in self._records[state.task.workload]]

        pipeline = Pipeline(
            self._states, self._policy, searches, known, builder, gate, self._left, self._options.batch
        )
        with pipeline:
            self._report("starting")
            while batches := pipeline.next(stop):
                with gate.measuring():
                    records = self._measure_steadily(pipeline, batches, measurer, stop)
                for batch, measured in zip(batches, records, strict=True):
                    pipeline.done(batch, [_measured(record) for record in measured])
                self._report("searching and building")

    def outcome(self) -> TuningOutcome:
        """Return what came of the run."""
        tasks = tuple(state.outcome() for state in self._states)
        is_open = any(state.is_open for state in self._states)
        return TuningOutcome(
            tasks,
            self._spent,
            self.reused,
            dict(self._failures),
            self.interrupted,
            is_open and not self.interrupted,
            self._drift,
            time.monotonic() - self._started,
        )

    def _recall(self) -> None:
        """Take over what the logs know, as if it had just been measured."""
        by_workload = {state.task.workload: state for state in self._states}
        self._logs.register_target(self._target)
        for record in self._logs.records(by_workload, self._target, self._device):
            if is_settled(record):
                state = by_workload[record.workload]
                state.reused += 1
                self._count(state, record)

    def _count(self, state: TaskState, record: Record) -> None:
        state.add(record, self._options.patience)
        if isinstance(record.outcome, Failure):
            self._failures[record.outcome.kind.value] += 1
        self._records[record.workload].append(record)

    def _left(self) -> int | None:
        """Trials that the budget still allows, those under way not yet taken off."""
        if self._budget.trials is None:
            return None
        return max(0, self._budget.trials - sum(state.trials for state in self._states))

    def _time_is_up(self) -> bool:
        limit_s = self._budget.time_s
        return limit_s is not None and time.monotonic() - self._started >= limit_s

    def _measure_steadily(
        self, pipeline: Pipeline, batches: Sequence[Batch], measurer: Measurer, stop: Callable[[], bool]
    ) -> list[list[Record]]:
        """Measure batches between two pulses, and once more where the device drifted meanwhile."""
        before = measurer.settle()
        records = [self._measure_batch(pipeline, batch, measurer, stop) for batch in batches]
        after = measurer.pulse()
        drift = _change(before, after)
        remeasured = drift > self._options.measure.drift_bound and not stop()
        if remeasured:
            before = measurer.settle()
            for batch, measured in zip(batches, records, strict=True):
                _prepare(measurer, batch)
                measured[:] = [self._again(batch, record, measurer, stop) for record in measured]
                with pipeline.changing():
                    self._recount(batch.state, measured)
            after = measurer.pulse()
            drift = _change(before, after)
        self._note_drift(before, after, measurer.conditions().judged(drift, self._drift.bound, remeasured))
        return records

    def _measure_batch(
        self, pipeline: Pipeline, batch: Batch, measurer: Measurer, stop: Callable[[], bool]
    ) -> list[Record]:
        """Measure and record one candidate after the other."""
        _prepare(measurer, batch)
        records: list[Record] = []
        for candidate, built in batch.items:
            if stop():
                break
            best_s = batch.state.best_s
            outcome = measurer.measure(built, best_s) if isinstance(built, Artifact) else built
            record = self._record(batch.state.task, candidate, outcome)
            self._logs.add(record)
            with pipeline.changing():
                self._count(batch.state, record)
                batch.count_one()
            self._spent += 1
            records.append(record)
            self._report("measuring")
        return records

    def _again(self, batch: Batch, old: Record, measurer: Measurer, stop: Callable[[], bool]) -> Record:
        """Measure a candidate that worked a second time; that time counts."""
        artifact = next((a for a in batch.artifacts if a.candidate.trace == old.trace), None)
        if artifact is None or not isinstance(old.outcome, Timing) or stop():
            return old
        # In full, unless it was slow before: the best time known may come from the unsteady moment.
        outcome = measurer.measure(artifact, batch.state.best_s if old.outcome.slow else None)
        if isinstance(outcome, Failure):
            if outcome.kind is not FailureKind.WRONG_RESULT:
                # It worked once: the failure is the unsteady device's.
                return old
            self._failures[outcome.kind.value] += 1
        new = replace(old, outcome=outcome, created_s=time.time())
        self._logs.replace(new)
        return new

    def _recount(self, state: TaskState, records: Sequence[Record]) -> None:
        again = {record.trace: record for record in records}
        kept = self._records[state.task.workload]
        kept[:] = [again.get(record.trace, record) for record in kept]
        state.recount(kept, self._options.patience)

    def _note_drift(self, before: float, after: float, batch: BatchConditions) -> None:
        self._pulses += [before, after]
        known, drift, remeasured = self._drift, batch.drift, batch.remeasured
        self._drift = replace(
            known,
            batches=known.batches + 1,
            remeasured=known.remeasured + remeasured,
            unsteady=known.unsteady + (remeasured and drift > known.bound),
            worst=max(known.worst, drift),
            spread=max(self._pulses) / min(self._pulses) - 1,
            conditions=(*known.conditions, batch),
        )

    def _record(self, task: Task, candidate: Candidate, outcome: Timing | Failure) -> Record:
        return Record(
            task.workload,
            self._target.fingerprint,
            self._device,
            candidate.trace,
            outcome,
            self._versions,
            time.time(),
            task.name,
            task.kind,
        )

    def _report(self, activity: str) -> None:
        if self._progress is None:
            return
        elapsed_s = time.monotonic() - self._started
        per_minute = self._spent / elapsed_s * 60 if elapsed_s > 0 else 0.0
        trials_left = self._left()
        left_s = None if self._budget.time_s is None else max(0.0, self._budget.time_s - elapsed_s)
        if trials_left is not None and per_minute > 0:
            needed_s = trials_left / per_minute * 60
            left_s = needed_s if left_s is None else min(left_s, needed_s)
        self._progress(
            Progress(
                tuple(state.outcome() for state in self._states),
                self._spent,
                self.reused,
                dict(self._failures),
                elapsed_s,
                left_s,
                trials_left,
                per_minute,
                self._drift,
                activity,
            )
        )


def _prepare(measurer: Measurer, batch: Batch) -> None:
    if batch.prepared is not None:
        measurer.prepare(batch.prepared)


def _measured(record: Record) -> Measured:
    return Candidate(record.workload, record.trace), record.outcome


def _change(before_s: float, after_s: float) -> float:
    """Relative change between two times, 0.25 for a quarter more or less."""
    return max(before_s, after_s) / min(before_s, after_s) - 1
