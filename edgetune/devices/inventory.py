"""The devices that edgetune knows by name: this machine, and those that the user has added."""

from __future__ import annotations

import sys

from edgetune.devices.address import Ask
from edgetune.devices.local import local_device
from edgetune.devices.registry import find
from edgetune.devices.remote import remote_device
from edgetune.devices.transport import Device

LOCAL = "local"


def open_device(name: str | None, threads: int) -> Device:
    """Return a device by name, None for this machine, that runs kernels on ``threads`` threads.

    Nothing is started before ``with device.up()``.

    Raises:
        DeviceError: there is no such device; the message names those that are.
    """
    if name in (None, LOCAL):
        return local_device(threads)
    return remote_device(str(name), find(str(name)).address, threads, ask_user())


def ask_user() -> Ask | None:
    """Return how to ask the user for a secret; None where nobody sits at a terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    import getpass

    return getpass.getpass
