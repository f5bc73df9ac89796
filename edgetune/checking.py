"""Can a model be compiled? Every reason why not at once, before any trial is spent.

What is looked at, in this order, each only where the one before found nothing:

1. the dimensions that are still open;
2. operators that cannot be imported, in any graph of the model;
3. tensors whose size depends on values, which static shapes cannot express;
4. an import of the whole model, and where that fails of each node alone, to name the culprit;
5. lowering for the target, which gives the number of tuning tasks.

That a model imports does not make its values right: only verifying a bundle shows that.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgetune.errors import ModelError, UnsupportedModelError

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

    from edgetune.model.interface import Value
    from edgetune.model.loading import SourceModel
    from edgetune.records import PreparedModel


@dataclass(frozen=True)
class UnsupportedNode:
    """A node that cannot be compiled; ``node`` is its name, or what it makes where it has none."""

    node: str
    op: str
    reason: str


@dataclass(frozen=True)
class OpenDimension:
    """A dimension that a shape must fix; ``symbol`` is its name in the file, if it has one."""

    input: str
    axis: int
    symbol: str | None


@dataclass(frozen=True)
class CheckResult:
    """What ``edgetune check`` found.

    Attributes:
        message: why the model cannot be compiled and what to do; empty where it can be.
        inputs: of the model as given, frozen ones left out; as are ``outputs``. Open dimensions
            are symbols, or None.
        tasks: number of distinct kernels to tune; None where it cannot be compiled.
        flops: floating-point operations of one inference; None while dimensions are open.
        params: number of weights.
        notes: what preparing the model did or left out.
    """

    model: str
    supported: bool
    message: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    unsupported: tuple[UnsupportedNode, ...] = ()
    dynamic_dims: tuple[OpenDimension, ...] = ()
    tasks: int | None = None
    flops: int | None = None
    params: int = 0
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The JSON object of ``edgetune check``."""
        return {
            "model": self.model,
            "supported": self.supported,
            "message": self.message,
            "inputs": [_value_json(value) for value in self.inputs],
            "outputs": [_value_json(value) for value in self.outputs],
            "unsupported": [{"node": n.node, "op": n.op, "reason": n.reason} for n in self.unsupported],
            "dynamic_dims": [
                {"input": dim.input, "axis": dim.axis, "symbol": dim.symbol} for dim in self.dynamic_dims
            ],
            "tasks": self.tasks,
            "flops": self.flops,
            "params": self.params,
            "notes": list(self.notes),
        }


def _value_json(value: Value) -> dict[str, Any]:
    return {
        "name": value.name,
        "dtype": value.dtype,
        "shape": None if value.dims is None else list(value.dims),
    }


def check(
    model: str | os.PathLike[str] | bytes | ModelProto,
    shapes: Mapping[str, Sequence[int | str | Sequence[int]]] | None = None,
    freeze: Mapping[str, Any] | None = None,
    target: str = "local",
) -> CheckResult:
    """Say whether ``model`` can be compiled, with every reason why not; takes seconds, no trials.

    Args:
        model: path, bytes or ``ModelProto``.
        shapes: input name -> sizes; one that varies as ``"1..8"``.
        freeze: input name -> value of an input that is a setting.
        target: the target that the tasks are counted for.

    Raises:
        ModelError: the file is no usable ONNX model, or ONNX Runtime cannot run it.
        UsageError: ``shapes`` or ``freeze`` do not fit the model.
        TargetError: there is no such target.
    """
    from edgetune.model import flops, interface
    from edgetune.model.loading import load_model
    from edgetune.model.passes.bind_shapes import bound_inputs, open_dims_message
    from edgetune.model.passes.freeze_inputs import frozen_arrays
    from edgetune.model.prepare import prepare
    from edgetune.model.variants import plan

    loaded = load_model(model)
    declared = interface.inputs(loaded.proto)
    frozen = frozen_arrays(declared, freeze or {})
    remaining = [value for value in declared if value.name not in frozen]
    planned = plan(remaining, shapes or {})
    bound = bound_inputs(remaining, planned.shapes(planned.combinations[0]))
    if still_open := [value for value in bound if not value.fixed]:
        return CheckResult(
            loaded.name,
            False,
            open_dims_message(bound, still_open),
            bound,
            interface.outputs(loaded.proto),
            tuple(_missing_operators(loaded.proto)),
            tuple(_open_dimensions(still_open)),
            params=flops.count_params(loaded.proto),
        )
    try:
        prepared = prepare(loaded, shapes, freeze)
    except ModelError:
        # ONNX Runtime refuses unknown operators, too: then the list of them says more.
        missing = tuple(_missing_operators(loaded.proto))
        if not missing:
            raise
        return _refused(loaded, bound, interface.outputs(loaded.proto), missing)
    return _check_prepared(loaded, prepared, target)


