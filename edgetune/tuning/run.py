"""The state of a tuning run: what is measured next, and what is known.

Each device measures in a thread of its own (:mod:`edgetune.tuning.fleet`); all that they share is changed while
the pipeline's lock is held.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from edgetune.errors import DeviceError
from edgetune.logs.values import is_settled
from edgetune.records import Artifact, Candidate, Failure, FailureKind, Record, Stage, Task, Timing
from edgetune.tuning.allocation import AllocationPolicy, GainPolicy, TaskState
from edgetune.tuning.builder import CandidateBuilder
from edgetune.tuning.fleet import Fleet, News, Station
from edgetune.tuning.gate import Gate
from edgetune.tuning.interrupt import Interrupt
from edgetune.tuning.measure import DeviceLostError, Measurer
from edgetune.tuning.options import Budget, TuningOptions
from edgetune.tuning.outcome import BatchConditions, DeviceOutcome, DriftReport, Progress, TuningOutcome
from edgetune.tuning.pipeline import Batch, Pipeline
from edgetune.tuning.search import Measured, SearchFactory
from edgetune.versions import versions

if TYPE_CHECKING:
    from edgetune.logs import TuningLogs
    from edgetune.targets import Target

ProgressCallback = Callable[[Progress], None]


class Run:
    """The state of a tuning run, and what a device does in its turn.

    Built from parts that can be replaced (``measure_all``), which is how policies are tested on recorded
    timings.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        target: Target,
        devices: Sequence[str],
        logs: TuningLogs,
        budget: Budget,
        options: TuningOptions,
        progress: ProgressCallback | None = None,
        policy: AllocationPolicy | None = None,
        news: News = lambda _: None,
    ) -> None:
        self._started = time.monotonic()
        self._target = target
        self._devices = tuple(devices)
        self._logs = logs
        self._budget = budget
        self._options = options
        self._progress = progress
        self._news = news
        self._policy = policy or GainPolicy(options.batch, options.first_batch, options.patience)
        self._versions = versions()
        self._states = [TaskState(task) for task in tasks]
        self._records: dict[str, list[Record]] = {task.workload: [] for task in tasks}
        self._failures: Counter[str] = Counter()
        self._drift = DriftReport(bound=options.measure.drift_bound)
        self._reference_times_s: dict[str, list[float]] = {device: [] for device in devices}
        self._spent = 0
        self._device_outcomes: tuple[DeviceOutcome, ...] = ()
        self._lost = ""
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
        measurers: Mapping[str, Measurer],
        gate: Gate,
        interrupt: Interrupt,
    ) -> None:
        """Measure until the budget is spent, nothing is left to measure or to measure on, or Ctrl-C.

        Args:
            measurers: by device; they are closed.

        Raises:
            DeviceError: no device works, and nothing is known either.
        """

        def stop() -> bool:
            self.interrupted = interrupt.requested
            return self.interrupted or self._time_is_up()

        def known(state: TaskState) -> list[Measured]:
            return [_measured(record) for record in self._records[state.task.workload]]

        pipeline = Pipeline(
            *(self._states, self._policy, searches, known, builder, gate, self._left, self._options.batch),
            devices=len(measurers),
        )

        def turn(station: Station) -> bool:
            batches = pipeline.next(stop)
            try:
                if batches:
                    with gate.measuring():
                        self._measure_steadily(pipeline, batches, station, stop)
            except DeviceError:
                pipeline.give_back(batches)
                raise
            pipeline.done(batches)
            with pipeline.changing():
                self._report("searching and building")
            return bool(batches)

        fleet = Fleet(measurers, self._options, gate, self._news)
        with pipeline:
            self._report("starting")
            fleet.run(turn, stop)
        self._device_outcomes, self._lost = fleet.outcome(), fleet.lost
        if self._lost and not self._spent and not self.reused:
            raise DeviceError(self._lost)

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
            is_open and not self.interrupted and not self._lost,
            self._drift,
            time.monotonic() - self._started,
            self._device_outcomes,
            self._lost,
        )

    def _recall(self) -> None:
        """Take over what the logs know, as if it had just been measured."""
        by_workload = {state.task.workload: state for state in self._states}
        self._logs.register_target(self._target)
        seen = set()
        for device in self._devices:
            for record in self._logs.records(by_workload, self._target, device):
                # Devices of one run are of one kind: what one has measured, the others need not.
                if is_settled(record) and (record.workload, record.trace) not in seen:
                    seen.add((record.workload, record.trace))
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
        self, pipeline: Pipeline, batches: Sequence[Batch], station: Station, stop: Callable[[], bool]
    ) -> None:
        """Measure batches between two runs of the reference kernel, and once more where the device drifted."""
        measurer = station.measurer
        before = measurer.settle()
        for batch in batches:
            self._measure_batch(pipeline, batch, station, stop)
        after = measurer.time_reference_kernel()
        drift = _change(before, after)
        remeasured = drift > self._options.measure.drift_bound and not stop()
        if remeasured:
            before = measurer.settle()
            for batch in batches:
                _prepare(measurer, batch)
                batch.records = [self._again(batch, record, measurer, stop) for record in batch.records]
                with pipeline.changing():
                    self._recount(batch.state, batch.records)
            after = measurer.time_reference_kernel()
            drift = _change(before, after)
        with pipeline.changing():
            conditions = replace(measurer.conditions(), device=station.name)
            self._note_drift(before, after, conditions.judged(drift, self._drift.bound, remeasured))

    def _measure_batch(
        self, pipeline: Pipeline, batch: Batch, station: Station, stop: Callable[[], bool]
    ) -> None:
        """Measure and record one candidate after the other."""
        _prepare(station.measurer, batch)
        for candidate, built in batch.items:
            if stop():
                break
            outcome = _measure(station, batch, built) if isinstance(built, Artifact) else built
            record = self._record(batch.state.task, station.name, candidate, outcome)
            # Before this device's next trial starts; what other devices measure is recorded in turn.
            with pipeline.changing():
                self._logs.add(record)
                self._count(batch.state, record)
                batch.add(record)
                station.trials += 1
                self._spent += 1
                self._report("measuring")

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
        self._reference_times_s[batch.device] += [before, after]
        known, drift, remeasured = self._drift, batch.drift, batch.remeasured
        self._drift = replace(
            known,
            batches=known.batches + 1,
            remeasured=known.remeasured + remeasured,
            unsteady=known.unsteady + (remeasured and drift > known.bound),
            worst=max(known.worst, drift),
            spread=max(max(times) / min(times) - 1 for times in self._reference_times_s.values() if times),
            conditions=(*known.conditions, batch),
        )

    def _record(self, task: Task, device: str, candidate: Candidate, outcome: Timing | Failure) -> Record:
        return Record(
            task.workload,
            self._target.fingerprint,
            device,
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


def _measure(station: Station, batch: Batch, artifact: Artifact) -> Timing | Failure:
    """Measure on a device. A candidate that takes two devices along, or one device twice, is to blame.

    Raises:
        DeviceError: the device failed, or was lost for the first time during this candidate.
    """
    try:
        outcome = station.measurer.measure(artifact, batch.state.best_s)
    except DeviceLostError as error:
        if artifact.candidate in batch.suspects:
            return Failure(Stage.RUN, FailureKind.CRASH, str(error))
        batch.suspects.add(artifact.candidate)
        raise
    station.works()
    return outcome


def _measured(record: Record) -> Measured:
    return Candidate(record.workload, record.trace), record.outcome


def _change(before_s: float, after_s: float) -> float:
    """Relative change between two times, 0.25 for a quarter more or less."""
    return max(before_s, after_s) / min(before_s, after_s) - 1
