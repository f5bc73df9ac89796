"""What a tuning run reports: at its end, and while it goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from edgetune.devices.sensors import State
from edgetune.records import Choice, Record, Task
from edgetune.results import TaskResult


class TaskStatus(StrEnum):
    """Where a task stands."""

    WAITING = "waiting"
    TUNING = "tuning"
    STOPPED = "stopped"
    """More trials have not improved it for long."""
    EXHAUSTED = "exhausted"
    """Every candidate of its design spaces is measured."""
    SET_ASIDE = "set aside"
    """It cannot be tuned, see the reason."""


@dataclass(frozen=True)
class BatchConditions:
    """How the device was while a batch was measured.

    Attributes:
        before, after: what its sensors told.
        slow: the reference kernel was beyond the bound of its best time on the device at the end.
        cooled_s: seconds that the run has waited so far for the device to cool down.
        drift: change of the reference kernel across the batch, the time that counts.
        remeasured: it was measured twice.
        controlled: the device neither drifted nor was slowed down, as far as it tells: the times can be compared.
        device: its name.
    """

    before: State = field(default_factory=State)
    after: State = field(default_factory=State)
    slow: bool = False
    cooled_s: float = 0.0
    drift: float = 0.0
    remeasured: bool = False
    controlled: bool = True
    device: str = ""

    def judged(self, drift: float, bound: float, remeasured: bool) -> BatchConditions:
        """With what the loop knows."""
        controlled = drift <= bound and not self.slow and not self.after.slowed_since(self.before)
        return replace(self, drift=drift, remeasured=remeasured, controlled=controlled)

    def to_json(self) -> dict[str, Any]:
        """The batch's entry in ``conditions`` of ``tune``."""
        return {
            "device": self.device,
            "before": self.before.brief(),
            "after": self.after.brief(),
            "drift": self.drift,
            "remeasured": self.remeasured,
            "controlled": self.controlled,
        }


