"""What surrounds a benchmark: fixed clocks where they are asked for, the device's state before and after, its power."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from edgetune.devices.clocks import controlled_clocks
from edgetune.devices.link import Link
from edgetune.devices.power import PowerMeter
from edgetune.devices.sensors import Sensors, State
from edgetune.devices.transport import Device
from edgetune.errors import DeviceError

POWER_S = 1.5
"""So long a side runs again for its power to be measured."""


@dataclass
class Surroundings:
    """How a device is while a benchmark runs on it.

    Attributes:
        before, after: what its sensors told. clocks_fixed: whether its clocks were fixed for the benchmark.
        notes: what the user should know.
    """

    before: State = field(default_factory=State)
    after: State = field(default_factory=State)
    clocks_fixed: bool = False
    notes: tuple[str, ...] = ()
    _link: Link | None = None
    _root: str = ""

    def watts(self, works: dict[str, Callable[[], object]]) -> dict[str, float | None]:
        """Do each of the works, and return the power that the device drew meanwhile; None where it does not tell."""
        if self._link is None or not self.before.power_sensors:
            return dict.fromkeys(works)
        with PowerMeter(self._link, self._root) as meter:
            return {name: meter.watts(work) for name, work in works.items()}

    def to_json(self) -> dict[str, Any]:
        """The object ``conditions`` of ``benchmark``."""
        slowed = self.after.slowed_since(self.before)
        return {
            "before": self.before.brief(),
            "after": self.after.brief(),
            "slowed": list(slowed),
            "controlled": not slowed,
            "clocks_fixed": self.clocks_fixed,
            "power_sensors": list(self.before.power_sensors),
        }


@contextlib.contextmanager
def surroundings(device: Device, fix_clocks: bool = False, root: str = "") -> Iterator[Surroundings]:
    """Watch a device during a benchmark. One that does not answer these questions is benchmarked all the same.

    Args:
        device: whose CPUs count. fix_clocks: let its CPUs run with the ``performance`` governor meanwhile.
        root: what stands before the paths of the kernel's files.
    """
    around = Surroundings(_root=root)
    with contextlib.ExitStack() as stack:
        if device.linker is not None:
            with contextlib.suppress(DeviceError):
                around._link = stack.enter_context(contextlib.closing(device.linker()))
        clocks = stack.enter_context(controlled_clocks(device.linker, fix_clocks, root))
        around.clocks_fixed = clocks.fixed
        around.before = _state(around._link, device, root)
        yield around
        around.after = _state(around._link, device, root)
    around.notes += clocks.notes
    if slowed := around.after.slowed_since(around.before):
        around.notes += (f"the device was slowed down meanwhile: {'; '.join(slowed)}; cool it and repeat",)


def _state(link: Link | None, device: Device, root: str) -> State:
    if link is None:
        return State()
    try:
        return Sensors(link, device.cpus, root).read()
    except DeviceError:
        return State()
