"""Puts the native runner onto a device, once for each content, and takes it away again."""

from __future__ import annotations

import secrets
import shlex

from edgetune.devices.fitting import check_runner_file
from edgetune.devices.link import Link
from edgetune.devices.native import RunnerFolder, assemble, missing_libc
from edgetune.devices.probe import Probe
from edgetune.errors import DeviceError
from edgetune.tvm_runtime import GLIBC

PROTOCOL = "edgetune-runner 1"
"""What the runner says first: its protocol's number."""


def deploy(link: Link, probe: Probe) -> str:
    """Make the runner ready on a device, and return the shell words that start it there.

    Args:
        link: to the device.
        probe: what the device is.

    Raises:
        DeviceError: there is no runner for it, it cannot store the files, or the runner does not start.
        ToolchainError: the runner cannot be built.
    """
    folder = _fitting(probe)
    home = home_of(link)
    place = f"{home}/runner-{folder.digest}"
    command = folder.command(place)
    if link.run(f"test -d {shlex.quote(place)}").code != 0:
        for name, path in folder.files().items():
            check_runner_file(name, path.read_bytes(), link.address, probe, bool(folder.loader))
        _push(link, folder, home, place)
    done = link.run(f"{command} version", timeout_s=60)
    if done.code != 0 or done.text != PROTOCOL:
        raise DeviceError(
            f"The runner does not start on {link.address}: {done.complaint}. If its file system forbids programs "
            f"(noexec), mount it otherwise; else remove {place} there and try again."
        )
    return command


def home_of(link: Link) -> str:
    """Make edgetune's folder on a device, and return its path.

    Raises:
        DeviceError: it cannot be made.
    """
    done = link.run(f"umask 077; mkdir -p {link.home} && cd {link.home} && pwd -P")
    if done.code != 0 or not done.text.startswith("/"):
        raise DeviceError(
            f"{link.address} has no place for edgetune's files: {done.complaint}. Make the user's home folder "
            "writable there."
        )
    return done.text


def clean(link: Link) -> None:
    """Remove everything that edgetune has put onto a device, and end what runs of it.

    Raises:
        DeviceError: something could not be removed.
    """
    # The lock names the process of the session that holds it, which is the leader of its group.
    done = link.run(
        f"cd {link.home} 2>/dev/null || exit 0; "
        "if read -r pid owner < lock 2>/dev/null && test -d sessions/$pid; then kill -9 -$pid 2>/dev/null; fi; "
        f"cd / && rm -rf {link.home}",
        timeout_s=60,
    )
    if done.code != 0:
        raise DeviceError(
            f"{link.address} keeps some of edgetune's files: {done.complaint}. Remove them there."
        )


def _fitting(probe: Probe) -> RunnerFolder:
    if probe.gpu and _has_glibc(probe):
        # The GPU's libraries are the device's, and want the device's C library.
        return assemble(probe.arch, own_libc=False)
    folder = assemble(probe.arch)
    if not folder.loader and not _has_glibc(probe):
        raise DeviceError(missing_libc(probe.arch))
    return folder


def _has_glibc(probe: Probe) -> bool:
    name, _, version = probe.libc.partition(" ")
    return name == "glibc" and _numbers(version) >= _numbers(GLIBC)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _push(link: Link, folder: RunnerFolder, home: str, place: str) -> None:
    """Copy the files beside the final place, then move them there in one step."""
    new = f"{home}/.new-{secrets.token_hex(4)}"
    quoted = shlex.quote(new)
    try:
        made = link.run(f"umask 077; mkdir {quoted}")
        if made.code != 0:
            raise DeviceError(f"{link.address} cannot store {new}: {made.complaint}. Free space there.")
        for name, path in folder.files().items():
            link.push(path.read_bytes(), f"{new}/{name}")
        moved = link.run(f"mv {quoted} {shlex.quote(place)} || test -d {shlex.quote(place)}")
        if moved.code != 0:
            raise DeviceError(f"{link.address} cannot store {place}: {moved.complaint}. Free space there.")
    except DeviceError:
        if link.alive():
            link.run(f"rm -rf {quoted}")
        raise
