"""How a device is reached: the contract between the inventory, the transports and the sessions.

A *device* is a name, the transport that reaches it, and whether it runs on this machine. A *transport*
brings the device's runner up and says where the tracker is that leases it; the local one starts both
here. A *session* (:mod:`edgetune.devices.session`) is a lease on the device. A *link*
(:mod:`edgetune.devices.link`) is a connection to another machine.

Nothing but :mod:`edgetune.devices.local` may assume that a device is this machine.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, runtime_checkable

from edgetune.errors import DeviceError

if TYPE_CHECKING:
    from edgetune.devices.link import Link
    from edgetune.devices.probe import Probe


PYTHON = "python3"
"""What the Python of a device is called, unless the user says otherwise."""


@dataclass(frozen=True)
class Endpoint:
    """Where a device can be leased: the tracker's address as seen from here, and the device's key."""

    host: str
    port: int
    key: str

    def __str__(self) -> str:
        """Return ``host:port``: the key is no one else's to read."""
        return f"{self.host}:{self.port}"


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
        threads: how many threads kernels run on. cpus: on which CPUs; any, where none are named.
        prober: asks the machine what it is.
        linker: opens a connection that runs commands on the machine, this one too.
        python: the machine's Python, which may have ONNX Runtime.
        prepared: is called before a session measures: what a restarted machine has forgotten is set again.
    """

    name: str
    transport: Transport
    shares_host: bool
    threads: int
    prober: Callable[[], Probe] | None = None
    linker: Callable[[], Link] | None = None
    cpus: tuple[int, ...] = ()
    python: str = PYTHON
    prepared: Callable[[], None] | None = None

    def probe(self) -> Probe:
        """Return what the machine says of itself.

        Raises:
            DeviceError: it cannot be reached, or it is no machine.
        """
        if self.prober is None:
            raise DeviceError(f"Device '{self.name}' is not asked what it is. Name a real one.")
        return self.prober()

    def up(self) -> AbstractContextManager[Transport]:
        """Return the context in which the device is reachable."""
        return self.transport
