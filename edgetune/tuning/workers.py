"""A pool of warm child processes that may crash, hang or be killed without harm.

    with WorkerPool(2) as pool:
        for index, result in pool.run(function, [(argument,), ...], timeout_s=10):
            ...

``function`` must be a module's function that the child can import, and arguments and results plain
values. A child that dies or takes too long costs its own call only; a new one takes its place.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from edgetune.errors import TuningError

START_TIMEOUT_S = 180.0
_STOP_TIMEOUT_S = 1.0
PRELOAD = ("tvm", "edgetune.tuning.build")


class WorkerError(Exception):
    """A call raised in the worker; the message is what it raised."""


class WorkerCrashError(Exception):
    """The worker died in the call; the message names the signal."""


class WorkerTimeoutError(Exception):
    """The call did not end in time; the worker was killed."""


Outcome = Any | WorkerError | WorkerCrashError | WorkerTimeoutError
"""What a call gives: its result, or one of the exceptions above as a value."""


@dataclass
class _Worker:
    pid: int
    connection: Connection
    call: int | None = None
    deadline: float = 0.0
    # What earlier calls have left in the worker's caches, see WorkerPool.run's ``known``.
    known: set[str] = field(default_factory=set)


class WorkerPool:
    """Worker processes, forked from one warm process that starts with the pool.

    Threads: ``run`` may be called from any thread, by one at a time; others wait. Ownership: leaving
    the context ends all processes; so does the death of this process.
    """

    def __init__(self, size: int, preload: Sequence[str] = PRELOAD) -> None:
        self.size = max(1, size)
        self._preload = tuple(preload)
        self._idle: deque[_Worker] = deque()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._buffer = b""
        self._ready = False

    def __enter__(self) -> WorkerPool:
        """Start the warm process, without waiting for it."""
        ours, theirs = socket.socketpair()
        # Killed workers leave files behind: all of them in one folder that can be removed.
        self._folder = tempfile.mkdtemp(prefix="edgetune-build-")
        environment = {
            **os.environ,
            "TMPDIR": self._folder,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            # Workers run in parallel: each computes on one thread.
            "TVM_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        environment.pop("TVM_USE_RUNTIME_LIB", None)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "edgetune.tuning.zygote", str(theirs.fileno()), *self._preload],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                # Ctrl-C in the terminal is for edgetune, which then stops these in order.
                start_new_session=True,
            )
        self._control = ours
        return self

    def __exit__(self, *_: object) -> None:
        """End all processes."""
        with self._lock:
            for worker in self._idle:
                worker.connection.close()
            self._idle.clear()
            if self._control is not None:
                self._control.close()
                self._control = None
            if self._process is not None:
                try:
                    self._process.wait(_STOP_TIMEOUT_S)
                except subprocess.TimeoutExpired:
                    self._process.kill()
                    self._process.wait()
                self._process = None
                shutil.rmtree(self._folder, ignore_errors=True)

    def run(
        self,
        function: Callable[..., Any],
        calls: Sequence[tuple[Any, ...]],
        timeout_s: float,
        known: tuple[str, Callable[[bool], tuple[Any, ...]]] | None = None,
    ) -> Iterator[tuple[int, Outcome]]:
        """Run calls in the workers and yield ``(index, outcome)`` in the order they end.

        Args:
            function: what to call.
            calls: the arguments of each call.
            timeout_s: for one call.
            known: a key, and what to put before a call's arguments depending on whether that worker has
                seen the key: large values need to be sent to each worker only once.

        Raises:
            TuningError: the warm process is gone or does not start.
        """
        with self._lock:
            waiting = deque(range(len(calls)))
            busy: list[_Worker] = []
            try:
                while waiting or busy:
                    while waiting and len(busy) < self.size:
                        busy.append(self._submit(function, calls, waiting.popleft(), timeout_s, known))
                    for worker, outcome in self._collect(busy):
                        busy.remove(worker)
                        index = worker.call
                        assert index is not None
                        self._release(worker, outcome)
                        yield index, outcome
            finally:
                # The caller stopped listening: whatever still runs is not wanted.
                for worker in busy:
                    self._reap(worker)

    def call(self, function: Callable[..., Any], *arguments: Any, timeout_s: float) -> Any:
        """Run one call and return its result.

        Raises:
            WorkerError, WorkerCrashError, WorkerTimeoutError: it failed.
        """
        _, outcome = next(iter(list(self.run(function, [arguments], timeout_s))))
        if isinstance(outcome, WorkerError | WorkerCrashError | WorkerTimeoutError):
            raise outcome
        return outcome

    def _submit(
        self,
        function: Callable[..., Any],
        calls: Sequence[tuple[Any, ...]],
        index: int,
        timeout_s: float,
        known: tuple[str, Callable[[bool], tuple[Any, ...]]] | None,
    ) -> _Worker:
        for _ in range(3):
            worker = self._idle.popleft() if self._idle else self._fork()
            before: tuple[Any, ...] = ()
            if known is not None:
                before = known[1](known[0] in worker.known)
                worker.known.add(known[0])
            try:
                worker.connection.send((function, (*before, *calls[index])))
            except OSError:
                # It died while idle (killed by the system for memory, say).
                self._reap(worker)
                continue
            worker.call = index
            worker.deadline = time.monotonic() + timeout_s
            return worker
        raise TuningError("Build processes die as soon as they start. Is the machine out of memory?")

    def _collect(self, busy: list[_Worker]) -> list[tuple[_Worker, Outcome]]:
        """Wait until a worker is done, dead or late."""
        left = max(0.0, min(worker.deadline for worker in busy) - time.monotonic())
        ready = wait([worker.connection for worker in busy], timeout=left)
        now = time.monotonic()
        done: list[tuple[_Worker, Outcome]] = []
        for worker in busy:
            if worker.connection in ready:
                try:
                    ok, value = worker.connection.recv()
                    done.append((worker, value if ok else WorkerError(value)))
                except (EOFError, OSError):
                    done.append((worker, WorkerCrashError(_death(self._reap(worker)))))
            elif now >= worker.deadline:
                self._reap(worker)
                done.append((worker, WorkerTimeoutError("no result in time")))
        return done

    def _release(self, worker: _Worker, outcome: Outcome) -> None:
        worker.call = None
        if not isinstance(outcome, WorkerCrashError | WorkerTimeoutError):
            self._idle.append(worker)

    def _fork(self) -> _Worker:
        if self._control is None:
            raise TuningError("The build processes were stopped. Start the tuning again.")
        self._wait_ready()
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(self._control, [b"fork\n"], [theirs.fileno()])
            pid = int(self._read_line(START_TIMEOUT_S))
        except OSError as error:
            ours.close()
            raise _gone(error) from error
        return _Worker(pid, Connection(ours.detach()))

    def _reap(self, worker: _Worker) -> int:
        """Kill a worker and return how it ended."""
        worker.connection.close()
        if self._control is None:
            return 0
        try:
            self._control.sendall(f"reap {worker.pid}\n".encode())
            return int(self._read_line(START_TIMEOUT_S))
        except OSError as error:
            raise _gone(error) from error

    def _wait_ready(self) -> None:
        if not self._ready:
            try:
                self._read_line(START_TIMEOUT_S)
            except OSError as error:
                raise _gone(error) from error
            self._ready = True

    def _read_line(self, timeout_s: float) -> str:
        assert self._control is not None
        self._control.settimeout(timeout_s)
        while b"\n" not in self._buffer:
            piece = self._control.recv(4096)
            if not piece:
                raise OSError("it ended")
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode()


def _gone(error: OSError) -> TuningError:
    return TuningError(
        f"The process that starts build processes failed: {error}. Check the installation with "
        "`python -c 'import tvm'`, and that the machine has memory left."
    )


def _death(status: int) -> str:
    """Say how a worker died, from ``os.waitpid``'s status."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(number).name}"
        return f"killed by signal {number}"
    return f"ended with status {os.waitstatus_to_exitcode(status)}"
