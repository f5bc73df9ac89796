"""Warm child processes that may crash, hang or be killed without harm.

    with ForkServer() as server, WorkerPool(server, 2) as pool:
        for index, outcome in pool.run([Call(function, (argument,), timeout_s=10), ...]):
            ...

A function must be a module's, so that the child can import it; arguments and results are plain values. A
child that dies or takes too long costs its own call only; a new one takes its place.
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
from typing import Any, NamedTuple

from edgetune.errors import TuningError

START_TIMEOUT_S = 180.0
_STOP_TIMEOUT_S = 1.0
PRELOAD = (
    "tvm",
    "tvm.s_tir.meta_schedule.cost_model",
    "xgboost",
    "edgetune.tuning.reference",
    "edgetune.tuning.reference_kernel",
    "edgetune.tuning.search_process",
)


class WorkerError(Exception):
    """A call raised in the worker; the message is what it raised."""


class WorkerCrashError(Exception):
    """The worker died in the call; the message names the signal."""


class WorkerTimeoutError(Exception):
    """The call did not end in time; the worker was killed."""


Outcome = Any | WorkerError | WorkerCrashError | WorkerTimeoutError
"""What a call gives: its result, or one of the exceptions above as a value."""


class Call(NamedTuple):
    """A function, its arguments, and how long it may take."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    timeout_s: float


Context = tuple[str, Callable[[bool], tuple[Any, ...]]]
"""A key, and what to put before a call's arguments depending on whether the worker has seen the key.

Large values need to be sent to each worker only once: the called function keeps them by the key.
"""


class ForkServer:
    """A process that imports TVM once and forks workers when asked, see :mod:`edgetune.tuning.zygote`.

    Threads: any. Ownership: leaving the context ends the process, all workers and their files; so does
    the death of this process.

    Args:
        preload: modules to import before the first fork.
    """

    def __init__(self, preload: Sequence[str] = PRELOAD) -> None:
        self._preload = tuple(preload)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._buffer = b""
        self._ready = False

    def __enter__(self) -> ForkServer:
        """Start the process, without waiting for its imports."""
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
                # TVM warns there of every schedule that does not apply.
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

    def fork(self) -> tuple[int, Connection]:
        """Start a worker and return its process id and the connection to it.

        Raises:
            TuningError: the server is gone or does not start.
        """
        ours, theirs = socket.socketpair()
        with self._lock, theirs:
            try:
                if not self._ready:
                    self._read_line()
                    self._ready = True
                if self._control is not None:
                    socket.send_fds(self._control, [b"fork\n"], [theirs.fileno()])
                pid = int(self._read_line())
            except OSError as error:
                ours.close()
                raise TuningError(
                    f"The process that starts build processes failed: {error}. Check the installation with "
                    "`python -c 'import tvm'`, and that the machine has memory left."
                ) from error
        return pid, Connection(ours.detach())

    def reap(self, pid: int) -> int:
        """Kill a worker, unless it is dead already, and return how it ended as ``os.waitpid`` says it."""
        with self._lock:
            try:
                if self._control is not None:
                    self._control.sendall(f"reap {pid}\n".encode())
                return int(self._read_line())
            except OSError:
                return 0

    def _read_line(self) -> str:
        if self._control is None:
            raise OSError("it was stopped")
        self._control.settimeout(START_TIMEOUT_S)
        while b"\n" not in self._buffer:
            piece = self._control.recv(4096)
            if not piece:
                raise OSError("it ended")
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode()


@dataclass
class _Worker:
    pid: int
    connection: Connection
    call: int = 0
    deadline: float = 0.0
    known: set[str] = field(default_factory=set)


class WorkerPool:
    """A fixed number of workers, forked when they are needed.

    Threads: ``run`` may be called from any thread; calls of several threads wait for each other.
    Ownership: leaving the context ends the workers.
    """

    def __init__(self, server: ForkServer, size: int) -> None:
        self.size = max(1, size)
        self._server = server
        self._idle: deque[_Worker] = deque()
        self._lock = threading.Lock()

    def __enter__(self) -> WorkerPool:
        """Return self; nothing is started yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the workers."""
        # Another thread may still be in ``run``: it ends when the server does.
        while self._idle:
            self._idle.popleft().connection.close()

    def run(self, calls: Sequence[Call], context: Context | None = None) -> Iterator[tuple[int, Outcome]]:
        """Run calls in the workers and yield ``(index, outcome)`` in the order they end.

        Args:
            calls: what to call.
            context: what all calls need, see :data:`Context`.

        Raises:
            TuningError: no worker can be started.
        """
        with self._lock:
            waiting = deque(range(len(calls)))
            busy: list[_Worker] = []
            try:
                while waiting or busy:
                    while waiting and len(busy) < self.size:
                        index = waiting.popleft()
                        busy.append(self._submit(index, calls[index], context))
                    for worker, outcome in self._collect(busy):
                        busy.remove(worker)
                        if not isinstance(outcome, WorkerCrashError | WorkerTimeoutError):
                            self._idle.append(worker)
                        yield worker.call, outcome
            finally:
                # The caller stopped listening: whatever still runs is not wanted.
                for worker in busy:
                    self._reap(worker)

    def call(self, function: Callable[..., Any], *arguments: Any, timeout_s: float) -> Any:
        """Run one call and return its result.

        Raises:
            WorkerError, WorkerCrashError, WorkerTimeoutError: it failed.
        """
        [(_, outcome)] = self.run([Call(function, arguments, timeout_s)])
        if isinstance(outcome, WorkerError | WorkerCrashError | WorkerTimeoutError):
            raise outcome
        return outcome

    def _submit(self, index: int, call: Call, context: Context | None) -> _Worker:
        for _ in range(3):
            worker = self._idle.popleft() if self._idle else _Worker(*self._server.fork())
            if context is not None:
                key, values = context
                before = values(key in worker.known)
                worker.known.add(key)
            else:
                before = ()
            try:
                worker.connection.send((call.function, (*before, *call.arguments)))
            except OSError:
                # It died while idle (killed by the system for memory, say).
                self._reap(worker)
                continue
            worker.call = index
            worker.deadline = time.monotonic() + call.timeout_s
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

    def _reap(self, worker: _Worker) -> int:
        worker.connection.close()
        return self._server.reap(worker.pid)


def _death(status: int) -> str:
    """Say how a worker died, from ``os.waitpid``'s status."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(number).name}"
        return f"killed by signal {number}"
    return f"ended with status {os.waitstatus_to_exitcode(status)}"