def _open_dimensions(values: Sequence[Value]) -> Iterator[OpenDimension]:
    for value in values:
        if value.dims is None:
            yield OpenDimension(value.name, -1, None)
            continue
        for axis, dim in enumerate(value.dims):
            if not isinstance(dim, int):
                yield OpenDimension(value.name, axis, dim)


def _refused(
    loaded: SourceModel,
    inputs: tuple[Value, ...],
    outputs: tuple[Value, ...],
    unsupported: tuple[UnsupportedNode, ...],
    prepared: PreparedModel | None = None,
) -> CheckResult:
    operators = sorted({node.op for node in unsupported})
    count = len(unsupported)
    message = (
        f"{count} node{'s' if count > 1 else ''} cannot be compiled ({', '.join(operators)}); "
        "replace or remove them when exporting the model, or run that part with ONNX Runtime"
    )
    return CheckResult(
        loaded.name,
        False,
        message,
        inputs,
        outputs,
        unsupported,
        flops=prepared.flops if prepared else None,
        params=prepared.params if prepared else 0,
        notes=prepared.notes if prepared else (),
    )


def _check_prepared(loaded: SourceModel, prepared: PreparedModel, target: str) -> CheckResult:
    from edgetune.graph.lower import lower
    from edgetune.model.variants import served
    from edgetune.targets import load_target

    chosen = load_target(target)
    inputs, outputs = served(prepared)
    at_each_size = (unsupported_nodes(model) for model in prepared.all_sizes)
    unsupported = next((nodes for nodes in at_each_size if nodes), ())
    tasks = None
    if not unsupported:
        try:
            tasks = len(lower(prepared, chosen).tasks)
        except UnsupportedModelError as error:
            unsupported = (UnsupportedNode("", "", str(error)),)
    if unsupported:
        return _refused(loaded, inputs, outputs, unsupported, prepared)
    return CheckResult(
        prepared.name,
        True,
        "",
        inputs,
        outputs,
        tasks=tasks,
        flops=prepared.flops,
        params=prepared.params,
        notes=prepared.notes,
    )


def unsupported_nodes(prepared: PreparedModel) -> tuple[UnsupportedNode, ...]:
    """Every node of a prepared model that cannot be compiled, with the reason; none if it imports."""
    from edgetune.model.prepare import parse

    model = parse(prepared)
    found = [*_missing_operators(model), *_value_dependent(model)]
    return tuple(found) or tuple(_failing_imports(model))


def _missing_operators(model: ModelProto) -> Iterator[UnsupportedNode]:
    """Nodes of the model, of its subgraphs and of its functions whose operator cannot be imported."""
    from edgetune.graph.importer import operators
    from edgetune.model import graphs

    known = operators()
    functions = {(function.domain, function.name) for function in model.functions}
    nodes: list[NodeProto] = list(graphs.walk_nodes(model.graph))
    for function in model.functions:
        nodes += graphs.walk_nodes(function)
    for node in nodes:
        if (node.domain, node.op_type) in functions:
            continue
        if reason := _refusal(node, known):
            yield _unsupported(node, reason)


def _refusal(node: NodeProto, known: frozenset[str]) -> str | None:
    from edgetune.model.graphs import DEFAULT_DOMAINS

    if node.domain in DEFAULT_DOMAINS:
        return None if node.op_type in known else "edgetune has no implementation of this operator"
    if f"{node.domain}.{node.op_type}" in known:
        return None
    return f"edgetune has no implementation of this operator of the domain {node.domain!r}"


