"""The devices that edgetune knows by name: this machine, and those that the user has added."""

from __future__ import annotations

import sys

from edgetune.devices.address import Ask
from edgetune.devices.clusters import choose_cpus
from edgetune.devices.local import local_device
from edgetune.devices.registry import find
from edgetune.devices.remote import remote_device
from edgetune.devices.transport import Device

LOCAL = "local"


def open_device(name: str | None, threads: int, cpus: tuple[int, ...] = ()) -> Device:
    """Return a device by name, None for this machine, that runs kernels on ``threads`` threads.

    They run on ``cpus`` alone where some are named.

    Nothing is started before ``with device.up()``.

    Raises:
        DeviceError: there is no such device; the message names those that are.
    """
    if name in (None, LOCAL):
        return local_device(threads, cpus)
    entry = find(str(name))
    return remote_device(str(name), entry.address, threads, ask_user(), cpus, entry.python)


def cpus_of(name: str | None, cluster: str | None) -> tuple[int, ...]:
    """Return the CPUs of a device that a cluster means; none, for any, where it is None.

    Raises:
        DeviceError: the device cannot be reached.
        UsageError: it has no such cluster.
    """
    return () if cluster is None else choose_cpus(open_device(name, threads=1).probe(), cluster)


def ask_user() -> Ask | None:
    """Return how to ask the user for a secret; None where nobody sits at a terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    import getpass

    return getpass.getpass
