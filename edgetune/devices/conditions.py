"""A device's state during a run: read over a connection of its own, whose loss never ends the run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from edgetune.devices.link import Link
from edgetune.devices.sensors import Sensors, State
from edgetune.errors import DeviceError

_RETRY_S = 30.0
"""So long a device is not asked again after it did not answer: a run that waits for it must not wait twice."""


class Conditions:
    """Reads the state of a device again and again. Not for several threads.

    Args:
        linker: opens a connection to it; None for a device that has no state.
        cpus: those that kernels run on; all by default.
        root: what stands before the paths of the kernel's files.
    """

    def __init__(self, linker: Callable[[], Link] | None, cpus: tuple[int, ...] = (), root: str = "") -> None:
        self._linker = linker
        self._cpus = cpus
        self._root = root
        self._link: Link | None = None
        self._not_before = 0.0

    def read(self) -> State:
        """Return the state now; an empty one where the device does not answer."""
        if self._linker is None or time.monotonic() < self._not_before:
            return State()
        try:
            if self._link is None:
                self._link = self._linker()
            return Sensors(self._link, self._cpus, self._root).read()
        except DeviceError:
            self.close()
            self._not_before = time.monotonic() + _RETRY_S
            return State()

    def close(self) -> None:
        """Close the connection; it is opened again when it is needed."""
        if self._link is not None:
            with contextlib.suppress(DeviceError, OSError):
                self._link.close()
        self._link = None
