"""Which CPUs of a device kernels run on: a kind of cores by name, or a list."""

from __future__ import annotations

import re

from edgetune.devices.probe import Probe, cpu_list
from edgetune.errors import UsageError

NAMES = ("fastest", "big", "little", "all")


def choose_cpus(found: Probe, cluster: str) -> tuple[int, ...]:
    """Return the numbers of the CPUs that a cluster's name or a list such as ``4-6,7`` means on a device.

    ``fastest`` are those of the highest clock, ``little`` those of the lowest, ``big`` all but those (all, where
    there is one kind).

    Raises:
        UsageError: no such cluster, or CPUs that the device has not.
    """
    kinds = found.kinds
    chosen = {
        "fastest": kinds[:1],
        "big": kinds[:-1] or kinds,
        "little": kinds[-1:],
        "all": kinds,
    }.get(cluster)
    if chosen is not None:
        return tuple(sorted(number for kind in chosen for number in kind.cpus))
    if not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", cluster):
        raise UsageError(
            f"there is no cluster {cluster!r}; give {', '.join(NAMES)}, or a list of CPUs as 4-7"
        )
    wanted = cpu_list(cluster)
    present = {cpu.number for cpu in found.cpus}
    if absent := sorted(wanted - present):
        raise UsageError(
            f"cluster {cluster}: the device has no CPU {', '.join(map(str, absent))} for its user; it has "
            f"{', '.join(map(str, sorted(present)))}"
        )
    return tuple(sorted(wanted))
