"""Links kernels into shared libraries, and runs the tools that this takes.

No compiler need be installed: the ``ziglang`` package carries lld for every ELF target, used here
as a bare linker (``zig ld.lld``, a few milliseconds; ``zig cc`` would first build a libc).
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgetune.cpu import architecture
from edgetune.errors import OutputError, ToolchainError
from edgetune.ndk import find_ndk

if TYPE_CHECKING:
    from edgetune.targets import Target

_TIMEOUT_S = 240
_CHECK_OBJECTS = "check that the objects are whole and compiled for the target's architecture"
_EMULATION = {
    "x86_64": "elf_x86_64",
    "aarch64": "aarch64linux",
    "arm": "armelf_linux_eabi",
    "riscv64": "elf64lriscv",
}
# The number of the machine in ELF, and the flags of its usual ABI: RISC-V with C and lp64d, ARM EABI 5
# with hard floats. From the psABI documents; linkers compare the flags of all inputs.
_ELF_MACHINE = {"x86_64": (62, 0), "aarch64": (183, 0), "arm": (40, 0x05000400), "riscv64": (243, 5)}
GNU_PREFIX = {
    "x86_64": "x86_64-linux-gnu-",
    "aarch64": "aarch64-linux-gnu-",
    "arm": "arm-linux-gnueabihf-",
    "riscv64": "riscv64-linux-gnu-",
}
ANDROID_PAGE_BYTES = 16384
"""Memory pages that libraries for Android 15 and later must be laid out for ("Support 16 KB page sizes")."""
_COMMON_OPTIONS = ("--hash-style=gnu", "-z", "noexecstack", "-z", "now")


@dataclass(frozen=True)
class Linker:
    """A linker's command line, without its operands.

    Attributes:
        command: what to start, ``(zig, "ld.lld")`` for example.
        driver: it is a compiler driver (gcc): linker options need ``-Wl,``.
    """

    command: tuple[str, ...]
    driver: bool = False

    def options(self, *options: str) -> list[str]:
        """Return linker options in the form this command takes."""
        return [f"-Wl,{option}" for option in options] if self.driver else list(options)


def link_shared(
    objects: Sequence[bytes | Path],
    output: Path,
    mtriple: str,
    *,
    page_size_bytes: int | None = None,
    exports: str | None = None,
    aliases: Mapping[str, str] | None = None,
    beside: Sequence[str] = (),
) -> None:
    """Link relocatable objects into a shared library, replacing ``output`` in one step.

    The library names the C library's libm among its needs, so that ``expf`` and the like
    resolve wherever it is loaded. Other undefined symbols are left to the loading process. For Android, the NDK
    serves where the environment names one (``ndk.py``).

    Args:
        objects: ELF ``.o`` files, as paths or as their bytes.
        output: the ``.so`` to write; its folder must exist.
        mtriple: LLVM triple that the objects were compiled for.
        page_size_bytes: largest memory page of the devices to run on (``-z max-page-size``);
            by default the linker's choice for the architecture, and 16 KiB for Android, which asks for it.
        exports: pattern of the symbols that the library shows (``edgetune_*``); all others are hidden, what
            nothing refers to is left out, and so are debugging information and names. By default
            everything is kept and shown.
        aliases: symbol that the objects want -> the one of theirs that it stands for. What the library refers to
            is then its own, whatever the process has under the same name.
        beside: names of libraries that it is loaded with, from its own folder.

    Raises:
        ToolchainError: no linker was found, or it refused the objects.
        OutputError: ``output`` cannot be written.
    """
    if not objects:
        raise ValueError("link_shared needs at least one object")
    arch = _known_architecture(mtriple)
    ndk = find_ndk(arch) if "android" in mtriple else None
    linker = find_linker(arch) if ndk is None else Linker((str(ndk.linker),))
    needed = _needed(mtriple, arch, exports is not None)
    # What the NDK's libraries lack, no Android has; only a library that stands alone needs nothing else.
    complete = ["-z", "defs"] if ndk is not None and exports is not None and not beside else []
    try:
        with tempfile.TemporaryDirectory(prefix=".edgetune-link-", dir=output.parent) as folder:
            work = Path(folder)
            linked = work / "linked.so"
            if page_size_bytes is None and "android" in mtriple:
                page_size_bytes = ANDROID_PAGE_BYTES
            page = () if page_size_bytes is None else ("-z", f"max-page-size={page_size_bytes}")
            command = [
                *_base_command(linker, arch),
                *linker.options(*_COMMON_OPTIONS, *page, *complete, *_hiding(exports, work)),
                *linker.options(*(["-Bsymbolic"] if aliases or exports else [])),
                *linker.options(*(f"--defsym={name}={meant}" for name, meant in (aliases or {}).items())),
                *linker.options(*(["-rpath", "$ORIGIN"] if beside else []), "--no-as-needed"),
                *_as_files(objects, work),
                *_stubs(linker, arch, beside if ndk else (*beside, *needed), work),
                *(str(ndk.libraries / name) for name in needed if ndk is not None),
                "-o",
                str(linked),
            ]
            run_tool(command, "linking", output, _CHECK_OBJECTS)
            os.replace(linked, output)
    except OSError as error:
        raise _cannot_write(output, error.strerror or str(error)) from error


def link_relocatable(objects: Sequence[bytes | Path], output: Path, mtriple: str) -> None:
    """Link relocatable objects into one, without debugging information, for a static library.

    Raises:
        ToolchainError: no linker was found, or it refused the objects.
    """
    arch = _known_architecture(mtriple)
    linker = find_linker(arch)
    with tempfile.TemporaryDirectory(prefix=".edgetune-link-", dir=output.parent) as folder:
        base = [part for part in _base_command(linker, arch) if part != "-shared"]
        command = [*base, "-r", *linker.options("--strip-debug")]
        command += [*_as_files(objects, Path(folder)), "-o", str(output)]
        run_tool(command, "linking", output, _CHECK_OBJECTS)


def link_shared_fcompile(
    target: Target, link: Callable[[Sequence[Path], Path], None] | None = None
) -> Callable[..., None]:
    """Return a function to pass as ``fcompile`` to TVM's ``export_library``.

    It links the exported objects, with ``link`` or else :func:`link_shared`; a module of C sources needs a
    compiler and is refused with a ToolchainError.
    """

    def plainly(objects: Sequence[Path], output: Path) -> None:
        link_shared(objects, output, target.mtriple, page_size_bytes=target.toolchain.page_size_bytes)

    def fcompile(file_name: str, files: Sequence[str], **_: object) -> None:
        objects = [Path(file) for file in files]
        foreign = [path.name for path in objects if path.suffix != ".o"]
        if foreign:
            raise ToolchainError(
                f"cannot link {', '.join(foreign)} for target {target.name}: only object files can be linked "
                "without a compiler; compile the module for a target of kind llvm or cuda"
            )
        (link or plainly)(objects, Path(file_name))

    # TVM reads these attributes: the file format to export, and the triple of packed imports.
    fcompile.object_format = "o"  # type: ignore[attr-defined]
    fcompile.get_target_triple = lambda: target.mtriple  # type: ignore[attr-defined]
    return fcompile


@functools.cache
def find_linker(arch: str) -> Linker:
    """Return the linker for one of ``cpu.ARCHITECTURES``.

    In order: zig's lld, an lld on PATH, the architecture's GNU ld, its gcc.

    Raises:
        ToolchainError: there is none.
    """
    found = zig()
    if found is not None:
        return Linker((str(found), "ld.lld"))
    prefixes = [GNU_PREFIX[arch]]
    if arch == architecture():
        prefixes.append("")
    candidates = [("ld.lld", False)]
    candidates += [(f"{prefix}ld", False) for prefix in prefixes]
    candidates += [(f"{prefix}gcc", True) for prefix in prefixes]
    for name, driver in candidates:
        path = shutil.which(name)
        if path is not None:
            return Linker((path,), driver)
    raise ToolchainError(
        f"no linker for {arch} was found: the package ziglang is missing, and PATH has none of "
        f"{', '.join(name for name, _ in candidates)}; run 'pip install ziglang'"
    )


def _known_architecture(mtriple: str) -> str:
    arch = architecture(mtriple.split("-")[0])
    if arch not in _EMULATION:
        raise ToolchainError(
            f"cannot link for {mtriple}: edgetune links ELF libraries for {', '.join(_EMULATION)}; "
            "use a target with one of these architectures"
        )
    return arch


def _needed(mtriple: str, arch: str, standalone: bool) -> tuple[str, ...]:
    """Return the sonames that a library for this triple must load with it.

    glibc numbers its libraries, Android's bionic and musl do not; before 2.34 it keeps threads in one of their
    own. On 32-bit ARM, functions refer to unwinding routines of libgcc (``__aeabi_unwind_cpp_pr0``).
    """
    if any(libc in mtriple for libc in ("android", "musl")):
        return ("libm.so", "libc.so") if standalone else ("libm.so",)
    own = ("libpthread.so.0", "libc.so.6") if standalone else ()
    return ("libm.so.6", *own, *(("libgcc_s.so.1",) if arch == "arm" else ()))


def _hiding(exports: str | None, folder: Path) -> list[str]:
    """Linker options that show the symbols of a pattern only, and keep nothing that is not needed."""
    if exports is None:
        return []
    script = folder / "exports.map"
    script.write_text(f"{{ global: {exports}; local: *; }};\n", encoding="utf-8")
    return ["--version-script", str(script), "--gc-sections", "--strip-all", "-z", "relro"]


def zig() -> Path | None:
    """The executable of the ``ziglang`` package, found without importing it; None where it is missing."""
    try:
        spec = importlib.util.find_spec("ziglang")
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / ("zig.exe" if os.name == "nt" else "zig")
    return path if os.access(path, os.X_OK) else None


def _base_command(linker: Linker, arch: str) -> list[str]:
    if linker.driver:
        return [*linker.command, "-shared", "-nostdlib"]
    threads = ["--threads=1"] if "lld" in linker.command[-1] else []
    return [*linker.command, "-shared", "-m", _EMULATION[arch], *threads]


def _as_files(objects: Sequence[bytes | Path], folder: Path) -> list[str]:
    files = []
    for index, item in enumerate(objects):
        if isinstance(item, bytes):
            path = folder / f"{index}.o"
            path.write_bytes(item)
            files.append(str(path))
        else:
            files.append(str(item))
    return files


def _stubs(linker: Linker, arch: str, sonames: Sequence[str], folder: Path) -> list[str]:
    files = []
    for soname in sonames:
        path = folder / soname
        path.write_bytes(_stub(linker, arch, soname))
        files.append(str(path))
    return files


@functools.cache
def _stub(linker: Linker, arch: str, soname: str) -> bytes:
    """Make an empty shared library that carries a soname, and nothing else.

    Linking against it records the need; the device's loader then finds the real functions,
    so neither a sysroot nor a list of libm's functions is wanted here. Kept as bytes, since
    forked workers must not share a folder that one of them removes.
    """
    with tempfile.TemporaryDirectory(prefix="edgetune-stub-") as folder:
        source = Path(folder, "empty.o")
        source.write_bytes(_empty_object(arch))
        stub = Path(folder, soname)
        command = [*_base_command(linker, arch), *linker.options("-soname", soname), str(source)]
        run_tool([*command, "-o", str(stub)], "linking", stub, _CHECK_OBJECTS)
        return stub.read_bytes()


def _empty_object(arch: str) -> bytes:
    """Return an ELF object without content, the smallest input that every linker accepts.

    A header, the name ``.shstrtab``, and two section headers: the null one and that of the name
    (System V ABI, chapter 4).
    """
    machine, flags = _ELF_MACHINE[arch]
    wide = arch != "arm"
    # e_type ET_REL, e_machine, e_version, e_entry, e_phoff, e_shoff, e_flags, and seven halves.
    header = struct.Struct("<16sHHIQQQIHHHHHH" if wide else "<16sHHIIIIIHHHHHH")
    section = struct.Struct("<IIQQQQIIQQ" if wide else "<IIIIIIIIII")
    names = b"\0.shstrtab\0"
    padded = names.ljust(-(-len(names) // 8) * 8, b"\0")
    identity = b"\x7fELF" + bytes([2 if wide else 1, 1, 1])
    at = header.size + len(padded)
    sizes = (header.size, 0, 0, section.size, 2, 1)
    # SHT_STRTAB is 3.
    strings = section.pack(1, 3, 0, 0, header.size, len(names), 0, 0, 1, 0)
    return (
        header.pack(identity, 1, machine, 1, 0, 0, at, flags, *sizes) + padded + bytes(section.size) + strings
    )


def run_tool(
    command: Sequence[str],
    doing: str,
    output: Path,
    advice: str,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run a linker, a compiler or the like.

    Args:
        command: the program and its arguments.
        doing: what it does, as ``linking``. output: the file that it makes.
        advice: what to do where the tool refuses its input.
        environment: of the process; this one's by default.

    Raises:
        ToolchainError: it cannot be started, failed, or did not end in time.
        OutputError: the disk is full.
    """
    what = f"{doing} {output.name}"
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ToolchainError(
            f"{what} did not end within {_TIMEOUT_S} s; try again when the machine is less busy"
        ) from error
    except OSError as error:
        raise ToolchainError(
            f"cannot start {command[0]}: {error.strerror}; run 'pip install --force-reinstall ziglang'"
        ) from error
    if done.returncode == 0:
        return
    message = (done.stderr or done.stdout).strip()
    if "No space left on device" in message or done.returncode == -7:  # SIGBUS: mmap, full disk
        raise _cannot_write(output, "No space left on device")
    first = "; ".join(message.splitlines()[:5]) or f"exit status {done.returncode}"
    raise ToolchainError(f"{what} with {Path(command[0]).name} failed: {first}; {advice}")


def _cannot_write(output: Path, reason: str) -> OutputError:
    return OutputError(
        f"cannot write {output}: {reason}; choose a folder that exists, is writable and has space"
    )
