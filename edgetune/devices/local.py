"""This machine as a device: a tracker and a runner, each a process on a free loopback port.

Both end with their standard input, a pipe that this process holds: however it dies, the kernel closes
the pipe. Nothing needs to be cleaned up after a ``kill -9``.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from types import TracebackType
from typing import IO, Self

from edgetune.devices.transport import Device, Endpoint
from edgetune.errors import DeviceError
from edgetune.resources import data_path

START_TIMEOUT_S = 120.0
"""Importing TVM takes seconds, and a busy machine makes them many."""
_STOP_TIMEOUT_S = 2.0


def local_device(threads: int) -> Device:
    """Return this machine as a device, with kernels on ``threads`` threads."""
    return Device("local", LocalTransport(threads), shares_host=True, threads=threads)


class LocalTransport:
    """Starts a tracker and a runner on loopback; entered again, they are the same ones."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        # No other runner on this machine has this key, whoever's it is.
        self.key = f"local-{secrets.token_hex(4)}"
        self._tracker: _Server | None = None
        self._runner: _Server | None = None
        self._lock = threading.Lock()
        self._entered = 0

    def __enter__(self) -> Self:
        with self._lock:
            self._entered += 1
            if self._entered > 1:
                return self
            self._start(time.monotonic() + START_TIMEOUT_S)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Under the lock: a lease in another thread must not start what was just ended.
        with self._lock:
            self._entered -= 1
            if self._entered:
                return
            for server in (self._runner, self._tracker):
                if server is not None:
                    server.stop()
            self._runner = self._tracker = None

    def endpoint(self, timeout_s: float) -> Endpoint:
        """Wait for both processes, and return where the tracker listens."""
        with self._lock:
            if self._tracker is None or self._runner is None:
                raise DeviceError("The local device was stopped. Start it again by entering its context.")
            deadline = time.monotonic() + timeout_s
            self._runner.port(deadline)
            return Endpoint("127.0.0.1", self._tracker.port(deadline), self.key)

    def revive(self) -> bool:
        """Start a new tracker or runner in place of one that has died; say whether one had."""
        with self._lock:
            if self._tracker is None or self._runner is None:
                return False
            if not self._tracker.alive():
                self._tracker.stop()
                self._runner.stop()
                self._tracker = None
            if self._runner.alive():
                return False
            self._runner.stop()
            self._start(time.monotonic() + START_TIMEOUT_S)
            return True

    def processes(self) -> tuple[int, ...]:
        """Return the process ids of the tracker and the runner, as far as they run."""
        return tuple(s.pid for s in (self._tracker, self._runner) if s is not None and s.alive())

    def _start(self, deadline: float) -> None:
        """Start the runner, and the tracker unless it runs."""
        if self._tracker is None:
            self._tracker = _Server("tracker", [sys.executable, "-m", "edgetune.devices.tracker_process"])
        command = [
            sys.executable,
            str(data_path("rpc") / "runner.py"),
            "--tracker",
            f"127.0.0.1:{self._tracker.port(deadline)}",
            "--key",
            self.key,
            "--threads",
            str(self.threads),
        ]
        self._runner = _Server("runner", command)


class _Server:
    """One child process that prints ``{"port": N}`` when it listens and ends with its standard input."""

    def __init__(self, name: str, command: list[str]) -> None:
        self.name = name
        self._port: int | None = None
        # A file, not a pipe: nobody needs to read it for the child to go on.
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "PYTHONUNBUFFERED": "1",
            # Interpreter start-up must not depend on what the caller set for edgetune itself.
            "TVM_USE_RUNTIME_LIB": "1",
        }
        try:
            self._process = subprocess.Popen(
                [*command, "--with-owner"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=environment,
                # Ctrl-C in the terminal is for edgetune, which then stops these in order.
                start_new_session=True,
            )
        except OSError as error:
            raise DeviceError(
                f"Cannot start the {name} of the local device: {error.strerror}. "
                "Check that this Python can start processes (limits, memory)."
            ) from error

    @property
    def pid(self) -> int:
        return self._process.pid

    def alive(self) -> bool:
        return self._process.poll() is None

    def port(self, deadline: float) -> int:
        """Wait for the line with the port."""
        if self._port is None:
            self._port = self._read_port(deadline)
        return self._port

    def _read_port(self, deadline: float) -> int:
        import select

        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        text = b""
        while not text.endswith(b"\n"):
            left = max(0.0, deadline - time.monotonic())
            if not select.select([descriptor], [], [], left)[0]:
                raise DeviceError(
                    f"The {self.name} of the local device did not start in time. Is the machine overloaded? "
                    f"It said: {self.said()}"
                )
            piece = os.read(descriptor, 4096)
            if not piece:
                raise DeviceError(
                    f"The {self.name} of the local device ended at once. Check the installation with "
                    f"`pip check`. It said: {self.said()}"
                )
            text += piece
        return int(json.loads(text)["port"])

    def said(self) -> str:
        """Return the end of the process's standard error."""
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        return " | ".join(lines[-3:]) or "nothing"

    def stop(self) -> None:
        """End the process and everything below it."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()