def _unsupported(node: NodeProto, reason: str) -> UnsupportedNode:
    from edgetune.model.graphs import DEFAULT_DOMAINS

    made = next((name for name in node.output if name), "")
    op = node.op_type if node.domain in DEFAULT_DOMAINS else f"{node.domain}.{node.op_type}"
    return UnsupportedNode(node.name or f"(makes {made})", op, reason)


def _value_dependent(model: ModelProto) -> Iterator[UnsupportedNode]:
    """Nodes where a size first depends on values: known shapes go in, an unknown one comes out."""
    from edgetune.model import graphs, shapes

    known = shapes.static_shapes(model)
    for node in model.graph.node:
        reads = [name for name in [*node.input, *graphs.captured(node)] if name]
        if any(known.get(name) is None for name in reads):
            continue
        for name in node.output:
            if name and known.get(name) is None:
                yield _unsupported(node, f"the shape of its output {name!r} depends on the input's values")
                break


def _failing_imports(model: ModelProto) -> list[UnsupportedNode]:
    """The nodes that the importer refuses: each tried alone, or else the first that fails in place."""
    reason = _import_problem(model)
    if reason is None:
        return []
    alone = []
    for single, node in _single_nodes(model):
        if problem := _import_problem(single):
            alone.append(_unsupported(node, problem))
    return alone or [_first_failing(model, reason)]


def _import_problem(model: ModelProto) -> str | None:
    from edgetune.graph.importer import import_onnx

    try:
        # The importer prints the node it stumbles over.
        with contextlib.redirect_stdout(io.StringIO()):
            import_onnx(model.SerializeToString())
    except UnsupportedModelError as error:
        return _importer_reason(error)
    return None


def _importer_reason(error: UnsupportedModelError) -> str:
    """What TVM said, without the sentence around it."""
    cause = error.__cause__
    lines = [line.strip() for line in str(cause or error).strip().splitlines() if line.strip()]
    kind = f"{type(cause).__name__}: " if cause is not None else ""
    return f"the importer fails with {kind}{lines[-1] if lines else 'no message'}"[:400]


def _single_nodes(model: ModelProto) -> Iterator[tuple[ModelProto, NodeProto]]:
    """Each node as a model of its own, where the types and shapes it reads are known."""
    import onnx

    from edgetune.model import graphs, shapes

    known, types = shapes.static_shapes(model), shapes.element_types(model)
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        reads = dict.fromkeys(name for name in [*node.input, *sorted(graphs.captured(node))] if name)
        variable = [name for name in reads if name not in weights]
        if any(known.get(name) is None or name not in types for name in variable):
            continue
        inputs = [onnx.helper.make_tensor_value_info(name, types[name], known[name]) for name in variable]
        outputs = [
            onnx.helper.make_tensor_value_info(name, types.get(name, 1), known.get(name))
            for name in node.output
            if name
        ]
        graph = onnx.helper.make_graph(
            [node], "node", inputs, outputs, [weights[name] for name in reads if name in weights]
        )
        yield _like(model, graph), node


def _like(model: ModelProto, graph: GraphProto) -> ModelProto:
    import onnx

    return onnx.helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)


def _first_failing(model: ModelProto, reason: str) -> UnsupportedNode:
    """Bisect for the shortest prefix of the nodes that fails to import; its last node is at fault."""
    import onnx

    nodes = list(model.graph.node)
    good, bad = 0, len(nodes)
    while bad - good > 1:
        middle = (good + bad) // 2
        outputs = [onnx.ValueInfoProto(name=name) for name in nodes[middle - 1].output if name]
        graph = onnx.helper.make_graph(
            nodes[:middle], "prefix", model.graph.input, outputs, model.graph.initializer
        )
        problem = _import_problem(_like(model, graph))
        if problem is None:
            good = middle
        else:
            bad, reason = middle, problem
    return _unsupported(nodes[bad - 1], reason)
