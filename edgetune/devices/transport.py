"""How a device is reached: the contract between the inventory, the transports and the sessions.

A *device* is a name, the transport that reaches it, and whether it runs on this machine. A *transport*
brings the device's runner up and says where the tracker is that leases it; the local one starts both
here. A *session* (:mod:`edgetune.devices.session`) is a lease on the device. A *link* is a connection to
another machine, by SSH or adb: it runs commands there and carries the bytes of a session.

Nothing but :mod:`edgetune.devices.local` may assume that a device is this machine.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, runtime_checkable

from edgetune.errors import DeviceError

if TYPE_CHECKING:
    from edgetune.devices.probe import Probe


@dataclass(frozen=True)
class Endpoint:
    """Where a device can be leased: the tracker's address as seen from here, and the device's key."""

    host: str
    port: int
    key: str

    def __str__(self) -> str:
        """Return ``key@host:port``."""
        return f"{self.key}@{self.host}:{self.port}"


@runtime_checkable
class Transport(Protocol):
    """Makes one device reachable.

    Ownership: whoever enters the context owns the processes and tunnels behind it; leaving it, or the
    death of the owning process by any signal, ends them all. Threads: ``endpoint`` may be called from
    any thread, the rest from the owner's only.
    """

    def __enter__(self) -> Self:
        """Begin to bring the device up, without waiting for it."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End every process and tunnel that was started."""
        ...

    def endpoint(self, timeout_s: float) -> Endpoint:
        """Wait until the device can be leased, and return where.

        Raises:
            DeviceError: it did not come up in time; the message says what to look at.
        """
        ...

    def revive(self) -> bool:
        """Check the device after its connection broke, start again what has died, and say if anything had.

        Raises:
            DeviceError: it cannot be brought back.
        """
        ...

    def complaint(self) -> str:
        """Return what the processes behind it said last, for messages; empty where they said nothing."""
        ...


@dataclass(frozen=True)
class Device:
    """A device that kernels can be measured on.

    Attributes:
        name: as in the inventory and in the tuning logs.
        transport: how it is reached.
        shares_host: whether it runs on the cores that edgetune itself searches and builds with, so that
            measuring must wait for those to be idle.
        threads: how many threads kernels run on.
        ask: how another machine is asked what it is; None for this one.
    """

    name: str
    transport: Transport
    shares_host: bool
    threads: int
    ask: Callable[[], Probe] | None = None

    def probe(self) -> Probe:
        """Return what another machine says of itself.

        Raises:
            DeviceError: it cannot be reached, or it is this machine.
        """
        if self.ask is None:
            raise DeviceError(f"Device '{self.name}' is this machine; see `edgetune targets detect`.")
        return self.ask()

    def up(self) -> AbstractContextManager[Transport]:
        """Return the context in which the device is reachable."""
        return self.transport


@dataclass(frozen=True)
class Output:
    """What a command on a device gave: exit code, standard output and standard error."""

    code: int
    stdout: bytes
    stderr: bytes = b""

    @property
    def text(self) -> str:
        """Standard output as text, without white space around it."""
        return self.stdout.decode("utf-8", "replace").strip()

    @property
    def complaint(self) -> str:
        """The last line of what it said went wrong."""
        lines = (self.stderr or self.stdout).decode("utf-8", "replace").strip().splitlines()
        return lines[-1].strip() if lines else f"exit code {self.code}"


class Stream(Protocol):
    """A running command on a device: its standard input and output. One thread may send, one receive."""

    def send(self, data: bytes) -> None:
        """Write all of ``data`` to its input.

        Raises:
            OSError: it has ended, or the connection is gone.
        """
        ...

    def receive(self, size: int) -> bytes:
        """Wait for output and return up to ``size`` bytes of it; nothing when it has ended.

        Raises:
            OSError: the connection is gone.
        """
        ...

    def complaint(self) -> str:
        """Return the last line of what it wrote to standard error so far."""
        ...

    def close(self) -> None:
        """End the command by closing its input and output. May be called from any thread, and again."""
        ...


class Link(Protocol):
    """A connection to a device that is another machine. Not for several threads, streams apart.

    Attributes:
        address: whom it reaches, for messages.
        home: the folder for edgetune's files on the device, as a word of the device's shell.
    """

    address: str
    home: str

    def run(self, command: str, timeout_s: float = 30.0) -> Output:
        """Run a command of a POSIX shell and wait for its end.

        Raises:
            DeviceError: the connection broke, or the command took longer than ``timeout_s`` seconds.
        """
        ...

    def push(self, data: bytes, path: str, timeout_s: float = 300.0) -> None:
        """Write an executable file of the user's own.

        Raises:
            DeviceError: the connection broke, or the device cannot store it.
        """
        ...

    def stream(self, command: str) -> Stream:
        """Start a command and return the streams to it.

        Raises:
            DeviceError: the connection is gone.
        """
        ...

    def alive(self) -> bool:
        """Whether the connection stands, as far as is known here."""
        ...

    def close(self) -> None:
        """Close the connection; commands that run end with it."""
        ...


EXPOSED = (
    "WARNING: listening on {host}. TVM RPC has no password and no encryption: everyone who can reach "
    "this port can run any program on this machine and on the devices. Prefer 127.0.0.1 and an SSH tunnel."
)
"""What to say before a server that others can reach is started."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens on ``host``."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
