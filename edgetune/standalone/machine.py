"""A model for TVM's virtual machine behind the same C API, with the runtime that it needs.

What is linked into its library: the C API, and one program for each combination of sizes whose only step calls the
machine (``c/vm.c``). What goes into its bundle: the headers, and TVM's runtime libraries with their licences.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edgetune import tvm_runtime
from edgetune.dtypes import BFLOAT16, CODES, SMALL_INTEGERS
from edgetune.errors import DeviceError
from edgetune.records import Program as Function
from edgetune.records import TensorSpec
from edgetune.standalone.build import HEADERS, PROGRAM
from edgetune.standalone.compiler import SOURCES, compile_object, runtime_objects
from edgetune.standalone.emit import (
    Identity,
    MachineCall,
    MachineTensor,
    PackedWeights,
    emit_ffi_version,
    emit_machine_call,
    emit_program,
    program_symbol,
    size_bytes,
)
from edgetune.standalone.program import Place, Program, Space, Step
from edgetune.standalone.weights import checksum, pack
from edgetune.toolchain import link_shared

if TYPE_CHECKING:
    from edgetune.targets import Target

RUNTIME = ("error.c", "cpu.c", "vm.c", "runtime.c", "shared.c")
LICENCES = "tvm-licenses.txt"
_EXTRA_FUNCTIONS = b"tvm.contrib."
_DLPACK_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}
_DLPACK_BFLOAT = 4


@dataclass(frozen=True)
class Described:
    """A model for apps: its name; the machine's functions, the one for the largest sizes first; all their weights."""

    name: str
    functions: Sequence[Function]
    weights: Sequence[np.ndarray] = field(repr=False)


class Front:
    """Links a model's library, and makes it one with the C API where the model is described for apps, for a CPU.

    Attributes:
        files: what goes into the bundle beside the library, by name, once it is linked.
        without_runtime: why TVM's runtime libraries are not among them; empty where they are, or were not wanted.
    """

    def __init__(self, target: Target, described: Described | None) -> None:
        self._target = target
        self._described = described
        self.files: dict[str, bytes] = {}
        self.without_runtime = ""

    def link(self, objects: Sequence[Path], output: Path) -> None:
        """Link a model's objects.

        Raises:
            ToolchainError: there is no compiler or linker, or it failed.
            OutputError: the disk is full.
        """
        target, described = self._target, self._described
        page_size_bytes = target.toolchain.page_size_bytes
        libraries = {} if described is None else self._runtime(objects)
        self.files = {name: path.read_bytes() for name, path in libraries.items()}
        if libraries:
            self.files[LICENCES] = tvm_runtime.licences()
        if described is None or not libraries or target.kind != "llvm":
            # No C API for a GPU: it would have to move inputs and outputs.
            link_shared(objects, output, target.mtriple, page_size_bytes=page_size_bytes)
            return
        link_shared(
            [*objects, *_programs(described, target), *runtime_objects(target.arch, RUNTIME)],
            output,
            target.mtriple,
            page_size_bytes=page_size_bytes,
            aliases={PROGRAM: program_symbol(described.name)},
            beside=list(libraries),
        )
        self.files |= {header: (SOURCES / header).read_bytes() for header in HEADERS}

    def _runtime(self, objects: Sequence[Path]) -> dict[str, Path]:
        """TVM's runtime libraries that the objects need; none, with the reason, where there are none."""
        target = self._target
        if "gnu" not in target.mtriple or target.arch not in tvm_runtime.MANYLINUX:
            self.without_runtime = f"there is no package of TVM's runtime for {target.mtriple}"
            return {}
        try:
            found = tvm_runtime.libraries(target.arch)
        except DeviceError as error:
            self.without_runtime = str(error)
            return {}
        wanted = [tvm_runtime.FFI, tvm_runtime.RUNTIME]
        # Functions are called by their names, which stand in the code.
        if any(_EXTRA_FUNCTIONS in path.read_bytes() for path in objects):
            wanted.append(tvm_runtime.EXTRA)
        if target.kind == "cuda":
            wanted.append(tvm_runtime.CUDA)
            if tvm_runtime.CUDA not in found:
                self.without_runtime = f"the package apache-tvm for {target.arch} has no {tvm_runtime.CUDA}"
                return {}
        return {name: found[name] for name in wanted}


def _programs(described: Described, target: Target) -> list[bytes]:
    """An object for each function: its program, which points to the next one."""
    name, functions, weights = described.name, described.functions, described.weights
    data, offsets = pack(weights)
    packed = PackedWeights(offsets, len(data), checksum(data), embedded=False)
    identity = Identity(
        name, f"{target.mtriple} {target.mcpu}", tuple(target.required_features()), target.threads
    )
    symbols = [
        program_symbol(name),
        *(f"{program_symbol(name)}_{index}" for index in range(1, len(functions))),
    ]
    objects = []
    with tempfile.TemporaryDirectory(prefix="edgetune-machine-") as folder:
        source = Path(folder, "program.c")
        for index, function in enumerate(functions):
            program = _program(function, weights, f"et_machine_call{index}")
            following = symbols[index + 1] if index + 1 < len(symbols) else ""
            text = emit_program(program, identity, packed, symbol=symbols[index], following=following)
            arguments = [*function.inputs, *(_spec(weights[at]) for at in function.weights)]
            tensors = [_tensor(spec) for spec in (*arguments, *function.outputs)]
            call = MachineCall(program.steps[0].symbol, function.function, len(arguments), tuple(tensors))
            source.write_text(text + emit_machine_call(call), encoding="utf-8")
            compile_object(source, source.with_suffix(".o"), target.arch)
            objects.append(source.with_suffix(".o").read_bytes())
        source.write_text(emit_ffi_version(tvm_runtime.ffi_version()), encoding="utf-8")
        compile_object(source, source.with_suffix(".o"), target.arch)
        return [*objects, source.with_suffix(".o").read_bytes()]


def _program(function: Function, weights: Sequence[np.ndarray], symbol: str) -> Program:
    """One step on all inputs, weights and outputs of a function."""
    places = [
        *(Place(Space.INPUT, index) for index in range(len(function.inputs))),
        *(Place(Space.WEIGHTS, index) for index in function.weights),
        *(Place(Space.OUTPUT, index) for index in range(len(function.outputs))),
    ]
    inputs, outputs = _held(function.inputs), _held(function.outputs)
    moved = sum(size_bytes(spec) for spec in (*inputs, *outputs))
    moved += sum(weights[index].nbytes for index in function.weights)
    step = Step(function.function, symbol, tuple(range(len(places))), moved)
    return Program(b"", (step,), tuple(places), 0, 0, inputs, outputs, tuple(weights))


def _held(specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """Tensors as the C API has them: bits of bfloat16, codes of narrower floats, bytes for smaller integers."""
    bits = {BFLOAT16: "uint16", **dict.fromkeys(CODES, "uint8"), **SMALL_INTEGERS}
    return tuple(replace(spec, dtype=bits.get(spec.dtype, spec.dtype), varying=()) for spec in specs)


def _tensor(spec: TensorSpec) -> MachineTensor:
    if spec.dtype == BFLOAT16:
        return MachineTensor(_DLPACK_BFLOAT, 16, spec.shape)
    dtype = np.dtype(_held([spec])[0].dtype)
    return MachineTensor(_DLPACK_CODES[dtype.kind], dtype.itemsize * 8, spec.shape)


def _spec(array: np.ndarray) -> TensorSpec:
    return TensorSpec("", array.dtype.name, array.shape)
