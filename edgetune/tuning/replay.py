"""A tuning run on recorded timings: the loop with nothing to search, build or measure.

    run = replay_run(tasks, target, ReplayDevice(records), logs, budget, options)

Everything but the three stages is the real thing: allocation, budget, logs, resume, drift.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgetune.devices.replay import ReplayDevice
from edgetune.records import Artifact, Candidate, Failure, Task, Timing
from edgetune.tuning.arguments import Prepared
from edgetune.tuning.builder import Built
from edgetune.tuning.gate import Gate
from edgetune.tuning.interrupt import Interrupt
from edgetune.tuning.options import Budget, MeasureOptions, TuningOptions
from edgetune.tuning.outcome import BatchConditions, TuningOutcome
from edgetune.tuning.run import ProgressCallback, Run
from edgetune.tuning.search import Measured
from edgetune.tuning.steadiness import Steadiness

if TYPE_CHECKING:
    from edgetune.logs import TuningLogs
    from edgetune.targets import Target
    from edgetune.tuning.allocation import AllocationPolicy


class RecordedSearch:
    """Proposes the recorded candidates of a task in the order of their records."""

    def __init__(self, device: ReplayDevice, task: Task, known: Sequence[Measured]) -> None:
        self._task = task
        seen = {candidate.trace for candidate, _ in known}
        self._left = [trace for trace in device.traces(task.workload) if trace not in seen]

    def propose(self, count: int) -> list[Candidate]:
        """Return the next ``count`` recorded candidates."""
        chosen, self._left = self._left[:count], self._left[count:]
        return [Candidate(self._task.workload, trace) for trace in chosen]

    def learn(self, results: Sequence[Measured]) -> None:
        """Do nothing: the order is fixed."""


class ReplayBuilder:
    """Makes artifacts without a library."""

    def build(
        self, task: Task, candidates: Sequence[Candidate], *, prepare: bool
    ) -> tuple[Prepared | None, list[Built]]:
        """Return an empty artifact for each candidate."""
        return Prepared(task, (), {}), [Artifact(candidate, b"") for candidate in candidates]


class ReplayMeasurer:
    """Measures by looking up."""

    def __init__(self, device: ReplayDevice, options: MeasureOptions) -> None:
        self._device = device
        self._steadiness = Steadiness(device.state, options, device.wait, device.clock)
        self._last_reference_s = 0.0

    def prepare(self, prepared: Prepared) -> None:
        """Do nothing: a recording needs no arguments."""

    def measure(self, artifact: Artifact, best_s: float | None) -> Timing | Failure:
        """Return the recorded outcome."""
        return self._device.outcome(artifact.candidate)

    def settle(self) -> float:
        """Return the time of the device's reference kernel, after waiting where its recorded state asks for it."""
        return self._steadiness.settle(self._device.time_reference_kernel)

    def time_reference_kernel(self) -> float:
        """Return the device's."""
        self._last_reference_s = self._steadiness.time_reference_kernel(self._device.time_reference_kernel)
        return self._last_reference_s

    def conditions(self) -> BatchConditions:
        """Return the device's recorded states."""
        before, after = self._steadiness.states()
        slow = self._steadiness.is_slow(self._last_reference_s)
        return BatchConditions(before, after, slow=slow, cooled_s=self._steadiness.cooled_s)

    def close(self) -> None:
        """Do nothing."""


def replay_run(
    tasks: Sequence[Task],
    target: Target,
    device: ReplayDevice,
    logs: TuningLogs,
    budget: Budget,
    options: TuningOptions | None = None,
    *,
    policy: AllocationPolicy | None = None,
    progress: ProgressCallback | None = None,
) -> TuningOutcome:
    """Tune tasks on recorded timings; arguments and result as for ``tune_tasks``.

    Raises:
        DeviceError: a candidate without a recording.
        LogsError: the logs cannot be read or written.
    """
    options = options or TuningOptions()
    run = Run(tasks, target, [device.name], logs, budget, options, progress, policy)
    if run.has_work():
        with Interrupt() as interrupt:
            run.measure_all(
                lambda task, known: RecordedSearch(device, task, known),
                ReplayBuilder(),
                {device.name: ReplayMeasurer(device, options.measure)},
                Gate(device.shares_host),
                interrupt,
            )
    return run.outcome()
