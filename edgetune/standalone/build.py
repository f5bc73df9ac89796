"""A program and its kernels -> a shared and a static library, with their headers."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from edgetune.cpu import architecture
from edgetune.errors import ToolchainError
from edgetune.records import CompiledModel
from edgetune.standalone.compiler import SOURCES, archiver, compile_object, runtime_objects
from edgetune.standalone.emit import Identity, PackedWeights, emit_header, emit_program, program_symbol
from edgetune.standalone.program import Program
from edgetune.standalone.weights import checksum, pack
from edgetune.toolchain import link_relocatable, link_shared, run_tool

if TYPE_CHECKING:
    from edgetune.targets import Target

HEADERS = ("edgetune.h", "edgetune_library.h", "edgetune.hpp")
"""The C API, what loads libraries while an app runs, and the C++ API."""
MODEL_HEADER = "model.h"
ARCHIVE = "libmodel.a"
EXPORTS = "edgetune_*"
"""What a library shows of itself; all else is hidden."""
PROGRAM = "et_private_program"
"""What ``c/shared.c`` calls the program of the library that it is linked into."""


_WIDE: tuple[tuple[frozenset[str], tuple[str, ...]], ...] = (
    (frozenset({"avx512f"}), ("-mavx512f",)),
    (frozenset({"avx", "fma"}), ("-mavx", "-mfma")),
)


@dataclass(frozen=True)
class Libraries:
    """A model as libraries, in bytes, and the headers that go with them."""

    shared: bytes = field(repr=False)
    static: bytes = field(repr=False)
    headers: Mapping[str, bytes] = field(repr=False)


def build_standalone(program: Program, name: str, target: Target, *, embed: bool = False) -> CompiledModel:
    """Build the libraries of a program.

    Args:
        program: what to build.
        name: the model's name.
        target: what the kernels were compiled for.
        embed: put the weights into the libraries instead of a file beside them.

    Raises:
        ToolchainError: there is no compiler or linker, or it failed.
        OutputError: the temporary folder is full.
    """
    libraries = build_libraries(program, name, target, embed=embed)
    return CompiledModel(
        library=libraries.shared,
        weights=() if embed else program.weights,
        inputs=program.inputs,
        outputs=program.outputs,
        standalone=True,
        files={**libraries.headers, ARCHIVE: libraries.static},
    )


def build_libraries(program: Program, name: str, target: Target, *, embed: bool) -> Libraries:
    """The libraries and headers of :func:`build_standalone`."""
    data, offsets = pack(program.weights)
    # Without weights there is no file to give, and nothing to embed.
    embedded = embed and bool(data)
    packed = PackedWeights(offsets, len(data), checksum(data), embedded)
    identity = Identity(
        name, f"{target.mtriple} {target.mcpu}", tuple(target.required_features()), target.threads
    )
    with tempfile.TemporaryDirectory(prefix="edgetune-standalone-") as folder:
        work = Path(folder)
        source = work / "program.c"
        source.write_text(emit_program(program, identity, packed), encoding="utf-8")
        defines = {}
        if embedded:
            (work / "weights.bin").write_bytes(data)
            defines["EDGETUNE_WEIGHTS"] = f'"{work / "weights.bin"}"'
        compile_object(source, work / "program.o", target.arch, defines=defines)
        objects: list[bytes | Path] = [work / "program.o", *([program.kernels] if program.kernels else [])]
        runtime = runtime_objects(target.arch)
        headers = {header: (SOURCES / header).read_bytes() for header in HEADERS}
        headers[MODEL_HEADER] = emit_header(name).encode()
        return Libraries(
            _shared([*objects, *runtime], name, target, work),
            _static(objects, runtime, target, work),
            headers,
        )


def _shared(objects: Sequence[bytes | Path], name: str, target: Target, work: Path) -> bytes:
    output = work / "model.so"
    link_shared(
        [*objects, *runtime_objects(target.arch, ["shared.c"])],
        output,
        target.mtriple,
        page_size_bytes=target.toolchain.page_size_bytes,
        exports=EXPORTS,
        aliases={PROGRAM: program_symbol(name)},
    )
    return output.read_bytes()


def _static(objects: Sequence[bytes | Path], runtime: Sequence[bytes], target: Target, work: Path) -> bytes:
    """The model as one object, and the runtime's: of several models in an app, the linker takes one runtime."""
    members = [work / "model.o", *(work / f"edgetune{index}.o" for index in range(len(runtime)))]
    link_relocatable(objects, members[0], target.mtriple)
    for path, data in zip(members[1:], runtime, strict=True):
        path.write_bytes(data)
    output = work / ARCHIVE
    # D: no times and owners, so that the same input gives the same bytes.
    command = [*archiver(target.arch), "rcsD", str(output), *map(str, members)]
    run_tool(command, "packing", output, "report the model")
    if not output.is_file():
        raise ToolchainError(f"{ARCHIVE} was not written; check that the temporary folder has space")
    return output.read_bytes()


def build_adapter(mtriple: str, library: str) -> bytes:
    """A library of TVM's packed functions that runs the standalone ``library`` in its own folder.

    For devices: TVM's RPC loads, calls and times it there.

    Raises:
        ToolchainError: there is no compiler or linker, or it failed.
        OutputError: the temporary folder is full.
    """
    return _functions("adapter.c", mtriple, beside=[library])


def build_observer(mtriple: str) -> bytes:
    """A library of TVM's packed functions that times the instructions of TVM's virtual machine, for devices.

    Raises:
        ToolchainError: there is no compiler or linker, or it failed.
        OutputError: the temporary folder is full.
    """
    return _functions("observer.c", mtriple)


def _functions(source: str, mtriple: str, beside: Sequence[str] = ()) -> bytes:
    """A library of the packed functions in a source of ``c/``."""
    arch = architecture(mtriple.split("-")[0])
    with tempfile.TemporaryDirectory(prefix="edgetune-functions-") as folder:
        output = Path(folder, "functions.so")
        parts = runtime_objects(arch, [source, "error.c"])
        link_shared(parts, output, mtriple, exports="__tvm_ffi_*", beside=beside)
        return output.read_bytes()


def build_limits(mtriple: str, features: Collection[str]) -> bytes:
    """A library of TVM's packed functions that measures what a machine can do at best.

    Args:
        mtriple: of the machine.
        features: of its CPU, LLVM's names; its widest vectors are used where it is one of the x86 kind, and those of
            its architecture's first version elsewhere.

    Raises:
        ToolchainError: there is no compiler or linker, or it failed.
        OutputError: the temporary folder is full.
    """
    arch = architecture(mtriple.split("-")[0])
    wide = next((flags for needed, flags in _WIDE if needed <= set(features)), ())
    with tempfile.TemporaryDirectory(prefix="edgetune-limits-") as folder:
        limits, output = Path(folder, "limits.o"), Path(folder, "limits.so")
        compile_object(SOURCES / "limits.c", limits, arch, flags=wide)
        parts = runtime_objects(arch, ["error.c", "pool.c"])
        link_shared([limits, *parts], output, mtriple, exports="__tvm_ffi_*")
        return output.read_bytes()
