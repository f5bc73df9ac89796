"""For which target a request is compiled, and on which device it is measured and verified."""

from __future__ import annotations

from collections.abc import Callable

from edgetune.cpu import architecture, missing_features
from edgetune.devices.clusters import choose_cpus
from edgetune.devices.inventory import cpus_of, open_device
from edgetune.devices.manage import check_target, device_target
from edgetune.devices.transport import Device
from edgetune.errors import DeviceError, UsageError
from edgetune.sides.device_side import is_remote
from edgetune.targets import LOCAL, Target, load_target
from edgetune.watcher import Watcher


def chosen_target(name: str, threads: int | None, local: Target | None = None) -> Target:
    """Return the target asked for, checked.

    Args:
        name: ``local``, a name, or the path of a TOML file.
        threads: in place of the target's.
        local: what ``local`` is, if not this machine.

    Raises:
        TargetError: there is no such target, or its description is wrong.
    """
    target = local if local is not None and name == LOCAL else load_target(name)
    if threads is not None:
        target = target.with_threads(threads)
    target.check()
    return target


def runs_here(target: Target) -> bool:
    """Whether this machine can run code for a target."""
    return (
        target.kind == "llvm"
        and target.arch == architecture()
        and not missing_features(target.required_features())
    )


def place(
    name: str, threads: int | None, device: str | None, watcher: Watcher, cluster: str | None = None
) -> tuple[Target, Device]:
    """Return the target, and the device to measure on.

    On another machine, that machine's own CPU is the target unless another one is asked for. ``cluster`` says which
    of the device's CPUs count, see :func:`edgetune.devices.clusters.choose_cpus`.

    Raises:
        UsageError: the device has no such cluster.
        TargetError: see :func:`chosen_target`.
        DeviceError: no such device, it cannot be reached, or it cannot run the target's code.
    """
    if is_remote(device):
        return _place_elsewhere(name, threads, str(device), watcher, cluster)
    cpus = cpus_of(device, cluster)
    target = chosen_target(name, threads)
    if cpus and target.threads > len(cpus):
        if threads is not None:
            raise UsageError(
                f"{threads} threads do not fit on cluster {cluster}: it has {len(cpus)} CPUs. Give --threads "
                f"{len(cpus)}."
            )
        target = target.with_threads(len(cpus))
    measured_on = open_device(device, target.threads, cpus)
    if measured_on.shares_host and not runs_here(target):
        raise DeviceError(
            f"this machine cannot run code for {target.name} ({target.mcpu}), so it cannot measure any; "
            "name a device of that kind with --device, tune for this machine with --target local, or use "
            "'edgetune compile', which needs no device"
        )
    return target, measured_on


def fastest_threads(most: int, time_ms: Callable[[int], float | None], watcher: Watcher) -> int:
    """Return the number of threads with the least time among the powers of two below ``most``, and ``most`` itself.

    Args:
        most: the largest number. time_ms: measures one number; None where it cannot.
    """
    counts = [*(1 << bit for bit in range(most.bit_length()) if 1 << bit < most), most]
    times: dict[int, float] = {}
    for count in counts:
        watcher.say(f"timing the untuned model on {count} of {most} threads")
        measured_ms = time_ms(count)
        if measured_ms is not None:
            times[count] = measured_ms
    if not times:
        return most
    best = min(times, key=lambda count: times[count])
    told = ", ".join(f"{count}: {measured_ms:.3f} ms" for count, measured_ms in times.items())
    watcher.note(f"tuning for {best} threads; the untuned model takes, by threads, {told}")
    return best


def _place_elsewhere(
    name: str, threads: int | None, device: str, watcher: Watcher, cluster: str | None
) -> tuple[Target, Device]:
    watcher.say(f"asking {device} what it is")
    found = open_device(device, threads or 1).probe()
    for note in found.notes:
        watcher.note(note)
    cpus = () if cluster is None else choose_cpus(found, cluster)
    if cpus:
        found = found.only(cpus)
    target = chosen_target(name, threads, device_target(device, found))
    check_target(target, device, found)
    return target, open_device(device, target.threads, cpus)
