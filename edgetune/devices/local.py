"""This machine as a device: a tracker and a runner, each a process on a free loopback port."""

from __future__ import annotations

import secrets
import sys
import threading
import time
from types import TracebackType
from typing import Self

from edgetune.devices.server import START_TIMEOUT_S, Server
from edgetune.devices.transport import Device, Endpoint
from edgetune.errors import DeviceError
from edgetune.resources import data_path


def local_device(threads: int) -> Device:
    """Return this machine as a device, with kernels on ``threads`` threads."""
    return Device("local", LocalTransport(threads), shares_host=True, threads=threads)


class LocalTransport:
    """Starts a tracker and a runner on loopback; entered again, they are the same ones."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        # No other runner on this machine has this key, whoever's it is.
        self.key = f"local-{secrets.token_hex(4)}"
        self._tracker: Server | None = None
        self._runner: Server | None = None
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

    def complaint(self) -> str:
        """What the runner said last."""
        runner = self._runner
        return runner.said() if runner is not None else ""

    def processes(self) -> tuple[int, ...]:
        """Return the process ids of the tracker and the runner, as far as they run."""
        return tuple(s.pid for s in (self._tracker, self._runner) if s is not None and s.alive())

    def _start(self, deadline: float) -> None:
        """Start the runner, and the tracker unless it runs."""
        if self._tracker is None:
            self._tracker = Server(
                "the tracker of the local device", [sys.executable, "-m", "edgetune.devices.tracker_process"]
            )
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
        self._runner = Server("the runner of the local device", command)
