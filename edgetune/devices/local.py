"""This machine as a device: a tracker and a runner, each a process on a free loopback port."""

from __future__ import annotations

import sys

from edgetune.devices.local_link import LocalLink
from edgetune.devices.probe import probe
from edgetune.devices.server import Server
from edgetune.devices.tracked import TrackedTransport
from edgetune.devices.transport import Device
from edgetune.resources import data_path


def local_device(threads: int, cpus: tuple[int, ...] = ()) -> Device:
    """Return this machine as a device, with kernels on ``threads`` threads, on ``cpus`` if there are any."""
    return Device(
        "local",
        LocalTransport("local", threads, cpus),
        shares_host=True,
        threads=threads,
        prober=lambda: probe(LocalLink()),
        linker=LocalLink,
        cpus=cpus,
    )


class LocalTransport(TrackedTransport):
    """Starts the Python runner here."""

    def __init__(self, name: str, threads: int, cpus: tuple[int, ...] = ()) -> None:
        super().__init__(name, threads)
        self.cpus = cpus

    def _prepare(self) -> None:
        """Nothing to do: edgetune is installed here."""

    def _new_runner(self, tracker: str, port: int) -> Server:
        script = str(data_path("rpc") / "runner.py")
        arguments = ["--tracker", f"{tracker}:{port}", "--key", "-", "--threads", str(self.threads)]
        if self.cpus:
            arguments += ["--cpus", ",".join(map(str, self.cpus))]
        command = [sys.executable, script, *arguments]
        # The key through a pipe: every user sees the list of processes.
        return Server(f"the runner of device '{self.name}'", command, self.key.encode())
