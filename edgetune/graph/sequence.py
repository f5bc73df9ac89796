"""A lowered model as a fixed sequence of kernel calls, for libraries that need no virtual machine."""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

from edgetune.dtypes import EXTENDED
from edgetune.errors import NotStandaloneError
from edgetune.graph.compile import lift_weights, schedule_kernels, with_buildable_kernels
from edgetune.graph.joining import JOINS_ATTR, home, join
from edgetune.graph.lower import Lowered
from edgetune.graph.refusal import REFUSALS, refusing
from edgetune.records import Choice
from edgetune.standalone.emit import identifier
from edgetune.standalone.program import ALIGNMENT_BYTES, Lifetime, Place, Program, Space, Step, plan_memory
from edgetune.targets import Target

_PACKED_PREFIX = "__tvm_ffi_"
"""What TVM puts before the names of packed functions (tvm::ffi::symbol::tvm_ffi_symbol_prefix)."""
_TVM_SYMBOL = re.compile(rb"\b((?:__)?TVM(?:FFI|Backend)\w+)\0")
_OURS = {
    *(b"__TVMBackendParallelLaunch", b"__TVMBackendAllocWorkspace", b"__TVMBackendFreeWorkspace"),
    b"TVMFFIErrorSetRaisedFromCStrParts",
}
"""What kernels may call: the functions of TVM's that ``standalone/c/pool.c`` supplies."""


def compile_program(lowered: Lowered, choices: Sequence[Choice], target: Target, name: str) -> Program:
    """Apply one schedule to each kernel, compile the kernels, and write down how the model calls them.

    Args:
        lowered: the model's kernels.
        choices: one for each task; a task without one gets its default schedule.
        target: what to generate code for.
        name: the model's, which the names of its functions begin with.

    Raises:
        NotStandaloneError: the model is more than a sequence of kernel calls, or the target is no CPU.
        UnsupportedModelError: TVM cannot generate code for a kernel.
    """
    if target.kind != "llvm":
        raise NotStandaloneError(f"{target.name} is a {target.kind} device")
    if lowered.programs:
        raise NotStandaloneError("its sizes vary from call to call")
    for spec in (*lowered.inputs, *lowered.outputs):
        if spec.dtype in EXTENDED:
            raise NotStandaloneError(f"{spec.name!r} is of type {spec.dtype}, which the C API lacks")
    mod = schedule_kernels(lowered, {choice.task.workload: choice.trace for choice in choices}, target)
    mod, weights = lift_weights(mod, "main")
    reader = _read(mod, len(lowered.inputs), _joining(lowered.mod))
    try:
        kernels, workspace_bytes = _build(mod, reader.functions(), target, name)
    except REFUSALS:
        mod = with_buildable_kernels(lowered, mod, target)
        with refusing(f"compiled for {target.name}"):
            kernels, workspace_bytes = _build(mod, reader.functions(), target, name)
    tasks = {task.workload: task.name for task in lowered.tasks}
    names = {kernel: tasks.get(workload, kernel) for kernel, workload in lowered.kernels.items()}
    steps, places, arena_bytes = reader.placed(name, names)
    return Program(
        kernels, steps, places, arena_bytes, workspace_bytes, lowered.inputs, lowered.outputs, weights
    )


@dataclass(frozen=True)
class _Tensor:
    """A tensor of ``main``: an input or weight by its index, or memory that some step fills."""

    space: Space
    index: int
    size_bytes: int


@dataclass(frozen=True)
class _Call:
    function: str
    arguments: tuple[_Tensor, ...]


def _joining(mod: tvm.IRModule) -> frozenset[str]:
    """The kernels that only put their inputs one after the other; one input, for reshaping."""
    kernels = {var.name_hint: f for var, f in mod.functions.items() if isinstance(f, tvm.tirx.PrimFunc)}
    return frozenset(
        name
        for name, func in kernels.items()
        if (func.attrs and JOINS_ATTR in func.attrs)
        or (len(func.params) == 2 and relax.analysis.has_reshape_pattern(func))
    )


def _read(mod: tvm.IRModule, num_inputs: int, joining: frozenset[str]) -> _Reader:
    mod = tvm.transform.Sequential(
        [
            relax.transform.RewriteDataflowReshape(),
            relax.transform.ToNonDataflow(),
            relax.transform.RemovePurityChecking(),
            relax.transform.CallTIRRewrite(),
        ]
    )(mod)
    return _Reader(mod["main"], num_inputs, joining)


