"""TVM's runtime libraries: where they are, what has to go along with them, and how they start a virtual machine.

They come from the pinned wheels: the installed ones for this machine's architecture, ones that pip downloads once
for others. ``import tvm`` would bring the compiler (a 260 MB library) and a second of imports; a Relax virtual
machine needs neither.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.metadata
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import platformdirs

from edgetune.atomic import filling
from edgetune.cpu import architecture
from edgetune.errors import DeviceError, ToolchainError
from edgetune.versions import PINS, refuse_another_tvm

FFI, RUNTIME, EXTRA, CUDA = (
    "libtvm_ffi.so",
    "libtvm_runtime.so",
    "libtvm_runtime_extra.so",
    "libtvm_runtime_cuda.so",
)
"""tvm-ffi's; TVM's; TVM's sorting, which TopK calls, and more; TVM's driver of GPUs."""
CARRIED = (FFI, RUNTIME, EXTRA, CUDA)
"""Those that a bundle may bring along."""
GLIBC = "2.28"
"""The oldest glibc that the libraries run with."""
MANYLINUX = {
    "x86_64": ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64"),
    "aarch64": ("manylinux_2_28_aarch64", "manylinux_2_27_aarch64"),
}
"""The architectures that there are wheels for, and what pip calls them."""
_LIBRARIES = {"apache-tvm": (RUNTIME, EXTRA, CUDA), "apache-tvm-ffi": (FFI,)}
_OPTIONAL = (CUDA,)
_CPU, _GPU, _POOLED_ALLOCATOR = 1, 2, 2  # the first two: DLPack's kDLCPU and kDLCUDA
CUDART = "libcudart.so.13"
"""What TVM's CUDA runtime is linked against: CUDA 13's, whatever the toolkit that compiled the kernels."""
_CUDA_FOLDERS = (Path(), Path("/usr/local/cuda/lib64"), Path("/usr/local/cuda/lib"))
_TIMEOUT_S = 600


def libraries(arch: str) -> dict[str, Path]:
    """TVM's runtime libraries for an architecture, by file name.

    For another architecture than this machine's, pip downloads the wheels once.

    Raises:
        DeviceError: there are no wheels for the architecture, or pip cannot fetch them.
    """
    if arch not in MANYLINUX:
        raise DeviceError(
            f"the package apache-tvm has no wheel for {arch}, so that TVM's runtime is missing for it"
        )
    found: dict[str, Path] = {}
    for package, names in _LIBRARIES.items():
        folder = package_libraries(package) if arch == architecture() else _unpacked(package, arch)
        for name in names:
            if (folder / name).is_file():
                found[name] = folder / name
            elif name not in _OPTIONAL:
                raise DeviceError(
                    f"{package} {PINS[package]} for {arch} holds no {name}; run 'pip install --force-reinstall "
                    f"{package}=={PINS[package]}', or remove {cache_folder()} and try again"
                )
    return found


def licences() -> bytes:
    """The licence and the notice of every package that the libraries come from, as one text."""
    parts = []
    for package in _LIBRARIES:
        known = importlib.metadata.files(package) or []
        for name in ("LICENSE", "NOTICE"):
            path = next((file for file in known if file.name == name), None)
            if path is not None:
                text = Path(str(path.locate())).read_text(encoding="utf-8")
                parts.append(f"{package} {PINS[package]}: {name}\n\n{text.strip()}\n")
    return "\n\n".join(parts).encode()


def ffi_version() -> tuple[int, int, int]:
    """What the installed libtvm_ffi says of itself, which differs from the version of its package.

    Raises:
        ToolchainError: the package is missing.
    """
    found = (ctypes.c_uint32 * 3)()
    ctypes.CDLL(str(package_libraries("apache-tvm-ffi") / FFI)).TVMFFIGetVersion(found)
    return found[0], found[1], found[2]


def package_libraries(package: str) -> Path:
    """The folder of an installed package's libraries, without importing it.

    Raises:
        ToolchainError: it is not installed.
    """
    module = {"apache-tvm": "tvm", "apache-tvm-ffi": "tvm_ffi"}[package]
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise ToolchainError(f"{package} is not installed; run 'pip install {package}=={PINS[package]}'")
    return Path(next(iter(spec.submodule_search_locations))) / "lib"


def cache_folder() -> Path:
    """Where downloaded libraries and assembled runners are kept."""
    return Path(platformdirs.user_cache_dir("edgetune", appauthor=False)) / "runners"


@functools.cache
def engine() -> Any:
    """The ``tvm_ffi`` package, with TVM's runtime libraries loaded into the process.

    Raises:
        ToolchainError: the packages are missing, or another copy of TVM is in the process.
    """
    suffix = {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")
    prefix = "" if sys.platform == "win32" else "lib"
    try:
        folder = package_libraries("apache-tvm")
    except ToolchainError:
        folder = Path()
    library = folder / f"{prefix}tvm_runtime{suffix}"
    if not library.is_file():
        raise ToolchainError(
            "TVM's runtime library was not found in the package 'apache-tvm'; install it again with "
            "'pip install --force-reinstall apache-tvm apache-tvm-ffi' at edgetune's versions"
        )
    refuse_another_tvm()
    import tvm_ffi

    # The process keeps it for good; global, because model libraries look up its symbols.
    ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
    extra = library.with_name(f"{prefix}tvm_runtime_extra{suffix}")
    if extra.is_file():
        ctypes.CDLL(str(extra), ctypes.RTLD_GLOBAL)
    return tvm_ffi


@functools.cache
def load_gpu_runtime() -> None:
    """Load TVM's driver of NVIDIA's GPUs into the process.

    Raises:
        ToolchainError: it, or what it needs of CUDA's own libraries, is missing.
    """
    engine()
    for folder in _CUDA_FOLDERS:
        with contextlib.suppress(OSError):
            ctypes.CDLL(str(folder / CUDART), ctypes.RTLD_GLOBAL)
            break
    try:
        ctypes.CDLL(str(package_libraries("apache-tvm") / CUDA), ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise ToolchainError(
            f"TVM's CUDA runtime cannot be loaded ({error}); it takes NVIDIA's driver and {CUDART} of CUDA "
            f"{CUDART[-2:]}: install that toolkit or its runtime, and name its lib64 folder in LD_LIBRARY_PATH"
        ) from error


def start_machine(library: Any, kind: str = "llvm") -> Any:
    """A fresh virtual machine, on this or another machine, over a library that has been loaded there.

    Args:
        library: the loaded library.
        kind: of its target: ``llvm`` for the CPU, ``cuda`` for the first GPU.
    """
    machine = library["vm_load_executable"]()
    gpu = (_GPU, 0, _POOLED_ALLOCATOR) if kind == "cuda" else ()
    # The CPU comes last, and is always there: sizes are computed on it.
    machine["vm_initialization"](*gpu, _CPU, 0, _POOLED_ALLOCATOR)
    return machine


def _unpacked(package: str, arch: str) -> Path:
    """The folder of a package's libraries for another architecture, fetched by pip when first needed."""
    folder = cache_folder() / f"{package}-{PINS[package]}-{arch}-libraries"
    if folder.is_dir():
        return folder
    with filling(folder) as made, tempfile.TemporaryDirectory(prefix="edgetune-") as work:
        wheel = _download(package, arch, Path(work))
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.namelist():
                name = member.rpartition("/")[2]
                if name in _LIBRARIES[package]:
                    with archive.open(member) as data, open(made / name, "wb") as file:
                        shutil.copyfileobj(data, file)
    return folder


def _download(package: str, arch: str, folder: Path) -> Path:
    platforms = [word for name in MANYLINUX[arch] for word in ("--platform", name)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += [*platforms, "--dest", str(folder), f"{package}=={PINS[package]}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    except (OSError, subprocess.TimeoutExpired) as error:
        said = str(error)
    wheel = next(folder.glob("*.whl"), None)
    if wheel is None:
        raise DeviceError(
            f"TVM's runtime libraries for {arch} cannot be fetched: {said}. What another architecture runs "
            f"needs its wheel once; try `{' '.join(['pip', *command[3:5], *platforms, command[-1]])}`."
        )
    return wheel
