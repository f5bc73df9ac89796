"""Which task the next trials go to.

Every task gets a first batch, the heaviest (operations times weight) first. After that the next batch
goes to the task with the largest expected gain for the model:

    gain = weight * best seconds * max(recent, prior)

``recent`` is the relative improvement that the task's last trials brought, for a batch of trials: what
improved lately is likely to go on. ``prior`` is what one may hope for without such evidence: the distance
to the speed that similar tasks of the same kind reach (operations per second of the best of them), of
which the share ``batch / (batch + trials)`` is expected from the next batch, since every further trial
makes a find less likely. It shrinks to nothing while the task does not improve.

Trials under way count as made, and halve the gain for each batch of them: how they went is not known yet.
A task that did not improve by 1% over ``patience`` trials stops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from edgetune.records import Failure, Record, Task
from edgetune.tuning.outcome import TaskOutcome, TaskStatus

IMPROVEMENT = 0.01
"""A smaller relative gain does not count as one: it may be noise."""
_HOPE = 0.05
"""Even the fastest task of its kind may have so much of its time left to gain."""
_HOPELESS = 12
"""A task of which so many first candidates failed, and none worked, is set aside."""


@dataclass
class TaskState:
    """What is known of a task while a run goes on.

    Attributes:
        times: best seconds after each trial, infinite before the first that worked.
        since_improvement: trials since the best improved by 1%.
        pending: candidates on their way.
    """

    task: Task
    times: list[float] = field(default_factory=list)
    since_improvement: int = 0
    pending: int = 0
    reused: int = 0
    failures: int = 0
    best: Record | None = None
    status: TaskStatus = TaskStatus.WAITING
    reason: str = ""
    _mark: float = float("inf")

    @property
    def trials(self) -> int:
        """Candidates measured, of this run and earlier ones."""
        return len(self.times)

    @property
    def best_s(self) -> float | None:
        """Best median seconds, None before the first candidate that worked."""
        return self.times[-1] if self.times and self.times[-1] < float("inf") else None

    @property
    def is_open(self) -> bool:
        """Whether more trials may go to it."""
        return self.status in (TaskStatus.WAITING, TaskStatus.TUNING)

    def add(self, record: Record, patience: int) -> None:
        """Take note of a measured candidate, and stop the task where that is due."""
        before = self.best_s or float("inf")
        now = before
        if isinstance(record.outcome, Failure):
            self.failures += 1
            last = record.outcome.message
        else:
            last = ""
            now = min(before, record.outcome.median_s)
            if now < before:
                self.best = record
        self.times.append(now)
        # Against the mark, not the last best: many small steps add up to an improvement.
        if now < self._mark * (1 - IMPROVEMENT):
            self._mark, self.since_improvement = now, 0
        else:
            self.since_improvement += 1
        if self.is_open:
            self.status = TaskStatus.TUNING
            if self.best_s is None and self.trials >= _HOPELESS:
                last_line = last.strip().splitlines()[-1:] or ["no message"]
                self.set_aside(
                    f"its first {self.trials} candidates failed, the last one with: {last_line[0][:300]}"
                )
            elif self.since_improvement >= patience:
                self.status = TaskStatus.STOPPED

    def recount(self, records: Sequence[Record], patience: int) -> None:
        """Begin anew with other records of the same trials, after some were measured again."""
        self.times.clear()
        self.since_improvement = self.failures = 0
        self.best, self._mark = None, float("inf")
        self.status, self.reason = TaskStatus.WAITING, ""
        for record in records:
            self.add(record, patience)

    def set_aside(self, reason: str) -> None:
        """Give the task up; the others go on."""
        self.status = TaskStatus.SET_ASIDE
        self.reason = reason

    def outcome(self) -> TaskOutcome:
        """Return a frozen copy for reports."""
        return TaskOutcome(
            self.task,
            self.status,
            self.trials,
            self.reused,
            self.best,
            self.best_s,
            self.failures,
            self.reason,
        )


class AllocationPolicy(Protocol):
    """Decides which task gets how many of the next trials. Threads: one at a time."""

    def choose(self, states: Sequence[TaskState], left: int | None) -> tuple[TaskState, int] | None:
        """Return an open task and a number of trials; None when nothing should be proposed now.

        ``left`` is what the trial budget still allows, None without one.
        """
        ...


class GainPolicy:
    """The policy described above.

    Args:
        batch: trials of one decision.
        first_batch: the same for a task without any trial.
        patience: trials without improvement after which a task stops.
    """

    def __init__(self, batch: int, first_batch: int, patience: int) -> None:
        self._batch = batch
        self._patience = patience
        self._first_batch = first_batch
        self._first_size: int | None = None

    def choose(self, states: Sequence[TaskState], left: int | None) -> tuple[TaskState, int] | None:
        """Return the task that should come next, and for how many trials."""
        if left is not None and left <= 0:
            return None
        fresh = [s for s in states if s.is_open and not s.trials and not s.pending]
        if fresh:
            heaviest = max(fresh, key=lambda s: (s.task.flops * s.task.weight, s.task.weight))
            return heaviest, self._first(len(fresh), left)
        started = [s for s in states if s.is_open and s.trials]
        if not started:
            return None
        chosen = max(started, key=lambda s: self.gain_s(s, states))
        return chosen, self._batch if left is None else min(self._batch, left)

    def gain_s(self, state: TaskState, states: Sequence[TaskState]) -> float:
        """Expected seconds that a batch for this task takes off one inference."""
        if state.best_s is None:
            # Nothing works yet: the model cannot do without it.
            return float("inf")
        rate = max(self._recent(state), self._prior(state, states))
        return state.task.weight * state.best_s * rate * 0.5 ** (state.pending / self._batch)

    def _first(self, fresh: int, left: int | None) -> int:
        """At most half of the budget goes into first batches, but each gets at least one trial."""
        if left is None:
            return self._first_batch
        if self._first_size is None:
            self._first_size = min(self._first_batch, max(1, left // (2 * fresh)))
        return min(self._first_size, left)

    def _recent(self, state: TaskState) -> float:
        """Relative improvement per batch over the last two batches."""
        window = min(2 * self._batch, state.trials - 1)
        if window < self._batch // 2 or state.times[-1 - window] == float("inf"):
            return 0.0
        return (1 - state.times[-1] / state.times[-1 - window]) * self._batch / window

    def _prior(self, state: TaskState, states: Sequence[TaskState]) -> float:
        """Relative improvement hoped for from the distance to similar tasks."""
        reached = self._speed(state)
        similar = [self._speed(other) for other in states if other.task.kind == state.task.kind]
        # Moving data counts no operations: nothing to compare.
        distance = 1 - reached / max(similar) if reached > 0 else 0.0
        hope = min(max(distance, _HOPE), 0.9)
        hope *= max(0.0, 1 - state.since_improvement / self._patience)
        return hope * self._batch / (self._batch + state.trials + state.pending)

    @staticmethod
    def _speed(state: TaskState) -> float:
        """Operations per second of the best candidate; 0 where unknown."""
        return state.task.flops / state.best_s if state.best_s else 0.0
