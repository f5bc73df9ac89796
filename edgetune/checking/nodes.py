"""Which nodes of a model cannot be compiled, each with its reason."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from edgetune.errors import UnsupportedModelError

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

    from edgetune.records import PreparedModel
    from edgetune.targets import Target


@dataclass(frozen=True)
class UnsupportedNode:
    """A node that cannot be compiled; ``node`` is its name, or what it makes where it has none.

    ``outputs`` are the tensors that it makes.
    """

    node: str
    op: str
    reason: str
    outputs: tuple[str, ...] = ()


def diagnose(prepared: PreparedModel, target: Target) -> tuple[tuple[UnsupportedNode, ...], int | None]:
    """What stands in the way of compiling a prepared model, and where nothing does its number of tasks."""
    from edgetune.graph.lower import lower
    from edgetune.model.prepare import parse

    def problem(model: ModelProto) -> str | None:
        try:
            lower(replace(prepared, onnx=model.SerializeToString(), variants=None), target)
        except UnsupportedModelError as error:
            return str(error)
        return None

    at_each_size = (unsupported_nodes(model) for model in prepared.all_sizes)
    found = next((nodes for nodes in at_each_size if nodes), ()) or _unusual_types(prepared)
    if found:
        return found, None
    try:
        return (), len(lower(prepared, target).tasks)
    except UnsupportedModelError as error:
        return (_first_failing(parse(prepared), str(error), problem),), None


def _unusual_types(prepared: PreparedModel) -> tuple[UnsupportedNode, ...]:
    """Inputs and outputs of types that a bundle does not take or give."""
    from edgetune.bundle.manifest import Tensor

    found = []
    for spec in (*prepared.inputs, *prepared.outputs):
        try:
            Tensor.of(spec)
        except UnsupportedModelError as error:
            found.append(UnsupportedNode(spec.name, "", str(error), (spec.name,)))
    return tuple(found)


def non_tensors(model: ModelProto) -> set[str]:
    """Tensors of the main graph that are known to be no numeric tensors: sequences, maps, strings."""
    import onnx

    from edgetune.model import shapes

    return {
        name
        for name, kind in shapes.types(model).items()
        if kind.WhichOneof("value") not in ("tensor_type", None)
        or kind.tensor_type.elem_type == onnx.TensorProto.STRING
    }


def odd_outputs(model: ModelProto) -> Iterator[UnsupportedNode]:
    """Nodes that make an output of the model which is no numeric tensor."""
    odd = non_tensors(model) & {value.name for value in model.graph.output}
    for node in model.graph.node:
        if made := sorted(odd & set(node.output)):
            yield _unsupported(
                node, f"its output {made[0]!r} is no numeric tensor, and an output of the model"
            )


def unsupported_nodes(prepared: PreparedModel) -> tuple[UnsupportedNode, ...]:
    """Every node of a prepared model that cannot be compiled, with the reason; none if it imports."""
    from edgetune.model.prepare import parse

    model = parse(prepared)
    found = [*missing_operators(model), *_value_dependent(model)]
    return tuple(found) or tuple(_failing_imports(model))


def missing_operators(model: ModelProto) -> Iterator[UnsupportedNode]:
    """Nodes of the model, of its subgraphs and of its functions whose operator cannot be imported."""
    from edgetune.bodies import written_out
    from edgetune.graph.importer import operators
    from edgetune.model import graphs

    known = operators()
    model = written_out(model)
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
    from edgetune.bodies import OLDEST_OPSET, has_body
    from edgetune.model.graphs import DEFAULT_DOMAINS

    if node.domain in DEFAULT_DOMAINS:
        return None if node.op_type in known else "edgetune has no implementation of this operator"
    if f"{node.domain}.{node.op_type}" in known:
        return None
    if has_body(node):
        return (
            "ONNX Runtime, the reference, runs this operator on GPUs alone; edgetune writes it out where the operator "
            f"set is {OLDEST_OPSET} or newer and the attributes and constant weights leave no doubt"
        )
    return f"edgetune has no implementation of this operator of the domain {node.domain!r}"


def _unsupported(node: NodeProto, reason: str) -> UnsupportedNode:
    from edgetune.model.graphs import DEFAULT_DOMAINS

    made = tuple(name for name in node.output if name)
    op = node.op_type if node.domain in DEFAULT_DOMAINS else f"{node.domain}.{node.op_type}"
    return UnsupportedNode(node.name or f"(makes {', '.join(made[:1])})", op, reason, made)


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
    return alone or [_first_failing(model, reason, _import_problem)]


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


def _first_failing(
    model: ModelProto, reason: str, problem_of: Callable[[ModelProto], str | None]
) -> UnsupportedNode:
    """Bisect for the shortest prefix of the nodes that fails; its last node is at fault."""
    import onnx

    from edgetune.model import graphs

    nodes = list(model.graph.node)
    good, bad = 0, len(nodes)
    while bad - good > 1:
        middle = (good + bad) // 2
        read = {name for node in nodes[:middle] for name in [*node.input, *graphs.captured(node)]}
        made = [name for node in nodes[:middle] for name in node.output if name]
        outputs = [onnx.ValueInfoProto(name=name) for name in made if name not in read]
        graph = onnx.helper.make_graph(
            nodes[:middle], "prefix", model.graph.input, outputs, model.graph.initializer
        )
        problem = problem_of(_like(model, graph))
        if problem is None:
            good = middle
        else:
            bad, reason = middle, problem
    return _unsupported(nodes[bad - 1], reason)
