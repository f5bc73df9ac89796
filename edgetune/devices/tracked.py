"""What all transports share: a tracker of the device's own, and the process that registers the device with it."""

from __future__ import annotations

import contextlib
import secrets
import sys
import threading
import time
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from edgetune.devices.server import START_TIMEOUT_S, Server
from edgetune.devices.transport import Endpoint
from edgetune.errors import DeviceError


class TrackedTransport(ABC):
    """Runs a tracker and a runner on this machine's loopback; entered again, they are the same ones.

    Args:
        name: of the device.
        threads: how many threads kernels run on.
    """

    def __init__(self, name: str, threads: int) -> None:
        self.name = name
        self.threads = threads
        # No other runner has this key, and nobody who was not told it leases the device: whoever does can run
        # any code as this user, and other users of this machine can connect to its loopback.
        self.key = f"{name}-{secrets.token_hex(16)}"
        self._tracker: Server | None = None
        self._runner: Server | None = None
        # Also while stopping: a lease in another thread must not start what was just ended.
        self._lock = threading.Lock()
        self._entered = 0

    @abstractmethod
    def _prepare(self) -> None:
        """Make the device ready, before anything is started here."""

    @abstractmethod
    def _new_runner(self, tracker: str, port: int) -> Server:
        """Start what registers the device with the tracker at this address."""

    def _was_lost(self) -> bool:
        """Whether the device was out of reach meanwhile, though everything here runs."""
        return False

    def __enter__(self) -> Self:
        """Bring the device up.

        Raises:
            DeviceError: it cannot be reached or used.
        """
        with self._lock:
            if not self._entered:
                with contextlib.ExitStack() as on_error:
                    on_error.callback(self._stop)
                    self._prepare()
                    self._start()
                    on_error.pop_all()
            self._entered += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._lock:
            self._entered -= 1
            if not self._entered:
                self._stop()

    def endpoint(self, timeout_s: float) -> Endpoint:
        """Wait for both processes, and return where the tracker listens."""
        with self._lock:
            if self._tracker is None or self._runner is None:
                raise DeviceError(
                    f"Device '{self.name}' was stopped. Start it again by entering its context."
                )
            deadline = time.monotonic() + timeout_s
            self._runner.port(deadline)
            return Endpoint("127.0.0.1", self._tracker.port(deadline), self.key)

    def revive(self) -> bool:
        """Start again what has died here; True also where the connection to the device broke."""
        with self._lock:
            if self._tracker is None or self._runner is None:
                return False
            lost = self._was_lost()
            if self._tracker.alive() and self._runner.alive():
                return lost
            self._stop(and_tracker=not self._tracker.alive())
            self._start()
            return True

    def complaint(self) -> str:
        """What the runner said last."""
        runner = self._runner
        return runner.said() if runner is not None else ""

    def processes(self) -> tuple[int, ...]:
        """Return the process ids of the tracker and the runner, as far as they run."""
        return tuple(s.pid for s in (self._tracker, self._runner) if s is not None and s.alive())

    def _start(self) -> None:
        """Start the runner, and the tracker unless it runs."""
        deadline = time.monotonic() + START_TIMEOUT_S
        if self._tracker is None:
            command = [sys.executable, "-m", "edgetune.devices.tracker_process"]
            self._tracker = Server(f"the tracker of device '{self.name}'", command)
        self._runner = self._new_runner("127.0.0.1", self._tracker.port(deadline))

    def _stop(self, *, and_tracker: bool = True) -> None:
        if self._runner is not None:
            self._runner.stop()
            self._runner = None
        if self._tracker is not None and and_tracker:
            self._tracker.stop()
            self._tracker = None
