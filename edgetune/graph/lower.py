"""Prepared ONNX to a Relax module of fused kernels, and the tuning tasks in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import relax

from edgetune.graph.blocked import Rewriter
from edgetune.graph.importer import import_onnx
from edgetune.graph.legalize import legalizations
from edgetune.graph.merge import Merger, as_kernel
from edgetune.graph.refusal import refusing
from edgetune.graph.rules import rules
from edgetune.graph.workload import kernel_flops, workload_hash
from edgetune.kernels.registry import kind_of
from edgetune.records import PreparedModel, Program, Task, TensorSpec
from edgetune.targets import Target


@dataclass(frozen=True)
class Lowered:
    """A model as fused kernels, before scheduling.

    Attributes:
        mod: ``main`` (Relax) calls the kernels (unscheduled PrimFuncs); weights are constants of ``main``.
        tasks: the distinct kernels, heaviest first.
        kernels: name of each kernel function -> workload of its task.
        programs: where sizes vary, the Relax function for each combination of them, ``main`` first; empty
            for a model of fixed shape.
    """

    mod: Any = field(repr=False)
    tasks: tuple[Task, ...]
    kernels: dict[str, str]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    programs: tuple[Program, ...] = ()


def lower(prepared: PreparedModel, target: Target) -> Lowered:
    """Lower a prepared model for a target, at all its sizes.

    Raises:
        UnsupportedModelError: TVM cannot import a node, or refuses what it imported.
    """
    mod = _lower_fixed(prepared, target)
    programs: tuple[Program, ...] = ()
    if prepared.variants:
        merger = Merger(mod)
        names = ["main"] + [merger.add(_lower_fixed(other, target)) for other in prepared.variants.smaller]
        mod = merger.mod
        programs = tuple(
            Program(name, model.inputs, model.outputs)
            for name, model in zip(names, prepared.all_sizes, strict=True)
        )
    tasks, kernels = extract_tasks(mod)
    return Lowered(mod, tasks, kernels, prepared.inputs, prepared.outputs, programs)


def _lower_fixed(prepared: PreparedModel, target: Target) -> tvm.IRModule:
    """A module of fused kernels for one combination of sizes."""
    mod = import_onnx(prepared.onnx)
    with refusing("lowered"), target.tvm():
        mod = relax.transform.DecomposeOpsForInference()(mod)
        if target.kind == "llvm":
            mod = Rewriter(mod, target, rules()).run()
        return tvm.transform.Sequential(
            [
                # TopK, ArgSort, CumSum: calls into the runtime's library, and kernels without blocks.
                relax.backend.DispatchSortScan(),
                relax.transform.LegalizeOps(legalizations()),
                relax.transform.FoldConstant(),
                # Folding can leave operators behind that were not there before.
                relax.transform.LegalizeOps(legalizations()),
                relax.transform.AnnotateTIROpPattern(),
                relax.transform.DeadCodeElimination(),
                relax.transform.FuseOps(),
                relax.transform.FuseTIR(),
                relax.transform.DeadCodeElimination(),
            ]
        )(mod)


def extract_tasks(mod: tvm.IRModule) -> tuple[tuple[Task, ...], dict[str, str]]:
    """The distinct kernels of a module with their weights, and which function belongs to which."""
    calls = _count_calls(mod.functions.values())
    names: dict[str, str] = {}
    functions: dict[str, tvm.tirx.PrimFunc] = {}
    kernels: dict[str, str] = {}
    weights: Counter[str] = Counter()
    for var, func in mod.functions.items():
        if not isinstance(func, tvm.tirx.PrimFunc):
            continue
        kernel = as_kernel(func)
        workload = workload_hash(kernel)
        kernels[var.name_hint] = workload
        names.setdefault(workload, var.name_hint)
        functions.setdefault(workload, kernel["main"])
        weights[workload] += calls[var.name_hint]
    tasks = [
        Task(
            name=names[workload],
            workload=workload,
            ir=tvm.ir.save_json(tvm.IRModule({"main": func})),
            weight=weights[workload],
            flops=kernel_flops(func),
            kind=kind_of(func),
        )
        for workload, func in functions.items()
        if weights[workload]
    ]
    tasks.sort(key=lambda t: t.flops * t.weight, reverse=True)
    return tuple(tasks), kernels


def _count_calls(functions: Iterable[Any]) -> Counter[str]:
    calls: Counter[str] = Counter()

    def visit(node: Any) -> None:
        if isinstance(node, tvm.ir.Call):
            for argument in (node.op, *node.args[:1]):
                if isinstance(argument, tvm.ir.GlobalVar):
                    calls[argument.name_hint] += 1

    for function in functions:
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, visit)
    return calls
