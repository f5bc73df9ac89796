"""What a tuning run reports: at its end, and while it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from edgetune.records import Record, Task


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
class DriftReport:
    """How steady the device was, by the reference kernel timed around each batch.

    Attributes:
        batches: number of batches.
        remeasured: how many of them were measured a second time because of drift.
        unsteady: how many drifted beyond the bound at the second time as well; their times are kept.
        worst: largest relative change across one batch that counts (0.1 is 10%).
        spread: slowest reference time of the run against the fastest, relative.
        bound: the change above which a batch is measured again.
    """

    batches: int = 0
    remeasured: int = 0
    unsteady: int = 0
    worst: float = 0.0
    spread: float = 0.0
    bound: float = 0.0


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
    def set_aside(self) -> tuple[TaskOutcome, ...]:
        """The tasks that could not be tuned, each with its reason."""
        return tuple(task for task in self.tasks if task.status is TaskStatus.SET_ASIDE)

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
