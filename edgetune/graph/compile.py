"""Chosen schedules applied to a lowered model, and code generated and linked."""

from __future__ import annotations

import hashlib
import logging
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax, te

from edgetune.cuda import leave_sources, pack_imports
from edgetune.graph.lower import Lowered
from edgetune.graph.merge import as_kernel
from edgetune.graph.refusal import REFUSALS, reason, refusing
from edgetune.kernels.registry import default_schedule, last_resort
from edgetune.metaschedule import apply_trace
from edgetune.records import Choice, CompiledModel, Program, Task
from edgetune.standalone.machine import Described, Front
from edgetune.targets import Target
from edgetune.toolchain import link_shared_fcompile

_LOGGER = logging.getLogger("edgetune.graph")


def compile_model(
    lowered: Lowered, choices: Sequence[Choice], target: Target, app: str | None = None
) -> CompiledModel:
    """Apply one schedule to each kernel and compile the model for TVM's virtual machine.

    Args:
        lowered: the model's kernels.
        choices: one for each task; a task without one gets its default schedule.
        target: what to generate code for.
        app: the model's name, where its library is to have the C API too, with the runtime that it needs.

    Raises:
        ToolchainError: the library cannot be linked.
        UnsupportedModelError: TVM cannot generate code for a kernel.
    """
    leave_sources(target)
    mod = schedule_kernels(lowered, {choice.task.workload: choice.trace for choice in choices}, target)
    try:
        executable, lifted = _generate(mod, target)
    except REFUSALS:
        mod = with_buildable_kernels(lowered, mod, target)
        with refusing(f"compiled for {target.name}"):
            executable, lifted = _generate(mod, target)
    weights, programs = _shared_weights(lifted, lowered.programs)
    functions = programs or (Program("main", lowered.inputs, lowered.outputs, tuple(range(len(weights)))),)
    front = Front(target, None if app is None else Described(app, functions, weights))
    with tempfile.TemporaryDirectory(prefix="edgetune-") as folder:
        path = Path(folder, "model.so")
        executable.export_library(
            str(path), fcompile=link_shared_fcompile(target, front.link), fpack_imports=pack_imports(target)
        )
        library = path.read_bytes()
    names = {task.workload: task.name for task in lowered.tasks}
    symbols = {kernel: names[workload] for kernel, workload in lowered.kernels.items() if workload in names}
    symbols = {kernel: name for kernel, name in symbols.items() if kernel != name}
    return CompiledModel(
        library,
        weights,
        lowered.inputs,
        lowered.outputs,
        symbols,
        programs,
        files=front.files,
        without_runtime=front.without_runtime,
    )


def _shared_weights(
    lifted: Mapping[str, Sequence[np.ndarray]], programs: Sequence[Program]
) -> tuple[tuple[np.ndarray, ...], tuple[Program, ...]]:
    """The weights of all functions, each stored once, and which of them every program takes.

    Those of ``main`` come first and as they are: a model of fixed shape has no others.
    """
    weights = list(lifted["main"])
    known = {_identity(array): index for index, array in reversed(list(enumerate(weights)))}
    taken = [replace(program, weights=tuple(range(len(weights)))) for program in programs[:1]]
    for program in programs[1:]:
        indices = []
        for array in lifted[program.function]:
            index = known.setdefault(_identity(array), len(weights))
            if index == len(weights):
                weights.append(array)
            indices.append(index)
        taken.append(replace(program, weights=tuple(indices)))
    return tuple(weights), tuple(taken)


def _identity(array: np.ndarray) -> tuple[str, tuple[int, ...], bytes]:
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    return array.dtype.name, array.shape, hashlib.sha256(data).digest()


def applies(task: Task, trace: str) -> bool:
    """Whether a recorded schedule can be applied to a task: it may come from another version of the kernels."""
    try:
        apply_trace(trace, tvm.ir.load_json(task.ir))
    except Exception:  # TVM raises many types here, and each means the same
        return False
    return True


def scheduled_kernel(kernel: tvm.IRModule, trace: str | None, target: Target) -> tvm.tirx.PrimFunc:
    """A kernel under a recorded schedule, or under its default schedule where ``trace`` is None."""
    if trace is None:
        return default_schedule(kernel, target).mod["main"]
    return apply_trace(trace, kernel).mod["main"]


