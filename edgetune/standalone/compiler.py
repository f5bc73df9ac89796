"""Compiles C for a target: with the clang inside the ``ziglang`` package, or with a system compiler.

Objects only, and with headers of the compiler itself only, so that no C library need be built or
installed for the target.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from edgetune.cpu import architecture
from edgetune.errors import ToolchainError
from edgetune.toolchain import GNU_PREFIX, run_tool, zig
from edgetune.versions import versions

SOURCES = Path(__file__).parent / "c"
RUNTIME = ("error.c", "cpu.c", "pool.c", "runtime.c")

_FLAGS = (
    *("-std=c11", "-O2", "-g0", "-fPIC", "-fvisibility=hidden", "-ffunction-sections", "-fdata-sections"),
    *("-fno-stack-protector", "-fno-asynchronous-unwind-tables", "-fno-ident", "-Wall", "-Wextra", "-Werror"),
)
# The C library named here lends its calling convention, the same in all of them, and nothing else.
# Out-of-line atomics would be functions of a compiler's library.
_ARCH_FLAGS = {"aarch64": ("-mno-outline-atomics",)}
_ZIG_TARGET = {
    "x86_64": "x86_64-linux-musl",
    "aarch64": "aarch64-linux-musl",
    "arm": "arm-linux-musleabihf",
    "riscv64": "riscv64-linux-musl",
}


@functools.cache
def find_compiler(arch: str) -> tuple[str, ...]:
    """The command of a C compiler for one of ``cpu.ARCHITECTURES``.

    Raises:
        ToolchainError: there is none.
    """
    found = zig()
    if found is not None:
        return (str(found), "cc", "-target", _ZIG_TARGET[arch], "-nostdlibinc")
    names = [f"{GNU_PREFIX[arch]}gcc", *(("cc", "gcc", "clang") if arch == architecture() else ())]
    for name in names:
        path = shutil.which(name)
        if path is not None:
            return (path,)
    raise ToolchainError(
        f"no C compiler for {arch} was found: the package ziglang is missing, and PATH has none of "
        f"{', '.join(names)}; run 'pip install ziglang'"
    )


def archiver(arch: str) -> tuple[str, ...]:
    """The command of ``ar``, which packs static libraries, for one of ``cpu.ARCHITECTURES``.

    Raises:
        ToolchainError: there is none.
    """
    found = zig()
    if found is not None:
        return (str(found), "ar")
    names = [f"{GNU_PREFIX[arch]}ar", "llvm-ar", "ar"]
    for name in names:
        path = shutil.which(name)
        if path is not None:
            return (path,)
    raise ToolchainError(
        f"no ar was found: the package ziglang is missing, and PATH has none of {', '.join(names)}; "
        "run 'pip install ziglang'"
    )


def compile_object(
    source: Path,
    output: Path,
    arch: str,
    *,
    defines: Mapping[str, str] | None = None,
    flags: Sequence[str] = (),
) -> None:
    """Compile one C file into a relocatable object that exports what its declarations say.

    Raises:
        ToolchainError: there is no compiler, or it refused the source.
        OutputError: the disk is full.
    """
    options = [f"-D{name}={value}" if value else f"-D{name}" for name, value in (defines or {}).items()]
    options += [*_FLAGS, *_ARCH_FLAGS.get(arch, ()), *flags]
    command = [*find_compiler(arch), *options, f"-I{SOURCES}", "-c", str(source), "-o", str(output)]
    with tempfile.TemporaryDirectory(prefix="edgetune-cc-") as cache:
        # zig keeps what it compiles for good: nothing of ours is compiled twice.
        environment = os.environ | {"ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache}
        run_tool(command, "compiling", output, "report the model", environment)


def runtime_objects(arch: str, sources: Sequence[str] = RUNTIME) -> tuple[bytes, ...]:
    """Sources of ``c/`` as objects for an architecture, from the user's cache where they are there already.

    Raises:
        ToolchainError: they cannot be compiled.
    """
    folder = _cache_folder() / _runtime_key(arch)
    version = versions()["edgetune"]
    objects = []
    for source in sources:
        kept = folder / f"{Path(source).stem}.o"
        try:
            objects.append(kept.read_bytes())
            continue
        except OSError:
            pass
        with tempfile.TemporaryDirectory(prefix="edgetune-runtime-") as work:
            output = Path(work, kept.name)
            compile_object(SOURCES / source, output, arch, defines={"EDGETUNE_VERSION": f'"{version}"'})
            objects.append(output.read_bytes())
        _keep(kept, objects[-1])
    return tuple(objects)


def _runtime_key(arch: str) -> str:
    """Changes with everything that goes into the objects: sources, flags, compiler."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        if path.suffix in (".c", ".h"):
            digest.update(path.read_bytes())
    command = find_compiler(arch)
    status = Path(command[0]).stat()
    known = (arch, command, status.st_size, status.st_mtime_ns, _FLAGS, versions()["edgetune"])
    digest.update(repr(known).encode())
    return f"{arch}-{digest.hexdigest()[:16]}"


def _cache_folder() -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("edgetune", appauthor=False) / "runtime"


def _keep(path: Path, data: bytes) -> None:
    """Put a compiled object into the cache, in one step; without it, it is compiled again next time."""
    fresh = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_bytes(data)
        os.replace(fresh, path)
    except OSError:
        fresh.unlink(missing_ok=True)
