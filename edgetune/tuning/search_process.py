"""Runs the searches in a process of their own.

TVM's search aborts on rare schedules, writes warnings to standard error for every trace that does not
apply, and would share Python's interpreter lock with the thread that measures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edgetune.errors import last_line
from edgetune.records import Candidate, Task
from edgetune.tuning.cost_model import CostModel
from edgetune.tuning.search import EvolutionarySearch, Measured, SearchSettings
from edgetune.tuning.workers import (
    Call,
    WorkerCrashError,
    WorkerError,
    WorkerPool,
    WorkerTimeoutError,
)

TIMEOUT_S = 120.0
"""For one batch of proposals; it normally takes under a second."""

_searches: dict[str, EvolutionarySearch] = {}
_models: dict[int, CostModel] = {}


class SearchError(Exception):
    """The search for a task failed; the message says how."""


class SearchProcess:
    """Starts searches whose work is done in another process.

    Args:
        pool: of one worker; should it die, a new one is told all that was measured.
        settings: what all searches share.
        hints: traces to try first, by workload: what was good elsewhere.
    """

    def __init__(
        self, pool: WorkerPool, settings: SearchSettings, hints: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        self._pool = pool
        self._settings = settings
        self._hints = hints or {}

    def __call__(self, task: Task, known: Sequence[Measured]) -> RemoteSearch:
        """Start the search for a task."""
        return RemoteSearch(self._pool, self._settings, task, known, self._hints.get(task.workload, ()))


class RemoteSearch:
    """The search policy of one task, run elsewhere."""

    def __init__(
        self,
        pool: WorkerPool,
        settings: SearchSettings,
        task: Task,
        known: Sequence[Measured],
        hints: Sequence[str],
    ) -> None:
        self._pool = pool
        self._settings = settings
        self._task = task
        self._measured = list(known)
        self._hints = tuple(hints)
        self._told = 0

    def propose(self, count: int) -> list[Candidate]:
        """Return up to ``count`` new candidates.

        Raises:
            SearchError: the search failed for this task.
        """
        # While this searches, devices go on measuring: what they report meanwhile is for the next call.
        count_known = len(self._measured)

        def what_is_new(known: bool) -> tuple[Task, list[Measured], bool]:
            return self._task, self._measured[self._told if known else 0 : count_known], known

        calls = [Call(step, (self._settings, self._hints, count), TIMEOUT_S)]
        for _ in range(2):
            [(_, outcome)] = self._pool.run(calls, (self._task.workload, what_is_new))
            if not isinstance(outcome, WorkerCrashError):
                break
            # It may have been killed for memory: once more, in a new process.
        if isinstance(outcome, WorkerError | WorkerCrashError | WorkerTimeoutError):
            raise SearchError(f"the search failed: {last_line(outcome)[:300]}") from outcome
        self._told = count_known
        proposals: list[Candidate] = outcome
        return proposals

    def learn(self, results: Sequence[Measured]) -> None:
        """Keep the results for the next call of ``propose``."""
        self._measured.extend(results)


def step(
    task: Task,
    measured: list[Measured],
    known: bool,
    settings: SearchSettings,
    hints: tuple[str, ...],
    count: int,
) -> list[Candidate]:
    """Learn and propose; runs in the search process.

    Args:
        task: whose search to go on with.
        measured: what was measured since the last call, or all of it where ``known`` is False.
        known: whether this process should have the search already.
        settings, hints, count: as for ``EvolutionarySearch``.
    """
    if settings.seed not in _models:
        _models[settings.seed] = CostModel(settings.seed, settings.threads)
    search = _searches.get(task.workload) if known else None
    if search is None:
        search = EvolutionarySearch(settings, _models[settings.seed], task, measured, hints)
        _searches[task.workload] = search
    else:
        search.learn(measured)
    return search.propose(count)
