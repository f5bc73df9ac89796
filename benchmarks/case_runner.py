"""Runs cases in worker processes that may crash or hang: what ``fuzz.py`` and ``node_tests.py`` share.

A worker that dies, or that takes longer than a case may, counts against its case and is replaced.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

START_TIMEOUT_S = 180.0
LOST = ("crashed", "hung")

Say = Callable[[Any], None]
"""Told how far a case has come, for when nothing else is heard of it."""
Prepare = Callable[[], Callable[[Any, Say], Any]]
"""Called in each worker at its start: gives the function that makes an outcome of a case."""


def run_cases(
    cases: Sequence[Any],
    prepare: Prepare,
    *,
    workers: int,
    timeout_s: float,
    lost: Callable[[Any, str, str, Any], Any],
    show: Callable[[list[Any]], None],
    budget_s: float = math.inf,
    recycle: float = math.inf,
) -> list[Any]:
    """Run cases and return their outcomes, in the order they end.

    Args:
        cases: what workers are given, one after the other.
        prepare: a module's function, or a partial of one.
        workers: number of processes.
        timeout_s: for one case.
        lost: the outcome of a case whose worker was: given the case, one of LOST, why, and what it said last.
        show: called with all outcomes after each.
        budget_s: no case is begun later.
        recycle: cases that one worker takes at most.

    Raises:
        RuntimeError: a worker died before its first case.
    """
    waiting, outcomes = list(cases)[::-1], []
    end = time.monotonic() + budget_s
    seats = [_Seat(prepare) for _ in range(min(workers, len(waiting)))]
    while seats:
        ready = wait([seat.pipe for seat in seats], timeout=1.0)
        for seat in list(seats):
            if seat.pipe in ready:
                kind, value = seat.receive()
            elif time.monotonic() > seat.deadline:
                kind, value = "hung", f"over {timeout_s:.0f} s"
            else:
                continue
            if kind == "said":
                seat.said = value
                continue
            if kind in LOST and seat.case is None:
                raise RuntimeError(f"a worker {kind} before its first case: {value}")
            if kind != "ready":
                outcomes.append(value if kind == "done" else lost(seat.case, kind, value, seat.said))
                show(outcomes)
            more = bool(waiting) and time.monotonic() < end
            if more and kind not in LOST and seat.taken < recycle:
                seat.give(waiting.pop(), timeout_s)
                continue
            seat.end()
            seats.remove(seat)
            if more:
                seats.append(_Seat(prepare))
    return outcomes


class _Seat:
    """A worker process, the case it is at, and what it said last."""

    def __init__(self, prepare: Prepare) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, there = context.Pipe()
        self.process = context.Process(target=_serve, args=(there, prepare), daemon=True)
        self.process.start()
        there.close()
        self.case, self.said, self.taken = None, None, 0
        self.deadline = time.monotonic() + START_TIMEOUT_S

    def give(self, case: Any, timeout_s: float) -> None:
        self.case, self.said, self.taken = case, None, self.taken + 1
        self.pipe.send(case)
        self.deadline = time.monotonic() + timeout_s

    def receive(self) -> tuple[str, Any]:
        try:
            return self.pipe.recv()
        except (EOFError, ConnectionError):
            self.process.join(5)
            return "crashed", f"exit code {self.process.exitcode}"

    def end(self) -> None:
        self.process.kill()
        self.process.join()


def _serve(pipe: Connection, prepare: Prepare) -> None:
    """A worker: quiet, on one thread, until it is killed."""
    os.environ["TVM_NUM_THREADS"] = "1"
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    warnings.simplefilter("ignore")
    answer = prepare()
    pipe.send(("ready", None))
    while True:
        pipe.send(("done", answer(pipe.recv(), lambda said: pipe.send(("said", said)))))
