"""How many CPUs this process may really use, and the caches of one of them.

Imports the standard library alone: loading a bundle may use it.

Sources: Linux ``Documentation/admin-guide/cgroup-v2.rst`` (cpu.max),
``Documentation/scheduler/sched-bwc.rst`` (cgroup v1), ``proc_pid_mountinfo(5)``,
``Documentation/ABI/testing/sysfs-devices-system-cpu`` (topology, cache).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_CPUS = Path("/sys/devices/system/cpu")
_PROC = Path("/proc")


@dataclass(frozen=True)
class Caches:
    """Bytes of cache that one core sees at each level, shared or not; 0 is none or unknown."""

    l1d_bytes: int = 0
    l2_bytes: int = 0
    l3_bytes: int = 0


def usable_cpus() -> frozenset[int]:
    """Return the numbers of the logical CPUs this process may run on."""
    try:
        return frozenset(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return frozenset(range(os.cpu_count() or 1))


def usable_cores() -> int:
    """Return how many threads of heavy computation this process can keep busy, at least 1.

    That is the physical cores in its affinity mask, capped by the CPU quota of its cgroups. The
    quota is rounded down: one thread more than it pays for is throttled, and the others wait for
    it at every barrier. In a virtual machine every CPU counts as a core, because the topology
    shown there is the hypervisor's invention.
    """
    cpus = usable_cpus()
    cores = len(cpus) if _virtual() else _physical_cores(cpus, _CPUS)
    quota = cpu_quota()
    return cores if quota is None else max(1, min(cores, int(quota)))


def cpu_quota(proc: Path = _PROC) -> float | None:
    """Return how many CPUs' worth of time the cgroups of this process grant it; None is no limit.

    Reads cgroup v2 and v1, and every level above the process's own: the smallest limit holds.

    Args:
        proc: the proc file system.
    """
    quotas = [
        quota
        for group in _cpu_cgroups(_lines(proc / "self/cgroup"), _lines(proc / "self/mountinfo"))
        if (quota := _quota_v2(group) or _quota_v1(group)) is not None
    ]
    return min(quotas, default=None)


def caches(cpu: int | None = None, root: Path = _CPUS) -> Caches:
    """Return the caches of one CPU, by default the lowest this process may run on.

    Args:
        cpu: the number of a logical CPU.
        root: the folder of sysfs that lists the CPUs.
    """
    number = min(usable_cpus()) if cpu is None else cpu
    sizes = {1: 0, 2: 0, 3: 0}
    for index in sorted((root / f"cpu{number}" / "cache").glob("index*")):
        level = _text(index / "level")
        if _text(index / "type") in ("Data", "Unified") and level in ("1", "2", "3"):
            sizes[int(level)] = _bytes(_text(index / "size"))
    return Caches(sizes[1], sizes[2], sizes[3])


def _physical_cores(cpus: frozenset[int], root: Path) -> int:
    siblings = {
        cpu: _text(root / f"cpu{cpu}" / "topology" / "thread_siblings_list") or str(cpu) for cpu in cpus
    }
    return len(set(siblings.values()))


def _virtual() -> bool:
    """Say whether a hypervisor is below: x86 tells by a CPU flag, others by the device tree."""
    if re.search(r"^flags\s*:.*\bhypervisor\b", "\n".join(_lines(_PROC / "cpuinfo")), re.M):
        return True
    return _text(Path("/sys/hypervisor/type")) != "" or Path("/proc/device-tree/hypervisor").exists()


def _cpu_cgroups(cgroup: list[str], mountinfo: list[str]) -> Iterator[Path]:
    """Yield the folders of the process's cgroups that may limit CPU time, inner ones first."""
    mounts = [_mount(line) for line in mountinfo]
    for line in cgroup:
        _, controllers, path = line.split(":", 2)
        for root, folder, kind, options in mounts:
            v2 = kind == "cgroup2" and controllers == ""
            v1 = kind == "cgroup" and "cpu" in controllers.split(",") and "cpu" in options
            if v1 or v2:
                yield from _levels(root, Path(folder), path)


def _mount(line: str) -> tuple[str, str, str, list[str]]:
    """Return root, mount point, type and super options of a line of mountinfo."""
    left, _, right = line.partition(" - ")
    fields, tail = left.split(), right.split()
    if len(fields) < 5 or not tail:
        return "", "", "", []
    return fields[3], _unescape(fields[4]), tail[0], tail[-1].split(",")


def _unescape(path: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), path)


def _levels(root: str, folder: Path, path: str) -> Iterator[Path]:
    """Yield the folder of a cgroup and those above it, up to the mount point.

    In a container the path may lie outside of what is mounted: then the mount point is all there is.
    """
    try:
        inner = PurePosixPath(path).relative_to(root)
    except ValueError:
        inner = PurePosixPath()
    group = folder / inner
    while group != folder and folder in group.parents:
        yield group
        group = group.parent
    yield folder


def _quota_v2(group: Path) -> float | None:
    match = re.fullmatch(r"(\d+) (\d+)", _text(group / "cpu.max"))
    return int(match[1]) / int(match[2]) if match and int(match[2]) else None


def _quota_v1(group: Path) -> float | None:
    quota, period = _text(group / "cpu.cfs_quota_us"), _text(group / "cpu.cfs_period_us")
    if not (quota.isdigit() and period.isdigit()) or int(period) == 0:  # -1 is no limit
        return None
    return int(quota) / int(period)


def _bytes(size: str) -> int:
    """Read sysfs's ``32K`` or ``16M``; 0 where it says nothing."""
    match = re.fullmatch(r"(\d+)([KMG]?)", size)
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]] if match else 0


def _text(path: Path) -> str:
    return "\n".join(_lines(path))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return []
