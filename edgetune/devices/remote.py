"""A device that is another machine: a tracker and a bridge here, the native runner there."""

from __future__ import annotations

import contextlib
import sys

from edgetune.devices.address import Address, Ask, Secrets, open_link
from edgetune.devices.bridge import Plan
from edgetune.devices.deploy import deploy, home_of
from edgetune.devices.link import Link
from edgetune.devices.probe import Probe, probe
from edgetune.devices.server import Server
from edgetune.devices.tracked import TrackedTransport
from edgetune.devices.transport import PYTHON, Device

_known_secrets: dict[str, Secrets] = {}
"""What the user was asked for in this process, by address."""


def connect(address: Address, ask: Ask | None = None) -> Link:
    """Connect to a device; what the user is asked for is asked once in a process.

    Raises:
        DeviceError: see :func:`edgetune.devices.address.open_link`.
    """
    return open_link(address, _known_secrets.setdefault(str(address), Secrets()), ask)


def remote_device(
    name: str,
    address: Address,
    threads: int,
    ask: Ask | None = None,
    cpus: tuple[int, ...] = (),
    python: str = PYTHON,
) -> Device:
    """Return a device that is reached over a link; its kernels run on ``threads`` threads, on ``cpus`` if any."""
    transport = RemoteTransport(name, address, threads, ask, cpus)
    return Device(
        name,
        transport,
        shares_host=False,
        threads=threads,
        prober=transport.probe,
        linker=lambda: connect(address, ask),
        cpus=cpus,
        python=python,
    )


class RemoteTransport(TrackedTransport):
    """Puts the runner onto the device, and starts a bridge to it here; see ``bridge.py``."""

    def __init__(
        self,
        name: str,
        address: Address,
        threads: int,
        ask: Ask | None = None,
        cpus: tuple[int, ...] = (),
    ) -> None:
        super().__init__(name, threads)
        self.cpus = cpus
        self.address = address
        self._ask = ask
        self._probe: Probe | None = None
        self._start_command = ""
        self._home = ""

    def probe(self) -> Probe:
        """Return what the device says of itself; asked once.

        Raises:
            DeviceError: it cannot be reached.
        """
        if self._probe is None:
            with contextlib.closing(connect(self.address, self._ask)) as link:
                self._probe = probe(link)
        return self._probe

    def _prepare(self) -> None:
        with contextlib.closing(connect(self.address, self._ask)) as link:
            if self._probe is None:
                self._probe = probe(link)
            self._start_command = deploy(link, self._probe)
            self._home = home_of(link)

    def _new_runner(self, tracker: str, port: int) -> Server:
        plan = Plan(
            address=self.address,
            secrets=_known_secrets.get(str(self.address), Secrets()),
            command=self._start_command,
            home=self._home,
            threads=self.threads,
            cpus=self.cpus,
            tracker=(tracker, port),
            key=self.key,
        )
        command = [sys.executable, "-m", "edgetune.devices.bridge"]
        # Through a pipe: secrets must not stand in a list of processes.
        return Server(f"the bridge to device '{self.name}'", command, plan.model_dump_json().encode())

    def _was_lost(self) -> bool:
        return self._runner is not None and bool(self._runner.events())
