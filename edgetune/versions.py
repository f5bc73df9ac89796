"""The packages that must match exactly, and the versions that are installed, without importing TVM."""

from __future__ import annotations

import importlib.metadata
import sys

from edgetune.errors import ToolchainError

# MetaSchedule of this TVM crashes inside TuneContext with any later tvm-ffi.
PINS = {"apache-tvm": "0.27.0.post1", "apache-tvm-ffi": "0.1.14.post1"}
# The LLVM inside the pinned TVM's wheels: asking TVM itself costs seconds of import.
_LLVM_OF_TVM = {"0.27.0.post1": "22"}


def check_pins() -> None:
    """Check that the packages that must match exactly do.

    Raises:
        ToolchainError: one of PINS is missing or has another version.
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
