"""Assembles the native runner: a folder that runs on a device of one architecture as it is.

It holds ``rpc/runner.c`` compiled, TVM's runtime libraries from the pinned wheels of that architecture, and,
where this machine has them, a loader, a C library and a libstdc++, so that the device needs none. The folder
is named by the hash of all that it is made of, and kept in the user's cache.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from edgetune.atomic import filling
from edgetune.cpu import architecture
from edgetune.errors import DeviceError, ToolchainError
from edgetune.resources import data_path
from edgetune.toolchain import zig
from edgetune.versions import PINS

RUNNER = "runner"
_MANYLINUX = {
    "x86_64": ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64"),
    "aarch64": ("manylinux_2_28_aarch64", "manylinux_2_27_aarch64"),
}
LOADERS = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}
C_LIBRARY = (
    "libc.so.6",
    "libm.so.6",
    "libdl.so.2",
    "libpthread.so.0",
    "librt.so.1",
    "libstdc++.so.6",
    "libgcc_s.so.1",
)
_REQUIRED = {"apache-tvm": ("libtvm_runtime.so",), "apache-tvm-ffi": ("libtvm_ffi.so",)}
_OPTIONAL = ("libtvm_runtime_cuda.so",)
GLIBC = "2.28"
"""The oldest glibc that the wheels' libraries run with; the runner is compiled for it too."""
_TIMEOUT_S = 600


@dataclass(frozen=True)
class RunnerFolder:
    """An assembled runner.

    Attributes:
        path: the folder. digest: of its content, what it is called on the device.
        loader: name of the loader in it; empty where the device's own is used.
    """

    path: Path
    digest: str
    loader: str

    def files(self) -> dict[str, Path]:
        """The files by name."""
        return {path.name: path for path in sorted(self.path.iterdir())}

    def command(self, folder: str) -> str:
        """Return the shell words that start it from a folder on the device, without its arguments."""
        program = [f"{folder}/{RUNNER}"]
        if self.loader:
            return shlex.join([f"{folder}/{self.loader}", "--library-path", folder, *program])
        return shlex.join(["env", f"LD_LIBRARY_PATH={folder}", *program])


def assemble(arch: str, own_libc: bool | None = None) -> RunnerFolder:
    """Return the runner's folder for an architecture, made now unless it was before.

    For another architecture than this machine's, pip downloads the wheels once.

    Args:
        arch: one of ``cpu.ARCHITECTURES``.
        own_libc: bring a loader and a C library along; None where this machine has them.

    Raises:
        DeviceError: there are no wheels for the architecture, or pip cannot fetch them.
        ToolchainError: no compiler works, or a C library is wanted and this machine has none for it.
    """
    if arch not in _MANYLINUX:
        raise DeviceError(
            f"There is no native runner for {arch}: the package apache-tvm has no wheel for it. Install edgetune "
            "on the device, if it can be built there, and start `edgetune runner`."
        )
    libc = {} if own_libc is False else find_libc(arch)
    if own_libc and not libc:
        raise ToolchainError(missing_libc(arch))
    libraries = {**runtime_libraries(arch), **libc}
    source = data_path("rpc") / "runner.c"
    digest = _digest(arch, {**libraries, source.name: source})
    folder = _cache() / f"{arch}-{digest}"
    if not folder.is_dir():
        with filling(folder) as made:
            for name, path in libraries.items():
                shutil.copyfile(path, made / name)
            compile_runner(source, made / RUNNER, arch)
            for path in made.iterdir():
                path.chmod(0o755)
    return RunnerFolder(folder, digest, LOADERS[arch] if libc else "")


def missing_libc(arch: str) -> str:
    """Say how to get a C library for an architecture."""
    names = {"x86_64": "amd64", "aarch64": "arm64"}
    packages = " ".join(f"{package}-{names[arch]}-cross" for package in ("libc6", "libstdc++6"))
    return (
        f"the device has no glibc {GLIBC} or newer with libstdc++, and this machine has none for {arch} to send "
        f"along; run 'apt-get install {packages}' here (on Debian and Ubuntu), then try again"
    )


def find_libc(arch: str) -> dict[str, Path]:
    """Return the loader, the C library and libstdc++ of an architecture by name; nothing if one is missing.

    For this machine's own, its loader says where they are; for others Debian's cross packages and multiarch
    folders are looked at.
    """
    names = (LOADERS[arch], *C_LIBRARY)
    if arch == architecture():
        found = _own_libc(arch)
    else:
        triple = f"{arch.replace('_', '-')}-linux-gnu"
        multiarch = f"{arch}-linux-gnu"
        folders = [Path(f"/usr/{triple}/lib"), Path(f"/usr/lib/{multiarch}"), Path(f"/lib/{multiarch}")]
        found = {}
        for name in names:
            path = next((folder / name for folder in folders if (folder / name).is_file()), None)
            if path is not None:
                found[name] = path
    return {name: found[name] for name in names} if set(names) <= set(found) else {}


