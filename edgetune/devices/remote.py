"""A device that is another machine: a tracker and a bridge here, the native runner there."""

from __future__ import annotations

import secrets
import sys
import threading
import time
from types import TracebackType
from typing import Self

from edgetune.devices.address import Address, Ask, Secrets, open_link
from edgetune.devices.bridge import Plan
from edgetune.devices.deploy import deploy, home_of
from edgetune.devices.probe import Probe, probe
from edgetune.devices.server import START_TIMEOUT_S, Server
from edgetune.devices.transport import Device, Endpoint, Link
from edgetune.errors import DeviceError

_known_secrets: dict[str, Secrets] = {}
"""What the user was asked for in this process, by address."""


def connect(address: Address, ask: Ask | None = None) -> Link:
    """Connect to a device; what the user is asked for is asked once in a process.

    Raises:
        DeviceError: see :func:`edgetune.devices.address.open_link`.
    """
    return open_link(address, _known_secrets.setdefault(str(address), Secrets()), ask)


def remote_device(name: str, address: Address, threads: int, ask: Ask | None = None) -> Device:
    """Return a device that is reached over a link, with kernels on ``threads`` threads."""
    transport = RemoteTransport(name, address, threads, ask)
    return Device(name, transport, shares_host=False, threads=threads, ask=transport.probe)


class RemoteTransport:
    """Puts the runner onto the device, and starts a tracker and a bridge to it; see ``bridge.py``."""

    def __init__(self, name: str, address: Address, threads: int, ask: Ask | None = None) -> None:
        self.name = name
        self.address = address
        self.threads = threads
        self.key = f"{name}-{secrets.token_hex(4)}"
        self._ask = ask
        self._tracker: Server | None = None
        self._bridge: Server | None = None
        self._lock = threading.Lock()
        self._entered = 0
        self._probe: Probe | None = None
        self._start_command = ""
        self._home = ""

    def __enter__(self) -> Self:
        """Connect, put the runner there unless it is, and start the processes here.

        Raises:
            DeviceError: the device cannot be reached or used.
        """
        with self._lock:
            self._entered += 1
            if self._entered > 1:
                return self
            try:
                self._tracker = self._new_tracker()
                self._deploy()
                self._bridge = self._new_bridge(time.monotonic() + START_TIMEOUT_S)
            except BaseException:
                self._entered = 0
                self._stop()
                raise
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
            if not self._entered:
                self._stop()

    def endpoint(self, timeout_s: float) -> Endpoint:
        """Wait for both processes, and return where the tracker listens."""
        with self._lock:
            if self._tracker is None or self._bridge is None:
                raise DeviceError(
                    f"Device '{self.name}' was stopped. Start it again by entering its context."
                )
            deadline = time.monotonic() + timeout_s
            self._bridge.port(deadline)
            return Endpoint("127.0.0.1", self._tracker.port(deadline), self.key)

    def revive(self) -> bool:
        """Start again what has died here; True also where the connection to the device broke."""
        with self._lock:
            if self._tracker is None or self._bridge is None:
                return False
            lost = bool(self._bridge.events())
            if self._tracker.alive() and self._bridge.alive():
                return lost
            self._stop()
            self._tracker = self._new_tracker()
            self._bridge = self._new_bridge(time.monotonic() + START_TIMEOUT_S)
            return True

    def complaint(self) -> str:
        """What the bridge said last."""
        bridge = self._bridge
        return bridge.said() if bridge is not None else ""

    def probe(self) -> Probe:
        """Return what the device says of itself; asked once.

        Raises:
            DeviceError: it cannot be reached.
        """
        if self._probe is None:
            link = connect(self.address, self._ask)
            try:
                self._probe = probe(link)
            finally:
                link.close()
        return self._probe

    def processes(self) -> tuple[int, ...]:
        """Return the process ids of the tracker and the bridge, as far as they run."""
        return tuple(s.pid for s in (self._tracker, self._bridge) if s is not None and s.alive())

    def _deploy(self) -> None:
        link = connect(self.address, self._ask)
        try:
            if self._probe is None:
                self._probe = probe(link)
            self._start_command = deploy(link, self._probe)
            self._home = home_of(link)
        finally:
            link.close()

    def _new_tracker(self) -> Server:
        command = [sys.executable, "-m", "edgetune.devices.tracker_process"]
        return Server(f"the tracker of device '{self.name}'", command)

    def _new_bridge(self, deadline: float) -> Server:
        assert self._tracker is not None
        plan = Plan(
            address=self.address,
            secrets=_known_secrets.get(str(self.address), Secrets()),
            command=self._start_command,
            home=self._home,
            threads=self.threads,
            tracker=("127.0.0.1", self._tracker.port(deadline)),
            key=self.key,
        )
        command = [sys.executable, "-m", "edgetune.devices.bridge"]
        # Through a pipe: secrets must not stand in a list of processes.
        return Server(f"the bridge to device '{self.name}'", command, plan.model_dump_json().encode())

    def _stop(self) -> None:
        for server in (self._bridge, self._tracker):
            if server is not None:
                server.stop()
        self._bridge = self._tracker = None
