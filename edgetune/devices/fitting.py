"""Checks a library against a device before it is sent there: the loader's own complaint names no way out."""

from __future__ import annotations

import re
from collections.abc import Collection

from edgetune.devices.native import C_LIBRARY, LOADERS
from edgetune.devices.probe import Probe
from edgetune.elf import Elf, ElfError, read_elf
from edgetune.errors import DeviceError

_RUNTIME = ("libtvm_ffi.so", "libtvm_runtime.so", "libtvm_runtime_extra.so", "libtvm_runtime_cuda.so")
_OF_A_GPU = re.compile(r"lib(cuda|cudart|nvrtc|nvidia|cublas|cudnn)\b.*\.so")
_BIONIC = {"libc.so", "libm.so", "libdl.so", "liblog.so"}


def check_library(name: str, data: bytes, device: str, probe: Probe, beside: Collection[str] = ()) -> None:
    """Check that the runner of a device can load a library, as far as its file tells.

    What instructions it uses is not in the file: see :func:`edgetune.devices.manage.check_target`.

    Args:
        name: of the file. data: its content.
        device: the device's name. probe: what the device is.
        beside: names of files that are in the same folder there.

    Raises:
        DeviceError: another machine, a library that is not there, a newer C library, or smaller pages.
    """
    elf = _read(name, data, device)
    if elf.arch != probe.arch:
        raise DeviceError(
            f"{name} is for {elf.arch}, device '{device}' is {probe.arch}: it was not sent. Build it for the device: "
            "leave --target away, or name a target of its architecture."
        )
    there = {*C_LIBRARY, *LOADERS.values(), *_RUNTIME, *beside}
    absent = [need for need in elf.needed if need not in there and not _OF_A_GPU.match(need)]
    if _BIONIC & set(absent):
        raise DeviceError(
            f"{name} is for Android's C library (it needs {', '.join(absent)}), and the runner on device '{device}' "
            "brings glibc along: it was not sent. Tune with --device alone; then `edgetune compile --target NAME` with "
            "the phone's target makes the app's bundle from what was measured."
        )
    if absent:
        raise DeviceError(
            f"{name} needs {', '.join(absent)}, which the runner on device '{device}' has not: it was not sent. Link "
            "it without."
        )
    _check_versions(name, elf, device, probe)
    _check_pages(name, elf, device, probe)


def check_runner_file(name: str, data: bytes, address: str, probe: Probe, own_libc: bool) -> None:
    """Check a file of the runner itself.

    Args:
        own_libc: the runner brings its C library along.

    Raises:
        DeviceError: another machine, a newer C library than the device's, or smaller pages.
    """
    elf = _read(name, data, address)
    if elf.arch != probe.arch:
        raise DeviceError(
            f"The runner's {name} is for {elf.arch}, {address} is {probe.arch}: it was not sent. Remove edgetune's "
            "cache folder 'runners' here and try again."
        )
    if not own_libc:
        _check_versions(name, elf, address, probe)
    _check_pages(name, elf, address, probe)


def _read(name: str, data: bytes, device: str) -> Elf:
    try:
        return read_elf(data)
    except ElfError as error:
        raise DeviceError(f"{name} was not sent to {device}: {error}. Build it again.") from error


def _check_versions(name: str, elf: Elf, device: str, probe: Probe) -> None:
    libc, _, version = probe.libc.partition(" ")
    wanted = [_numbers(text) for _, text in elf.versions if re.fullmatch(r"GLIBC_[\d.]+", text)]
    if libc == "glibc" and wanted and max(wanted) > _numbers(version):
        raise DeviceError(
            f"{name} needs glibc {'.'.join(map(str, max(wanted)))}, device '{device}' has {version}: it was not sent. "
            "Update the device's system, or link it against an older one."
        )


def _check_pages(name: str, elf: Elf, device: str, probe: Probe) -> None:
    if probe.page_bytes and 0 < elf.page_bytes < probe.page_bytes:
        raise DeviceError(
            f"{name} is laid out for memory pages of {elf.page_bytes} bytes, device '{device}' has pages of "
            f"{probe.page_bytes}: it was not sent. Write page_size_bytes = {probe.page_bytes} under [toolchain] in the "
            "target's file and build it again."
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))
