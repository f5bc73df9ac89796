"""Prepares batches ahead of the measuring: one thread searches, one builds.

    allocation policy -> search -> built by workers -> queue -> (the caller measures)

While a batch is measured the next is built and the one after that is searched for, as far as the gate
lets them run at the same time. No more candidates are under way than that takes: the choice of the next
task and its search should know how the last ones went.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from edgetune.records import Artifact, Candidate, Record
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
    """Candidates of one task, built as far as they could be, and what came of those measured so far.

    Attributes:
        records: of the first items, in their order.
        suspects: candidates during which a device was lost: once that is chance.
    """

    state: TaskState
    prepared: Prepared | None
    items: list[tuple[Candidate, Built]]
    suspects: set[Candidate] = field(default_factory=set)
    records: list[Record] = field(default_factory=list)

    def add(self, record: Record) -> None:
        """Take the next candidate off the task's pending ones: it is measured. Needs the pipeline's lock."""
        self.records.append(record)
        self.state.pending -= 1

    def split(self, count: int) -> tuple[Batch, Batch]:
        """The first ``count`` candidates of a batch of which none is measured yet, and the others."""
        first, second = self.items[:count], self.items[count:]
        return (
            Batch(self.state, self.prepared, first, self.suspects),
            Batch(self.state, self.prepared, second, self.suspects),
        )

    @property
    def left(self) -> list[tuple[Candidate, Built]]:
        """What is not measured yet."""
        return self.items[len(self.records) :]

    @property
    def artifacts(self) -> list[Artifact]:
        """What can be measured."""
        return [built for _, built in self.items if isinstance(built, Artifact)]


class Pipeline:
    """Runs the searching and the building thread.

    Threads: ``next``, ``done`` and ``give_back`` are called by those that measure, one for each device; task
    states may be changed only while ``lock`` is held. Ownership: leaving the context ends the threads, as soon
    as a call under way ends.

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
            small ones, and measured together); otherwise while at most so many for each device, and as many
            again, are (one measured by each, one built).
        devices: how many devices measure.
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
        devices: int = 1,
    ) -> None:
        self._states = states
        self._policy = policy
        self._start_search = searches
        self._known = known
        self._builder = builder
        self._gate = gate
        self._budget = budget
        self._batch = batch
        self._devices = devices
        self._ahead = batch if gate.shares_host else (devices + 1) * batch
        self._enough = batch if gate.shares_host else 1
        self._under_way = 0
        self._searches: dict[str, SearchPolicy] = {}
        self._prepared: dict[str, Prepared | None] = {}
        self.lock = threading.Condition()
        self._stop = threading.Event()
        self._error: BaseException | None = None
        # Without a bound of their own: what is under way is bounded as a whole.
        self._proposed: queue.SimpleQueue[tuple[TaskState, list[Candidate]] | None] = queue.SimpleQueue()
        self._built: deque[Batch] = deque()
        self._ended = False
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
        """Wait for batches and return some; none when ``stop`` says so, or there will be none.

        Where measuring stops the host's work, small batches are collected first, and all are returned; else
        at most as many candidates as a batch has, and no more than this device's share of what is not measured
        yet: the others are for the other devices, so that all of them end at about the same time.

        Raises:
            Exception: what ended one of the threads.
        """
        with self.lock:
            while not (self._ended or self._is_enough() or stop()):
                self.lock.wait(_POLL_S)
            if self._error is not None:
                raise self._error
            taken: list[Batch] = []
            room = self._room()
            while self._built and not stop():
                batch = self._built.popleft()
                if len(batch.items) > room:
                    if not taken:
                        batch, rest = batch.split(room)
                        taken.append(batch)
                        batch = rest
                    self._built.appendleft(batch)
                    break
                taken.append(batch)
                room -= len(batch.items)
            return taken

    def _room(self) -> int:
        """How many candidates a device may take."""
        if self._gate.shares_host:
            return _size(self._built)
        left = sum(state.pending for state in self._states)
        return min(self._batch, -(-left // self._devices))

    def _is_enough(self) -> bool:
        collected = _size(self._built)
        return collected > 0 and (collected >= self._enough or collected >= self._under_way)

    def done(self, batches: Sequence[Batch]) -> None:
        """Report what came of batches; what is not measured will not be. Their tasks may have the next ones."""
        with self.changing():
            for batch in batches:
                self._learn(batch)
                batch.state.pending -= len(batch.left)
                self._under_way -= len(batch.left)

    def give_back(self, batches: Sequence[Batch]) -> None:
        """Report what came of batches, and leave what is not measured to other devices, or to a later turn."""
        with self.changing():
            for batch in reversed(batches):
                self._learn(batch)
                if batch.left:
                    self._built.appendleft(Batch(batch.state, batch.prepared, batch.left, batch.suspects))

    def _learn(self, batch: Batch) -> None:
        self._under_way -= len(batch.records)
        search = self._searches.get(batch.state.task.workload)
        if search is not None and batch.records:
            search.learn([(Candidate(r.workload, r.trace), r.outcome) for r in batch.records])

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
                with self.changing():
                    self._ended = True
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
            with self.changing():
                self._built.append(Batch(state, self._prepared[workload], items))


def _size(batches: Iterable[Batch]) -> int:
    return sum(len(batch.items) for batch in batches)