def runtime_libraries(arch: str) -> dict[str, Path]:
    """Return TVM's runtime libraries for an architecture by file name.

    Raises:
        DeviceError: pip cannot fetch them.
    """
    found: dict[str, Path] = {}
    for package, names in _REQUIRED.items():
        folder = _installed(package) if arch == architecture() else _unpacked(package, arch)
        for name in (*names, *_OPTIONAL):
            if (folder / name).is_file():
                found[name] = folder / name
            elif name in names:
                raise DeviceError(
                    f"{package} {PINS[package]} for {arch} holds no {name}; run 'pip install --force-reinstall "
                    f"{package}=={PINS[package]}', or remove {_cache()} and try again"
                )
    return found


def compile_runner(source: Path, output: Path, arch: str) -> None:
    """Compile the runner with zig, else with the distribution's compiler for the architecture.

    Raises:
        ToolchainError: neither is there, or the last one failed.
    """
    compilers = []
    found = zig()
    if found is not None:
        compilers.append([str(found), "cc", "-target", f"{arch}-linux-gnu.{GLIBC}"])
    for name in (f"{arch.replace('_', '-')}-linux-gnu-gcc", *(["cc"] if arch == architecture() else [])):
        if shutil.which(name):
            compilers.append([name])
    said = "no compiler was found"
    for compiler in compilers:
        command = [*compiler, "-O2", "-s", f"-I{_ffi_include()}", "-o", str(output), str(source), "-ldl"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            said = f"{compiler[0]}: {error}"
            continue
        if done.returncode == 0:
            return
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[0]
    raise ToolchainError(
        f"the runner for {arch} cannot be compiled: {said}; run 'pip install --force-reinstall ziglang', or "
        f"'apt-get install gcc-{arch.replace('_', '-')}-linux-gnu'"
    )


def _own_libc(arch: str) -> dict[str, Path]:
    """Ask this machine's loader which libraries TVM's runtime would get."""
    loader = next((p for p in (Path("/lib64"), Path("/lib")) if (p / LOADERS[arch]).exists()), None)
    if loader is None:
        return {}
    path = loader / LOADERS[arch]
    library = _installed("apache-tvm") / "libtvm_runtime.so"
    done = subprocess.run(
        [str(path), "--list", str(library)],
        capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "LD_LIBRARY_PATH": str(_installed("apache-tvm-ffi"))},
    )  # fmt: skip
    found = {
        name: Path(where)
        for name, where in re.findall(r"^\s*(\S+) => (/\S+)", done.stdout, re.M)
        if name in C_LIBRARY
    }
    found[path.name] = path.resolve()
    # What newer glibcs have inside libc.so.6 is an empty file beside it, which nobody may ask for.
    for name in C_LIBRARY:
        if name not in found and "libc.so.6" in found and (found["libc.so.6"].parent / name).is_file():
            found[name] = found["libc.so.6"].parent / name
    return found


def _installed(package: str) -> Path:
    """The folder of an installed package's libraries, without importing it."""
    module = {"apache-tvm": "tvm", "apache-tvm-ffi": "tvm_ffi"}[package]
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise ToolchainError(f"{package} is not installed; run 'pip install {package}=={PINS[package]}'")
    return Path(next(iter(spec.submodule_search_locations))) / "lib"


def _ffi_include() -> Path:
    return _installed("apache-tvm-ffi").parent / "include"


def _unpacked(package: str, arch: str) -> Path:
    """The folder of a package's libraries for another architecture, fetched by pip when first needed."""
    folder = _cache() / f"{package}-{PINS[package]}-{arch}"
    if folder.is_dir():
        return folder
    with filling(folder) as made, tempfile.TemporaryDirectory(prefix="edgetune-") as work:
        wheel = _download(package, arch, Path(work))
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.namelist():
                name = member.rpartition("/")[2]
                if name in (*_REQUIRED[package], *_OPTIONAL):
                    with archive.open(member) as data, open(made / name, "wb") as file:
                        shutil.copyfileobj(data, file)
    return folder


def _download(package: str, arch: str, folder: Path) -> Path:
    platforms = [word for name in _MANYLINUX[arch] for word in ("--platform", name)]
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
            f"The runtime libraries for {arch} cannot be fetched: {said}. Adding a device of another "
            f"architecture needs its wheel once; try `{' '.join(['pip', *command[3:5], *platforms, command[-1]])}`."
        )
    return wheel


def _digest(arch: str, files: dict[str, Path]) -> str:
    digest = hashlib.sha256(arch.encode())
    for name, path in sorted(files.items()):
        digest.update(name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _cache() -> Path:
    return Path(platformdirs.user_cache_dir("edgetune", appauthor=False)) / "runners"