def schedule_kernels(lowered: Lowered, traces: Mapping[str, str | None], target: Target) -> tvm.IRModule:
    """The module with every kernel under the schedule chosen for its workload."""
    functions = {}
    for var, func in lowered.mod.functions.items():
        workload = lowered.kernels.get(var.name_hint)
        if workload is not None:
            scheduled = scheduled_kernel(as_kernel(func), traces.get(workload), target)
            func = scheduled.with_attr("global_symbol", var.name_hint)
        functions[var] = func
    return tvm.IRModule(functions)


def _generate(mod: tvm.IRModule, target: Target) -> tuple[Any, dict[str, tuple[np.ndarray, ...]]]:
    """Code for a module of scheduled kernels, and the weights that each of its functions takes."""
    mod = _with_kernel(mod)
    weights = {}
    for var, func in mod.functions.items():
        if isinstance(func, relax.Function):
            mod, weights[var.name_hint] = lift_weights(mod, var.name_hint)
    executable = relax.build(mod, target=target.tvm(), relax_pipeline=_vm_pipeline(), exec_mode="bytecode")
    return executable, weights


def with_buildable_kernels(lowered: Lowered, mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    """``mod`` with its loops left as they are in each kernel whose schedule TVM generates no code for."""
    functions = dict(mod.functions)
    for var, func in mod.functions.items():
        if var.name_hint not in lowered.kernels:
            continue
        try:
            tvm.tirx.build(as_kernel(func), target=target.tvm())
        except REFUSALS as error:
            _LOGGER.warning(
                "no code for the schedule of %s, its loops stay plain: %s", var.name_hint, reason(error)
            )
            unscheduled = as_kernel(lowered.mod[var.name_hint])
            functions[var] = (
                last_resort(unscheduled, target).mod["main"].with_attr("global_symbol", var.name_hint)
            )
    return tvm.IRModule(functions)


def _with_kernel(mod: tvm.IRModule) -> tvm.IRModule:
    """``mod``, given an empty kernel where it has none: TVM would then write C, which needs a compiler."""
    if any(isinstance(func, tvm.tirx.PrimFunc) for func in mod.functions.values()):
        return mod
    source = te.placeholder((1,), name="source")
    same = te.compute((1,), lambda i: source[i], name="same")
    empty = te.create_prim_func([source, same]).with_attr("global_symbol", "no_kernel")
    return tvm.IRModule({**mod.functions, tvm.ir.GlobalVar("no_kernel"): empty})


def lift_weights(mod: tvm.IRModule, name: str) -> tuple[tvm.IRModule, tuple[np.ndarray, ...]]:
    """Turn the constant tensors of a function into parameters after its inputs, and return their values.

    Weights then live in a file beside the library, mapped into memory and shared, instead of in code. Equal ones
    are one weight.
    """
    main = mod[name]
    lifted: dict[tuple[str, tuple[int, ...], bytes], tuple[np.ndarray, relax.Var]] = {}

    @relax.expr_functor.mutator
    class Lift(relax.PyExprMutator):
        def visit_generic_const_(self, op: Any) -> Any:
            if not isinstance(op, tvm.ir.GenericConst) or not isinstance(op.ty, relax.TensorType):
                return op
            value = np.asarray(op.value.numpy())
            key = _identity(value)
            if key not in lifted:
                lifted[key] = value, relax.Var(f"weight{len(lifted)}", op.ty)
            return lifted[key][1]

    body = Lift(mod).visit_expr(main.body)
    function = relax.Function(
        [*main.params, *(var for _, var in lifted.values())], body, main.ret_ty, main.is_pure, main.attrs
    )
    updated = tvm.IRModule({**mod.functions, mod.get_global_var(name): function})
    return updated, tuple(value for value, _ in lifted.values())


def _vm_pipeline() -> tvm.transform.Pass:
    """Relax's default build pipeline from the point where kernels are legalized, fused and scheduled."""
    return tvm.transform.Sequential(
        [
            relax.transform.RewriteDataflowReshape(),
            relax.transform.ToNonDataflow(),
            relax.transform.RemovePurityChecking(),
            relax.transform.CallTIRRewrite(),
            relax.transform.StaticPlanBlockMemory(),
            relax.transform.LowerAllocTensor(),
            relax.transform.KillAfterLastUse(),
            relax.transform.LowerRuntimeBuiltin(),
            relax.transform.ComputePrimValue(),
            relax.transform.VMShapeLower(),
            relax.transform.AttachGlobalSymbol(),
        ]
    )
