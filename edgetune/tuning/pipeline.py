"""Prepares batches ahead of the measuring: one thread searches, one builds.

    allocation policy -> search -> built by workers -> queue -> (the caller measures)

While a batch is measured the next is built and the one after that is searched for, as far as the gate
lets them run at the same time. No more candidates are under way than that takes: the choice of the next
task and its search should know how the last ones went.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from edgetune.records import Artifact, Candidate
from edgetune.tuning.allocation import AllocationPolicy, TaskState
from edgetune.tuning.arguments import Prepared
from edgetune.tuning.builder import Built, CandidateBuilder, PrepareError
from edgetune.tuning.gate import Gate
from edgetune.tuning.outcome import TaskStatus
from edgetune.tuning.search import Measured, SearchFactory, SearchPolicy
from edgetune.tuning.search_process import SearchError

_POLL_S = 0.2


@dataclass
class Batch:
    """Candidates of one task, built as far as they could be."""

    state: TaskState
    prepared: Prepared | None
    items: list[tuple[Candidate, Built]]
    _counted: int = 0

    def count_one(self) -> None:
        """Take one candidate off the task's pending ones: it is measured. Needs the pipeline's lock."""
        self._counted += 1
        self.state.pending -= 1

    def close(self) -> None:
        """Take off the rest as well, measured or not. Needs the pipeline's lock."""
        self.state.pending -= len(self.items) - self._counted

    @property
    def artifacts(self) -> list[Artifact]:
        """What can be measured."""
        return [built for _, built in self.items if isinstance(built, Artifact)]


class Pipeline:
    """Runs the searching and the building thread.

    Threads: ``next`` and ``done`` belong to the one that measures; task states may be changed only while
    ``lock`` is held. Ownership: leaving the context ends the threads, as soon as a call under way ends.

    Args:
        states: the tasks; changed in place.
        policy: which task is next.
        searches: starts the search of a task.
        known: what was measured for a task before the run.
        builder: builds candidates.
        gate: when the host may work.
        budget: how many trials are left in all, None without a limit.
        batch: usual number of candidates in a batch. Where measuring excludes host work, the next batch is
            begun while at most so many candidates are under way (one batch is built meanwhile, or many
            small ones, and measured together); otherwise while at most twice as many are (one built, one
            measured).
    """

    def __init__(
        self,
        states: Sequence[TaskState],
        policy: AllocationPolicy,
        searches: SearchFactory,
        known: Callable[[TaskState], Sequence[Measured]],
        builder: CandidateBuilder,
        gate: Gate,
        budget: Callable[[], int | None],
        batch: int,
    ) -> None:
        self._states = states
        self._policy = policy
        self._start_search = searches
        self._known = known
        self._builder = builder
        self._gate = gate
        self._budget = budget
        self._ahead = batch if gate.shares_host else 2 * batch
        self._enough = batch if gate.shares_host else 1
        self._under_way = 0
        self._finished = False
        self._searches: dict[str, SearchPolicy] = {}
        self._prepared: dict[str, Prepared | None] = {}
        self.lock = threading.Condition()
        self._stop = threading.Event()
        self._error: BaseException | None = None
        # Without a bound of their own: what is under way is bounded as a whole.
        self._proposed: queue.SimpleQueue[tuple[TaskState, list[Candidate]] | None] = queue.SimpleQueue()
        self._built: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._guarded, args=(body,), name=f"edgetune-{name}", daemon=True)
            for name, body in (("search", self._search), ("build", self._build))
        ]

    def __enter__(self) -> Pipeline:
        """Start the threads."""
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Tell the threads to stop. They end with their current call, or with its worker."""
        self._stop.set()
        with self.lock:
            self.lock.notify_all()

    def next(self, stop: Callable[[], bool]) -> list[Batch]:
        """Wait for batches and return all that are ready; none when ``stop`` says so, or there will be none.

        Where measuring stops the host's work, small batches are collected first.

        Raises:
            Exception: what ended one of the threads.
        """
        ready: list[Batch] = []
        while not self._finished and not self._is_enough(ready) and not stop():
            with contextlib.suppress(queue.Empty):
                self._take(ready, self._built.get(timeout=_POLL_S))
        while not self._built.empty():
            self._take(ready, self._built.get())
        if self._error is not None:
            raise self._error
        return ready

    def _is_enough(self, ready: Sequence[Batch]) -> bool:
        collected = sum(len(batch.items) for batch in ready)
        return bool(ready) and (collected >= self._enough or collected >= self._under_way)

    def _take(self, ready: list[Batch], item: Batch | None) -> None:
        if item is None:
            self._finished = True
        else:
            ready.append(item)

    def done(self, batch: Batch, results: Sequence[Measured]) -> None:
        """Report what came of a batch; its task may have the next one."""
        with self.lock:
            batch.close()
            self._under_way -= len(batch.items)
            search = self._searches.get(batch.state.task.workload)
            if search is not None:
                search.learn(results)
            self.lock.notify_all()

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the lock on the task states, and wake who waits for a change."""
        with self.lock:
            yield
            self.lock.notify_all()

    def _guarded(self, body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as error:
            # At the end of a run the workers are gone before the threads notice: no news.
            if not self._stop.is_set():
                self._error = error
                self._stop.set()
        finally:
            if body == self._build or self._error is not None:
                self._built.put(None)
            else:
                self._proposed.put(None)

    def _search(self) -> None:
        while not self._stop.is_set():
            choice = self._choose()
            if choice is None:
                return
            state, count = choice
            with self._gate.host_work():
                candidates = self._propose(state, count)
            if candidates:
                self._proposed.put((state, candidates))

    def _choose(self) -> tuple[TaskState, int] | None:
        """Wait until the policy has work; None when it never will again."""
        with self.lock:
            while not self._stop.is_set():
                left = self._budget()
                pending = sum(state.pending for state in self._states)
                choice = self._policy.choose(self._states, None if left is None else left - pending)
                if choice is not None and self._under_way <= self._ahead:
                    choice[0].pending += choice[1]
                    self._under_way += choice[1]
                    return choice
                if choice is None and not self._under_way:
                    return None
                self.lock.wait(_POLL_S)
        return None

    def _propose(self, state: TaskState, count: int) -> list[Candidate]:
        workload = state.task.workload
        try:
            if workload not in self._searches:
                self._searches[workload] = self._start_search(state.task, self._known(state))
            candidates = self._searches[workload].propose(count)
        except SearchError as error:
            self._cancel(state, count, str(error))
            return []
        if not candidates:
            self._cancel(state, count)
            return []
        with self.changing():
            state.pending += len(candidates) - count
            self._under_way += len(candidates) - count
        return candidates

    def _cancel(self, state: TaskState, count: int, reason: str = "") -> None:
        """Take back a batch that cannot be; its task gets no more of them."""
        with self.changing():
            state.pending -= count
            self._under_way -= count
            if reason:
                state.set_aside(reason)
            elif state.is_open:
                state.status = TaskStatus.EXHAUSTED

    def _build(self) -> None:
        while not self._stop.is_set():
            try:
                proposed = self._proposed.get(timeout=_POLL_S)
            except queue.Empty:
                continue
            if proposed is None:
                return
            state, candidates = proposed
            workload = state.task.workload
            try:
                with self._gate.host_work():
                    prepared, built = self._builder.build(
                        state.task, candidates, prepare=workload not in self._prepared
                    )
            except PrepareError as error:
                self._cancel(state, len(candidates), str(error))
                continue
            self._prepared.setdefault(workload, prepared)
            items = list(zip(candidates, built, strict=True))
            self._built.put(Batch(state, self._prepared[workload], items))