class _Reader:
    """Walks over the bindings of ``main`` after CallTIRRewrite: allocations, kernel calls, other names.

    Calls of a kernel of ``joining`` are left out where its inputs can be written in their place.
    """

    def __init__(self, main: relax.Function, num_inputs: int, joining: frozenset[str]) -> None:
        self._values: dict[Any, Any] = {}
        self._calls: list[_Call] = []
        self._allocated = 0
        for position, parameter in enumerate(main.params):
            is_input = position < num_inputs
            self._values[parameter] = _Tensor(
                Space.INPUT if is_input else Space.WEIGHTS,
                position if is_input else position - num_inputs,
                _size_bytes(parameter.ty),
            )
        for block in main.body.blocks:
            for binding in block.bindings:
                self._values[binding.var] = self._value(binding)
        result = self._get(main.body.body)
        self._outputs: tuple[_Tensor, ...] = result if isinstance(result, tuple) else (result,)
        joins = [call.arguments for call in self._calls if call.function in joining]
        outputs = set(self._outputs)
        self._inside = join(
            joins,
            lambda tensor: tensor.size_bytes,
            # What is reshaped to an output is written in its place.
            lambda tensor, alone: tensor.space is Space.ARENA and (alone or tensor not in outputs),
        )
        self._calls = [call for call in self._calls if not self._is_done(call, joining)]

    def _is_done(self, call: _Call, joining: frozenset[str]) -> bool:
        """Whether a call joins what lies together already."""
        *parts, whole = call.arguments
        return call.function in joining and all(self._inside.get(p, (None,))[0] == whole for p in parts)

    def functions(self) -> tuple[str, ...]:
        """The kernels that are called, each once, in the order of the first call."""
        return tuple(dict.fromkeys(call.function for call in self._calls))

    def placed(self, prefix: str, names: dict[str, str]) -> tuple[tuple[Step, ...], tuple[Place, ...], int]:
        """The steps, the places of their tensors, and the size of the arena.

        Args:
            prefix: see :func:`_symbol`.
            names: what people call a kernel.
        """
        homes, copies = self._homes()
        lives = self._lifetimes(homes)
        offsets, arena_bytes = plan_memory(list(lives.values()))
        homes |= {tensor: Place(Space.ARENA, offset) for tensor, offset in zip(lives, offsets, strict=True)}
        places: dict[Place, int] = {}

        def index(tensor: _Tensor) -> int:
            whole, start = home(tensor, self._inside)
            place = homes.get(whole, Place(whole.space, whole.index))
            return places.setdefault(Place(place.space, place.offset + start), len(places))

        steps = [
            Step(
                names.get(call.function, call.function),
                _PACKED_PREFIX + _symbol(prefix, call.function),
                tuple(index(tensor) for tensor in call.arguments),
                sum(tensor.size_bytes for tensor in call.arguments),
            )
            for call in self._calls
        ]
        for tensor, output in copies:
            target = places.setdefault(Place(Space.OUTPUT, output), len(places))
            steps.append(Step("copy", "", (index(tensor), target), tensor.size_bytes))
        return tuple(steps), tuple(places), arena_bytes

    def _homes(self) -> tuple[dict[_Tensor, Place], list[tuple[_Tensor, int]]]:
        """Where the tensors lie that are outputs, and what must be copied to be one.

        An output is written in its place. What is an input, a weight or another output as well is copied.
        """
        homes: dict[_Tensor, Place] = {}
        copies = []
        for output, tensor in enumerate(self._outputs):
            if tensor.space is Space.ARENA and tensor not in homes:
                homes[tensor] = Place(Space.OUTPUT, output)
            else:
                copies.append((tensor, output))
        return homes, copies

    def _lifetimes(self, homes: dict[_Tensor, Place]) -> dict[_Tensor, Lifetime]:
        lives: dict[_Tensor, Lifetime] = {}
        for step, call in enumerate(self._calls):
            for tensor in (home(argument, self._inside)[0] for argument in call.arguments):
                if tensor.space is Space.ARENA and tensor not in homes:
                    first = lives[tensor].first if tensor in lives else step
                    lives[tensor] = Lifetime(tensor.size_bytes, first, step)
        return lives

    def _value(self, binding: Any) -> Any:
        value = binding.value
        if isinstance(binding, relax.MatchCast):
            return self._get(value)
        if not isinstance(value, tvm.ir.Call):
            return self._get(value)
        operator = value.op
        if isinstance(operator, tvm.ir.GlobalVar):
            arguments = [self._get(argument) for argument in value.args]
            if not all(isinstance(argument, _Tensor) for argument in arguments):
                raise NotStandaloneError(f"the kernel {operator.name_hint} takes more than tensors")
            self._calls.append(_Call(operator.name_hint, tuple(arguments)))
            return ()
        name = getattr(operator, "name", None) or str(getattr(operator, "global_symbol", operator))
        if name == "relax.builtin.alloc_tensor":
            self._allocated += 1
            return _Tensor(Space.ARENA, self._allocated, _size_bytes(binding.var.ty))
        if name == "relax.reshape":
            return self._get(value.args[0])
        raise NotStandaloneError(f"it calls {name} of TVM's runtime")

    def _get(self, expr: Any) -> Any:
        """A tensor, a tuple of such, or None for what no kernel can take."""
        if isinstance(expr, relax.Var):
            return self._values[expr]
        if isinstance(expr, relax.Tuple):
            return tuple(self._get(field) for field in expr.fields)
        if isinstance(expr, relax.TupleGetItem):
            return self._get(expr.tuple_value)[expr.index]
        if isinstance(expr, relax.If | relax.Function):
            raise NotStandaloneError("its control flow depends on its inputs")
        return None


