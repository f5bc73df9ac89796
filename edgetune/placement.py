"""For which target a request is compiled, and on which device it is measured and verified."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edgetune.cpu import architecture, missing_features
from edgetune.cuda import local_gpu, runs_cubins
from edgetune.devices.clusters import choose_cpus
from edgetune.devices.inventory import LOCAL as LOCAL_DEVICE
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
    """Whether this machine can run code for a target: its CPU, and its GPU where the target is one."""
    return (
        target.arch == architecture()
        and not missing_features(target.required_features())
        and (target.gpu is None or runs_cubins(target.gpu.arch, local_gpu()))
    )


def place(
    name: str, threads: int | None, device: str | None, watcher: Watcher, cluster: str | None = None
) -> tuple[Target, tuple[Device, ...]]:
    """Return the target, and the devices to measure on.

    On another machine, that machine's own CPU is the target unless another one is asked for.

    Args:
        name: of the target. threads: in place of the target's.
        device: the device's name, or several with commas between them; None for this machine.
        watcher: told what is found.
        cluster: which CPUs of each device count, see :func:`edgetune.devices.clusters.choose_cpus`; any where None.

    Raises:
        TargetError: see :func:`chosen_target`.
        UsageError: the devices are no list of different machines, or have no such cluster.
        DeviceError: no such device, it cannot be reached, or it cannot run the target's code; several are not of
            one kind.
    """
    if is_remote(device):
        return _place_elsewhere(name, threads, device_names(str(device)), watcher, cluster)
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
        what = target.mcpu if target.gpu is None else target.gpu.arch
        raise DeviceError(
            f"this machine cannot run code for {target.name} ({what}), so it cannot measure any; "
            "name a device of that kind with --device, tune for this machine with --target local, or use "
            "'edgetune compile', which needs no device"
        )
    return target, (measured_on,)


def device_names(text: str) -> list[str]:
    """Return the names in a list of devices with commas between them.

    Raises:
        UsageError: one is there twice, or cannot be used together with others.
    """
    names = [part.strip() for part in text.split(",")]
    twice = {name for name in names if names.count(name) > 1}
    if len(names) > 1 and (LOCAL_DEVICE in names or twice or "" in names):
        raise UsageError(
            f"'{text}' cannot be used at once: name each device once, with commas between them, and leave out 'local', "
            "which searches and builds meanwhile"
        )
    return names


def _place_elsewhere(
    name: str, threads: int | None, devices: Sequence[str], watcher: Watcher, cluster: str | None
) -> tuple[Target, tuple[Device, ...]]:
    found = {}
    cpus: dict[str, tuple[int, ...]] = {}
    for device in devices:
        watcher.say(f"asking {device} what it is")
        found[device] = open_device(device, threads or 1).probe()
        for note in found[device].notes:
            watcher.note(note if len(devices) == 1 else f"{device}: {note}")
        cpus[device] = () if cluster is None else choose_cpus(found[device], cluster)
        if cpus[device]:
            found[device] = found[device].only(cpus[device])
    first = devices[0]
    own = {device: device_target(device, probe) for device, probe in found.items()}
    if others := [device for device in devices if own[device].fingerprint != own[first].fingerprint]:
        raise DeviceError(
            f"'{others[0]}' ({found[others[0]].summary()}) is another kind of device than '{first}' "
            f"({found[first].summary()}): what one measures says nothing of the other. Tune for each in a run of "
            "its own."
        )
    target = chosen_target(name, threads, own[first])
    for device, probe in found.items():
        check_target(target, device, probe)
    return target, tuple(open_device(device, target.threads, cpus[device]) for device in devices)


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
