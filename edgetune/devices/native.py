"""Assembles the native runner: a folder that runs on a device of one architecture as it is.

It holds ``rpc/runner.c`` compiled, TVM's runtime libraries from the pinned wheels of that architecture, and,
where this machine has them, a loader, a C library and a libstdc++, so that the device needs none. Where there are
no wheels (armv7, riscv64), ``rpc/server.c`` is compiled in, in place of TVM's libraries. The folder is named by the
hash of all that it is made of, and kept in the user's cache.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgetune.atomic import filling
from edgetune.cpu import architecture
from edgetune.errors import DeviceError, ToolchainError
from edgetune.resources import data_path
from edgetune.toolchain import GNU_PREFIX, zig
from edgetune.tvm_runtime import GLIBC, RUNTIME, cache_folder, package_libraries
from edgetune.tvm_runtime import libraries as tvm_libraries

RUNNER = "runner"
WITHOUT_TVM = ("arm", "riscv64")
"""Architectures of devices that TVM has no wheel for: sessions there know kernels and standalone libraries only."""
LOADERS = {
    "x86_64": "ld-linux-x86-64.so.2",
    "aarch64": "ld-linux-aarch64.so.1",
    "arm": "ld-linux-armhf.so.3",
    "riscv64": "ld-linux-riscv64-lp64d.so.1",
}
_LIBC_ONLY = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libgcc_s.so.1")
C_LIBRARY = (*_LIBC_ONLY, "libstdc++.so.6")
_OWN_RPC = ("-DEDGETUNE_OWN_RPC", "-D_FILE_OFFSET_BITS=64", "-rdynamic")
_STANDALONE = Path(__file__).parents[1] / "standalone" / "c"
_DEBIAN = {"x86_64": "amd64", "aarch64": "arm64", "arm": "armhf", "riscv64": "riscv64"}
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
    if arch not in LOADERS:
        raise DeviceError(
            f"There is no native runner for {arch}: edgetune makes code for {', '.join(LOADERS)} only. Use a device "
            "of one of these."
        )
    libc = {} if own_libc is False else find_libc(arch)
    if own_libc and not libc:
        raise ToolchainError(missing_libc(arch))
    libraries = {**({} if arch in WITHOUT_TVM else tvm_libraries(arch)), **libc}
    sources = runner_sources(arch)
    digest = _digest(
        " ".join((arch, *_OWN_RPC)), {**libraries, **{source.name: source for source in sources}}
    )
    folder = cache_folder() / f"{arch}-{digest}"
    if not folder.is_dir():
        with filling(folder) as made:
            for name, path in libraries.items():
                shutil.copyfile(path, made / name)
            compile_runner(sources, made / RUNNER, arch)
            for path in made.iterdir():
                path.chmod(0o755)
    return RunnerFolder(folder, digest, LOADERS[arch] if libc else "")


def missing_libc(arch: str) -> str:
    """Say how to get a C library for an architecture."""
    names = ("libc6", "libgcc-s1") if arch in WITHOUT_TVM else ("libc6", "libstdc++6")
    packages = " ".join(f"{package}-{_DEBIAN[arch]}-cross" for package in names)
    return (
        f"the device has no glibc {GLIBC} or newer, and this machine has none for {arch} to send along; run "
        f"'apt-get install {packages}' here (on Debian and Ubuntu), then try again"
    )


def find_libc(arch: str) -> dict[str, Path]:
    """Return the loader, the C library and libstdc++ of an architecture by name; nothing if one is missing.

    For this machine's own, its loader says where they are; for others Debian's cross packages and multiarch
    folders are looked at.
    """
    names = (LOADERS[arch], *(_LIBC_ONLY if arch in WITHOUT_TVM else C_LIBRARY))
    if arch == architecture():
        found = _own_libc(arch)
    else:
        triple = GNU_PREFIX[arch].removesuffix("-")
        folders = [Path(f"/usr/{triple}/lib"), Path(f"/usr/lib/{triple}"), Path(f"/lib/{triple}")]
        found = {}
        for name in names:
            path = next((folder / name for folder in folders if (folder / name).is_file()), None)
            if path is not None:
                found[name] = path
    return {name: found[name] for name in names} if set(names) <= set(found) else {}


def runner_sources(arch: str) -> list[Path]:
    """Return the C files of the runner for an architecture."""
    names = ("runner.c", *(("server.c",) if arch in WITHOUT_TVM else ()))
    threads = [_STANDALONE / name for name in ("pool.c", "error.c")] if arch in WITHOUT_TVM else []
    return [*(data_path("rpc") / name for name in names), *threads]


def compile_runner(sources: Sequence[Path], output: Path, arch: str) -> None:
    """Compile the runner with zig, else with the distribution's compiler for the architecture.

    Raises:
        ToolchainError: neither is there, or the last one failed.
    """
    compilers = []
    found = zig()
    if found is not None:
        compilers.append([str(found), "cc", "-target", f"{GNU_PREFIX[arch].removesuffix('-')}.{GLIBC}"])
    for name in (f"{GNU_PREFIX[arch]}gcc", *(["cc"] if arch == architecture() else [])):
        if shutil.which(name):
            compilers.append([name])
    if arch in WITHOUT_TVM:
        # Kernels call functions of the program itself.
        options = [*_OWN_RPC, f"-I{_STANDALONE}"]
    else:
        options = [f"-I{_ffi_include()}"]
    operands = ["-o", str(output), *map(str, sources), "-ldl", "-lpthread"]
    said = "no compiler was found"
    for compiler in compilers:
        command = [*compiler, "-O2", "-s", *options, *operands]
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
        f"'apt-get install gcc-{GNU_PREFIX[arch].removesuffix('-').replace('_', '-')}'"
    )


def _own_libc(arch: str) -> dict[str, Path]:
    """Ask this machine's loader which libraries TVM's runtime would get."""
    loader = next((p for p in (Path("/lib64"), Path("/lib")) if (p / LOADERS[arch]).exists()), None)
    if loader is None:
        return {}
    path = loader / LOADERS[arch]
    library = package_libraries("apache-tvm") / RUNTIME
    done = subprocess.run(
        [str(path), "--list", str(library)],
        capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "LD_LIBRARY_PATH": str(package_libraries("apache-tvm-ffi"))},
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


def _ffi_include() -> Path:
    return package_libraries("apache-tvm-ffi").parent / "include"


def _digest(kind: str, files: dict[str, Path]) -> str:
    digest = hashlib.sha256(kind.encode())
    for name, path in sorted(files.items()):
        digest.update(name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]