@dataclass(frozen=True)
class DriftReport:
    """How steady the devices were, by the reference kernel timed around each batch.

    Attributes:
        batches: number of batches.
        remeasured: how many of them were measured a second time because of drift.
        unsteady: how many drifted beyond the bound at the second time as well; their times are kept.
        worst: largest relative change across one batch that counts (0.1 is 10%).
        spread: slowest reference time of the run against the fastest, relative; of several devices, the largest.
        bound: the change above which a batch is measured again.
        conditions: of each batch.
    """

    batches: int = 0
    remeasured: int = 0
    unsteady: int = 0
    worst: float = 0.0
    spread: float = 0.0
    bound: float = 0.0
    conditions: tuple[BatchConditions, ...] = ()

    @property
    def uncontrolled(self) -> int:
        """How many batches were measured while the device was not steady, or slowed down."""
        return sum(not batch.controlled for batch in self.conditions)

    @property
    def cooled_s(self) -> float:
        """Seconds spent on waiting for devices to cool down, of all together."""
        # Each batch tells how long its device has waited until then.
        return sum({batch.device: batch.cooled_s for batch in self.conditions}.values())

    @property
    def slowed(self) -> tuple[str, ...]:
        """Why devices were slowed down while they measured, as far as they tell; with names where there are several."""
        several = len({batch.device for batch in self.conditions}) > 1
        reasons = [
            f"{batch.device}: {reason}" if several else reason
            for batch in self.conditions
            for reason in batch.after.slowed_since(batch.before)
        ]
        return tuple(dict.fromkeys(reasons))

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know about it."""
        notes = []
        if self.unsteady:
            notes.append(
                f"{self.unsteady} of {self.batches} batches were measured while the device's own speed changed "
                f"by more than {self.bound:.0%}: their times are less sure; stop other programs and tune again"
            )
        if self.slowed:
            notes.append(
                f"the device was slowed down while it measured: {'; '.join(self.slowed[:3])}; cool it or mend its "
                "supply, and tune again"
            )
        if self.cooled_s:
            notes.append(f"waited {self.cooled_s:.0f} s in all for the device to cool down")
        return tuple(notes)

    def to_json(self) -> dict[str, Any]:
        """The object ``conditions`` of ``tune``."""
        return {
            "controlled": not self.uncontrolled,
            "batches": self.batches,
            "remeasured": self.remeasured,
            "uncontrolled": self.uncontrolled,
            "cooled_s": self.cooled_s,
            "worst_drift": self.worst,
            "slowed": list(self.slowed),
            "states": [batch.to_json() for batch in self.conditions],
        }


@dataclass(frozen=True)
class TaskOutcome:
    """One task after the run.

    Attributes:
        trials: candidates measured for it, those of earlier runs included; failures count.
        reused: how many of them came from the logs.
        best: the fastest record; None without a working candidate.
        reason: why it was set aside, in words; empty otherwise.
    """

    task: Task
    status: TaskStatus
    trials: int
    reused: int
    best: Record | None = field(default=None, repr=False)
    best_s: float | None = None
    failures: int = 0
    reason: str = ""

    @property
    def gflops(self) -> float | None:
        """Speed of the best candidate in 10^9 floating-point operations a second."""
        return self.task.flops / self.best_s / 1e9 if self.best_s and self.task.flops else None


@dataclass(frozen=True)
class DeviceOutcome:
    """One device of a run.

    Attributes:
        trials: measured on it by this run.
        problem: why it could not be used at the end; empty where it could.
    """

    name: str
    trials: int
    problem: str = ""


@dataclass(frozen=True)
class TuningOutcome:
    """A tuning run's result.

    Attributes:
        tasks: in the order given.
        trials_spent: measured by this run. trials_reused: taken from the logs.
        failures: failed candidates by kind, those of earlier runs included.
        interrupted: Ctrl-C ended it.
        budget_ended: the budget ended before every task had stopped improving.
        drift: how steady the devices were.
        wall_s: seconds.
        devices: how each device fared; none where nothing had to be measured.
        lost: why no device was left to measure on; empty if that did not end the run.
    """

    tasks: tuple[TaskOutcome, ...]
    trials_spent: int
    trials_reused: int
    failures: Mapping[str, int]
    interrupted: bool
    budget_ended: bool
    drift: DriftReport
    wall_s: float
    devices: tuple[DeviceOutcome, ...] = ()
    lost: str = ""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know: tasks that were set aside, how devices fared, and unsteady ones."""
        notes = [f"{task.task.name} was set aside: {task.reason}" for task in self.set_aside]
        if len(self.devices) > 1:
            notes.append("trials " + ", ".join(f"on {one.name}: {one.trials}" for one in self.devices))
        notes += [f"{one.name} was left out in the end: {one.problem}" for one in self.devices if one.problem]
        return (*notes, *self.drift.notes)

    @property
    def set_aside(self) -> tuple[TaskOutcome, ...]:
        """The tasks that could not be tuned, each with its reason."""
        return tuple(task for task in self.tasks if task.status is TaskStatus.SET_ASIDE)

    def results(self, choices: Sequence[Choice]) -> tuple[TaskResult, ...]:
        """The tasks with the times of the schedules, ``choices``, that went into the bundle."""
        chosen = {choice.task.workload: choice for choice in choices}
        return tuple(TaskResult.of(chosen[one.task.workload], one.trials, one.reason) for one in self.tasks)

    @property
    def latency_s(self) -> float | None:
        """Sum of weight times best seconds; None while a task has no time."""
        return model_latency_s(self.tasks)


@dataclass(frozen=True)
class Progress:
    """A snapshot of a run, given to the progress callback after each measured candidate and batch.

    Attributes:
        elapsed_s: seconds since the run began. left_s: seconds of the time budget left, or an estimate from
            the trials left; None where neither is known.
        trials_left: of the trial budget; None without one.
        trials_per_minute: measured by this run, over its time so far.
        activity: what is being done, for people.
    """

    tasks: tuple[TaskOutcome, ...]
    trials_spent: int
    trials_reused: int
    failures: Mapping[str, int]
    elapsed_s: float
    left_s: float | None
    trials_left: int | None
    trials_per_minute: float
    drift: DriftReport
    activity: str = ""

    @property
    def latency_s(self) -> float | None:
        """Estimated seconds of one inference: the sum of weight times best seconds."""
        return model_latency_s(self.tasks)


def model_latency_s(tasks: tuple[TaskOutcome, ...]) -> float | None:
    """Sum of weight times best seconds over the tasks; None while one that can be tuned has no time."""
    total = 0.0
    for outcome in tasks:
        if outcome.best_s is not None:
            total += outcome.task.weight * outcome.best_s
        elif outcome.status is not TaskStatus.SET_ASIDE:
            return None
    return total if total else None
