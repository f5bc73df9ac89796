"""A program as C source: tables of places, calls and tensors, and the what it says about itself."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from edgetune.records import TensorSpec
from edgetune.standalone.program import Program, Space

_DTYPES = {
    **{
        f"{kind}{bits}": f"EDGETUNE_{kind.upper()}{bits}"
        for kind in ("int", "uint")
        for bits in (8, 16, 32, 64)
    },
    **{f"float{bits}": f"EDGETUNE_FLOAT{bits}" for bits in (16, 32, 64)},
    "bool": "EDGETUNE_BOOL",
}
"""NumPy's name of a dtype -> the constant of ``c/edgetune.h``."""


@dataclass(frozen=True)
class Identity:
    """What a program says about itself.

    Attributes:
        name: the model's. target: LLVM's triple and CPU. features: that the CPU must have.
        threads: how many a run uses by default.
    """

    name: str
    target: str
    features: tuple[str, ...]
    threads: int


@dataclass(frozen=True)
class PackedWeights:
    """Where each weight starts, in bytes; the size and checksum of all; whether they are in the library."""

    offsets: tuple[int, ...]
    size_bytes: int
    checksum: int
    embedded: bool


def identifier(name: str) -> str:
    """A model's name as part of a C identifier."""
    return re.sub(r"\W", "_", name, flags=re.ASCII) or "model"


def program_symbol(name: str) -> str:
    """The C variable that holds the program of a model."""
    return f"edgetune_program_{identifier(name)}"


@dataclass(frozen=True)
class MachineTensor:
    """A tensor as TVM's virtual machine takes it: DLPack's code and bits of its type, its shape."""

    code: int
    bits: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class MachineCall:
    """A call of the virtual machine: ``symbol`` in C, its function, how many of the tensors are arguments."""

    symbol: str
    function: str
    arguments: int
    tensors: tuple[MachineTensor, ...]


def emit_machine_call(call: MachineCall) -> str:
    """The C source of a step that calls the virtual machine."""
    rows, shapes = [], []
    for index, tensor in enumerate(call.tensors):
        if tensor.shape:
            shapes.append(_table("int64_t", f"machine_shape{index}", map(str, tensor.shape)))
        shape = f"machine_shape{index}" if tensor.shape else "NULL"
        rows.append(f"{{{len(tensor.shape)}, {tensor.code}, {tensor.bits}, {shape}}}")
    return "\n".join(
        [
            '#include "vm.h"\n',
            *shapes,
            _table("et_vm_tensor", "machine_tensors", rows),
            f"int {call.symbol}(void *self, et_any *places, int32_t count, et_any *result) {{",
            f"  static const et_vm_function function = {{{_text(call.function)}, {call.arguments}, "
            f"{len(call.tensors) - call.arguments}, machine_tensors}};",
            "  (void)self, (void)count, (void)result;",
            "  return et_vm_run(&function, places);\n}\n",
        ]
    )


def emit_ffi_version(version: Sequence[int]) -> str:
    """The C source of the version of tvm-ffi that a model for the virtual machine wants."""
    numbers = ", ".join(map(str, version))
    return f'#include "vm.h"\nconst uint32_t et_vm_ffi_version[3] = {{{numbers}}};\n'


def emit_program(
    program: Program, identity: Identity, weights: PackedWeights, *, symbol: str = "", following: str = ""
) -> str:
    """The C source of a model's program, in the variable ``symbol``, by default the model's own.

    ``following`` is the variable of its program for the next combination of sizes, if there is one. Where the
    weights are embedded, it is compiled with ``EDGETUNE_WEIGHTS``, the path of their file.
    """
    symbols = sorted({step.symbol for step in program.steps if step.symbol})
    declared = [f"int {symbol}(void *, et_any *, int32_t, et_any *);" for symbol in symbols]
    arguments = [index for step in program.steps for index in step.arguments]
    parts = [
        '#include "internal.h"\n',
        "\n".join(declared),
        _EMBEDDED if weights.embedded else "#define WEIGHTS NULL\n",
        _tensors("inputs", program.inputs),
        _tensors("outputs", program.outputs),
        _table("const char *const", "features", [*(_text(name) for name in identity.features), "NULL"]),
        _table("et_place", "places", _places(program, weights)),
        _table("uint32_t", "arguments", map(str, arguments)),
        _table("et_step", "steps", _steps(program)),
        _table(
            "edgetune_kernel_info",
            "kernels",
            (f"{{{_text(step.kernel)}, {step.size_bytes}u}}" for step in program.steps),
        ),
        f"extern const edgetune_program {following};\n" if following else "",
        _definition(program, identity, weights, symbol or program_symbol(identity.name), following),
    ]
    return "\n".join(parts)


