"""The packages that must match exactly, and the versions that are installed, without importing TVM."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from pathlib import Path

from edgetune.errors import ToolchainError

# MetaSchedule of this TVM crashes inside TuneContext with any later tvm-ffi.
PINS = {"apache-tvm": "0.27.0.post1", "apache-tvm-ffi": "0.1.14.post1"}
# The LLVM inside the pinned TVM's wheels: asking TVM itself costs seconds of import.
_LLVM_OF_TVM = {"0.27.0.post1": "22"}


def check_pins() -> None:
    """Check that the packages that must match exactly do, and that they can be loaded.

    Raises:
        ToolchainError: one of PINS is missing or has another version; another copy of TVM is in the process.
    """
    wrong = []
    for package, wanted in PINS.items():
        found = _version(package)
        if found != wanted:
            wrong.append(f"{package} is {found or 'not installed'}, needed is {wanted}")
    if wrong:
        install = " ".join(f"{package}=={version}" for package, version in PINS.items())
        raise ToolchainError(
            f"wrong versions of pinned packages: {', '.join(wrong)}; other combinations crash while tuning; "
            f"run 'pip install {install}'"
        )
    refuse_another_tvm()


def refuse_another_tvm() -> None:
    """Check that no copy of TVM but the packages' is in this process, such as that of a bundle used through the C API.

    The packages' own would register its functions a second time, and abort the process. The other way round is fine:
    of a bundle's libraries none is loaded that is there already, and their version is compared.

    Raises:
        ToolchainError: there is one.
    """
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    spec = importlib.util.find_spec("tvm_ffi")
    folders = [] if spec is None else spec.submodule_search_locations or []
    own = [path for folder in folders if (path := Path(folder, "lib", "libtvm_ffi.so")).is_file()]
    for line in maps.splitlines():
        found = Path(line.partition("/")[1] + line.partition("/")[2].removesuffix(" (deleted)"))
        if found.name != "libtvm_ffi.so" or (found.is_file() and any(path.samefile(found) for path in own)):
            continue
        raise ToolchainError(
            f"this process runs a bundle with the copy of TVM in {found}, and cannot load another one; load that "
            "bundle after the first use of edgetune, or in a process of its own"
        )


def versions() -> dict[str, str]:
    """Return the versions of edgetune, tvm, tvm-ffi and llvm, without importing TVM.

    A package that is not installed has the version ``none``.
    """
    tvm = _version("apache-tvm")
    return {
        "edgetune": _version("edgetune") or "none",
        "tvm": tvm or "none",
        "tvm-ffi": _version("apache-tvm-ffi") or "none",
        "llvm": _llvm_version(tvm),
    }


def _llvm_version(tvm: str | None) -> str:
    if "tvm" in sys.modules:
        from tvm.target import codegen

        return str(codegen.llvm_version_major())
    return _LLVM_OF_TVM.get(tvm or "", "none" if tvm is None else "unknown")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
