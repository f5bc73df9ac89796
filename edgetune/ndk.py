"""Android's NDK, used where one is installed: its linker, and its libraries in place of empty stand-ins.

Linking against the real libraries finds out at once what Android's C library does not have.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from edgetune.errors import ToolchainError

VARIABLES = ("ANDROID_NDK_HOME", "ANDROID_NDK_ROOT")
"""What Android's own tools read; the first that is set counts."""

LEAST_API = 24
"""Android 7."""

_FOLDER = {
    "aarch64": "aarch64-linux-android",
    "arm": "arm-linux-androideabi",
    "x86_64": "x86_64-linux-android",
    "riscv64": "riscv64-linux-android",
}


@dataclass(frozen=True)
class Ndk:
    """An NDK's tools for one architecture.

    Attributes:
        linker: its lld.
        libraries: folder of ``libc.so`` and the like for the oldest Android that is supported.
    """

    linker: Path
    libraries: Path


def find_ndk(arch: str) -> Ndk | None:
    """The NDK that the environment names, for one of ``cpu.ARCHITECTURES``; None where it names none.

    Raises:
        ToolchainError: what it names is no NDK, or one without libraries for the architecture.
    """
    variable = next((name for name in VARIABLES if os.environ.get(name)), None)
    if variable is None:
        return None
    root = Path(os.environ[variable])
    # "NDK build system maintainers guide": one folder for each kind of host, here one.
    hosts = root / "toolchains" / "llvm" / "prebuilt"
    for linker in sorted(hosts.glob("*/bin/ld.lld")):
        folder = linker.parent.parent / "sysroot" / "usr" / "lib" / _FOLDER[arch]
        levels = [int(path.name) for path in folder.glob("[0-9]*") if path.name.isdecimal()]
        supported = sorted(level for level in levels if level >= LEAST_API)
        if supported:
            return Ndk(linker, folder / str(supported[0]))
    raise ToolchainError(
        f"{variable} is {root}, which has no linker with libraries of {_FOLDER[arch]} below {hosts}; "
        f"name an NDK of release 22 or later, or unset {variable}: edgetune links for Android without one, too"
    )
