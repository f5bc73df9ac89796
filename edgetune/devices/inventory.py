"""The devices that edgetune knows by name."""

from __future__ import annotations

from edgetune.devices.local import local_device
from edgetune.devices.transport import Device
from edgetune.errors import DeviceError, did_you_mean

LOCAL = "local"

_DEVICES = {LOCAL: local_device}


def list_devices() -> tuple[str, ...]:
    """Return the names of the known devices."""
    return tuple(_DEVICES)


def open_device(name: str | None, threads: int) -> Device:
    """Return a device by name, None for this machine, that runs kernels on ``threads`` threads.

    Nothing is started before ``with device.up()``.

    Raises:
        DeviceError: there is no such device; the message names those that are.
    """
    make = _DEVICES.get(name or LOCAL)
    if make is None:
        raise DeviceError(f"There is no device '{name}'; {did_you_mean(str(name), _DEVICES)}.")
    return make(threads)