def emit_header(name: str) -> str:
    """The header of a model that is linked statically."""
    symbol = program_symbol(name)
    return (
        f"/* The model {_text(name)[1:-1]}, for edgetune_open_program. */\n"
        f"#ifndef {symbol.upper()}_H\n#define {symbol.upper()}_H\n\n"
        '#include "edgetune.h"\n\n'
        '#ifdef __cplusplus\nextern "C" {\n#endif\n\n'
        f"extern const edgetune_program {symbol};\n\n"
        "#ifdef __cplusplus\n}\n#endif\n\n#endif\n"
    )


def _tensors(table: str, specs: Sequence[TensorSpec]) -> str:
    shapes = [
        _table("int64_t", f"{table}_shape{index}", map(str, spec.shape))
        for index, spec in enumerate(specs)
        if spec.shape
    ]
    rows = []
    for index, spec in enumerate(specs):
        shape = f"{table}_shape{index}" if spec.shape else "NULL"
        rows.append(
            f"{{{_text(spec.name)}, {_DTYPES[spec.dtype]}, {len(spec.shape)}, {shape}, {size_bytes(spec)}u}}"
        )
    return "\n".join([*shapes, _table("edgetune_tensor_info", table, rows)])


def size_bytes(spec: TensorSpec) -> int:
    """Size of a tensor's values."""
    return int(np.dtype(spec.dtype).itemsize * np.prod(spec.shape, dtype=np.int64))


def _places(program: Program, weights: PackedWeights) -> Iterable[str]:
    for place in program.places:
        offset = weights.offsets[place.offset] if place.space is Space.WEIGHTS else place.offset
        yield f"{{ET_{place.space.name}, {offset}u}}"


def _steps(program: Program) -> Iterable[str]:
    first = 0
    for step in program.steps:
        count = len(step.arguments)
        yield f"{{{step.symbol or 'NULL'}, {first}, {count}, {step.size_bytes}u}}"
        first += count


def _definition(
    program: Program, identity: Identity, weights: PackedWeights, symbol: str, following: str
) -> str:
    fields = {
        "version": "ET_PROGRAM_VERSION",
        "threads": str(identity.threads),
        "name": _text(identity.name),
        "target": _text(identity.target),
        **{
            table: table
            for table in ("features", "inputs", "outputs", "kernels", "places", "arguments", "steps")
        },
        "num_inputs": str(len(program.inputs)),
        "num_outputs": str(len(program.outputs)),
        "num_places": str(len(program.places)),
        "num_arguments": str(sum(len(step.arguments) for step in program.steps)),
        "num_steps": str(len(program.steps)),
        "arena_bytes": f"{program.arena_bytes}u",
        "workspace_bytes": f"{program.workspace_bytes}u",
        "weights_bytes": f"{weights.size_bytes}u",
        "weights_checksum": f"{weights.checksum}u",
        "weights": "WEIGHTS",
        "next": f"&{following}" if following else "NULL",
    }
    lines = "".join(f"  .{field} = {value},\n" for field, value in fields.items())
    return f"extern const edgetune_program {symbol};\nconst edgetune_program {symbol} = {{\n{lines}}};\n"


def _table(kind: str, name: str, rows: Iterable[str]) -> str:
    """A constant array; C has none without elements, so that an empty one gets a zero."""
    const = "" if kind.endswith("const") else "const "
    body = ",\n  ".join(rows) or "0"
    if kind in ("et_place", "et_step", "edgetune_kernel_info", "edgetune_tensor_info") and body == "0":
        body = "{0}"
    return f"static {const}{kind} {name}[] = {{\n  {body}}};\n"


def _text(value: str) -> str:
    """A C string literal. JSON's escapes are C's, but for those of other characters: these stay UTF-8 bytes."""
    plain = json.dumps(value, ensure_ascii=False)
    return re.sub(r"\\u00([0-9a-f]{2})", lambda match: f"\\{int(match[1], 16):03o}", plain).replace(
        "??", "?\\?"
    )


_EMBEDDED = """\
/* The assembler reads the file: as text, the compiler would take minutes. */
__asm__(
    ".section .rodata.edgetune_weights,\\"a\\",%progbits\\n"
    ".balign 64\\n"
    ".hidden edgetune_weights\\n"
    ".globl edgetune_weights\\n"
    "edgetune_weights:\\n"
    ".incbin \\"" EDGETUNE_WEIGHTS "\\"\\n"
    ".previous\\n");
extern __attribute__((visibility("hidden"))) const unsigned char edgetune_weights[];
#define WEIGHTS edgetune_weights
"""
