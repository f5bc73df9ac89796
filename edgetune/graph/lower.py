"""Prepared ONNX to a Relax module of fused kernels, and the tuning tasks in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from edgetune.errors import UnsupportedModelError
from edgetune.graph.accumulate import widen_sums
from edgetune.graph.blocked import Rewriter
from edgetune.graph.chains import limit_chains
from edgetune.graph.importer import import_onnx
from edgetune.graph.legalize import legalizations
from edgetune.graph.merge import Merger, as_kernel
from edgetune.graph.quantized import with_quantized
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
        mod = widen_sums(relax.transform.DecomposeOpsForInference()(mod))
        if target.kind == "llvm":
            mod = Rewriter(mod, target, with_quantized(rules())).run()
        mod = tvm.transform.Sequential(
            [
                # TopK, ArgSort, CumSum: calls into the runtime's library, and kernels without blocks.
                relax.backend.DispatchSortScan(),
                relax.transform.LegalizeOps(legalizations()),
                relax.transform.FoldConstant(),
                # Folding can leave operators behind that were not there before.
                relax.transform.LegalizeOps(legalizations()),
                relax.transform.AnnotateTIROpPattern(),
                relax.transform.DeadCodeElimination(),
            ]
        )(mod)
        mod = limit_chains(mod)
        mod = tvm.transform.Sequential(
            [
                relax.transform.FuseOps(),
                relax.transform.FuseTIR(),
                relax.transform.DeadCodeElimination(),
            ]
        )(mod)
    _require_known_sizes(mod["main"])
    _require_elements(mod)
    return mod


def _require_known_sizes(main: relax.Function) -> None:
    """Refuse a model with a tensor whose size depends on values: a bundle's outputs have one shape each.

    Raises:
        UnsupportedModelError: there is one.
    """
    for block in main.body.blocks:
        for binding in block.bindings:
            if not _is_known(binding.var.ty):
                raise UnsupportedModelError(
                    "the size of a tensor depends on the values of an input, which a compiled model cannot express: "
                    "fix that input with --freeze where it is a setting, or cut the model with --cut; `edgetune "
                    "check` names the node"
                )


def _require_elements(mod: tvm.IRModule) -> None:
    """Refuse sums over no elements that no converter has replaced: TVM's kernels leave their results as they were.

    Raises:
        UnsupportedModelError: there is one.
    """
    empty: list[Any] = []

    def visit(realize: tvm.s_tir.SBlockRealize) -> None:
        sums = (
            axis for axis in realize.block.iter_vars if int(axis.iter_type) == tvm.tirx.IterVar.CommReduce
        )
        empty.extend(axis for axis in sums if int(axis.dom.extent) == 0)

    for func in mod.functions.values():
        if isinstance(func, tvm.tirx.PrimFunc):
            tvm_ffi.structural_walk(func.body, (tvm.s_tir.SBlockRealize, visit))
    if empty:
        raise UnsupportedModelError(
            "the model sums over an axis of no elements, as in a convolution of no channels, which cannot be "
            "compiled; give every tensor at least one element"
        )


def _is_known(kind: Any) -> bool:
    """Whether every size in a type is a number."""
    if isinstance(kind, relax.TupleType):
        return all(_is_known(field) for field in kind.fields)
    if not isinstance(kind, relax.TensorType):
        return True
    sizes = kind.shape
    return sizes is not None and all(isinstance(size, (int, tvm.tirx.IntImm)) for size in sizes)


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
