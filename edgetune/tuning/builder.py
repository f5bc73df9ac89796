"""Builds the candidates of a batch in worker processes, and prepares their task for measuring."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from edgetune.errors import last_line
from edgetune.records import Artifact, Candidate, Failure, FailureKind, Stage, Task
from edgetune.targets import Target
from edgetune.tuning.arguments import Prepared
from edgetune.tuning.build import build_candidate
from edgetune.tuning.reference import reference_outputs
from edgetune.tuning.workers import Call, Outcome, WorkerCrashError, WorkerPool, WorkerTimeoutError

Built = Artifact | Failure


class PrepareError(Exception):
    """A task's reference cannot be computed, so none of its candidates can be checked."""


class CandidateBuilder(Protocol):
    """Turns candidates into artifacts. Threads: one at a time."""

    def build(
        self, task: Task, candidates: Sequence[Candidate], *, prepare: bool
    ) -> tuple[Prepared | None, list[Built]]:
        """Return the artifact or failure of each candidate; with ``prepare``, what measuring the task needs.

        Raises:
            PrepareError: the task cannot be prepared.
        """
        ...


class Builder:
    """Compiles candidates in worker processes.

    Args:
        pool: where to compile.
        target: what to compile for.
        timeout_s: for one candidate.
        reference_timeout_s: for compiling and running the unscheduled kernel.
    """

    def __init__(
        self, pool: WorkerPool, target: Target, timeout_s: float, reference_timeout_s: float
    ) -> None:
        self._pool = pool
        self._target = target
        self._timeout_s = timeout_s
        self._reference_timeout_s = reference_timeout_s

    def build(
        self, task: Task, candidates: Sequence[Candidate], *, prepare: bool
    ) -> tuple[Prepared | None, list[Built]]:
        """Return the artifact or failure of each candidate; with ``prepare``, what measuring the task needs.

        Raises:
            PrepareError: the unscheduled kernel does not compile or run.
        """

        def kernel(known: bool) -> tuple[str, str | None]:
            return task.workload, None if known else task.ir

        # The reference takes longest, so it comes first.
        calls = [Call(reference_outputs, (), self._reference_timeout_s)] if prepare else []
        first = len(calls)
        calls += [Call(build_candidate, (self._target, c.trace), self._timeout_s) for c in candidates]
        outcomes = dict(self._pool.run(calls, (task.workload, kernel)))
        prepared = _prepared(task, outcomes[0]) if prepare else None
        return prepared, [self._built(c, outcomes[first + i]) for i, c in enumerate(candidates)]

    def _built(self, candidate: Candidate, outcome: Outcome) -> Built:
        if isinstance(outcome, bytes):
            return Artifact(candidate, outcome)
        if isinstance(outcome, WorkerCrashError):
            return Failure(Stage.BUILD, FailureKind.CRASH, f"the compiler died: {outcome}")
        if isinstance(outcome, WorkerTimeoutError):
            return Failure(Stage.BUILD, FailureKind.TIMEOUT, f"not built after {self._timeout_s:g} s")
        return Failure(Stage.BUILD, FailureKind.ERROR, str(outcome))


def _prepared(task: Task, outcome: Outcome) -> Prepared:
    if isinstance(outcome, Exception):
        raise PrepareError(
            f"its unscheduled kernel does not run, so nothing can be checked: {last_line(outcome)[:300]}"
        )
    specs, expected = outcome
    return Prepared(task, specs, expected)