def _build(mod: tvm.IRModule, functions: Sequence[str], target: Target, prefix: str) -> tuple[bytes, int]:
    """The object with these kernels, and the most that they allocate on one thread, in bytes."""
    if not functions:
        return b"", 0
    symbols = {function: _symbol(prefix, function) for function in functions}
    kernels = tvm.IRModule(
        {symbol: mod[name].with_attr("global_symbol", symbol) for name, symbol in symbols.items()}
    )
    wants = _Wants()
    # The runtime calls kernels with the tensors that they were compiled for: nothing is left to assert.
    with tvm.transform.PassContext(
        opt_level=tvm.transform.PassContext.current().opt_level,
        config={"tirx.disable_assert": True},
        instruments=[wants.instrument()],
    ):
        built = tvm.tirx.build(kernels, target=target.tvm())
    with tempfile.TemporaryDirectory(prefix="edgetune-") as folder:
        path = Path(folder, "kernels.o")
        built.write_to_file(str(path))
        data = path.read_bytes()
    foreign = wants.functions | (set(_TVM_SYMBOL.findall(data)) - _OURS)
    if foreign:
        names = sorted(name.decode() for name in foreign)
        raise NotStandaloneError(f"a kernel calls {names[0]} of TVM's runtime")
    if wants.unknown:
        raise NotStandaloneError("a kernel allocates memory whose size is not known beforehand")
    return data, wants.workspace_bytes


class _Wants:
    """What kernels want at run time, noted once TVM has made their allocations and calls explicit.

    Attributes:
        workspace_bytes: the most that one of them allocates. unknown: an allocation has no fixed size.
        functions: names of packed functions that they call.
    """

    def __init__(self) -> None:
        self.workspace_bytes = 0
        self.unknown = False
        self.functions: set[bytes] = set()

    def instrument(self) -> Any:
        """For TVM's pass context."""
        look = self._look

        @tvm.ir.instrument.pass_instrument
        class Watcher:
            def run_after_pass(self, mod: tvm.IRModule, info: Any) -> None:
                if str(info.name).endswith("LowerTVMBuiltin"):
                    for function in mod.functions.values():
                        look(function)

        return Watcher()

    def _look(self, function: tvm.tirx.PrimFunc) -> None:
        total = 0

        def visit(call: tvm.ir.Call) -> None:
            nonlocal total
            name = str(getattr(call.op, "name", ""))
            if "call_packed" in name or "call_cpacked" in name:
                self.functions.add(str(getattr(call.args[0], "value", name)).encode())
            if not name.endswith("TVMBackendAllocWorkspace"):
                return
            size = call.args[2]
            if isinstance(size, tvm.tirx.IntImm):
                total += -(-int(size.value) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
            else:
                self.unknown = True

        tvm_ffi.structural_walk(function.body, (tvm.ir.Call, visit))
        self.workspace_bytes = max(self.workspace_bytes, total)


def _symbol(prefix: str, function: str) -> str:
    """A name that no other model's kernel has in a program that both are linked into."""
    return f"edgetune_{identifier(prefix)}_{function}"


def _size_bytes(ty: Any) -> int:
    shape = [int(dim) for dim in ty.shape]
    return int(np.dtype(str(ty.dtype)).itemsize) * math.prod(shape)
