"""Computes at once what depends on no input: ONNX Runtime evaluates it.

Before: ``Shape(x) -> Gather -> Equal -> If``, with ``x`` of a known shape. After: the condition is an
initializer; an output of the model that depends on no input is made by a Constant. DequantizeLinear stays: folding it
would turn 8-bit weights into float ones.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, numpy_helper

from edgetune.errors import ModelError
from edgetune.model import graphs, interface, limits, shapes
from edgetune.model.inference import INFERENCE_ERRORS, infer
from edgetune.model.pipeline import PassResult, unchanged
from edgetune.model.session import Arrays, Session

_NEVER = frozenset(
    {
        "DequantizeLinear",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "Multinomial",
        "Bernoulli",
        "Dropout",
    }
)
_DOMAINS = (*graphs.DEFAULT_DOMAINS, "com.microsoft")


def fold_constants(model: ModelProto) -> PassResult:
    """Replace every node of known inputs by initializers that hold its outputs."""
    foldable, sized = _plan(model)
    if not foldable and not sized:
        return unchanged(model)
    values = {name: np.asarray(value) for name, value in sized.items()}
    values |= _evaluate(model, foldable, values)
    if not values:
        return unchanged(model)
    model = graphs.copy(model)
    kept = [node for node in model.graph.node if not _is_done(node, values)]
    if len(kept) == len(model.graph.node):
        return unchanged(model)
    outputs = {value.name for value in model.graph.output}
    kept += [_constant(name, value) for name, value in values.items() if name in outputs]
    graphs.replace_nodes(model.graph, kept)
    read = graphs.uses(model.graph)
    for name, value in values.items():
        if name in read and name not in outputs:
            model.graph.initializer.append(numpy_helper.from_array(value, name))
    _drop_unread(model.graph, read)
    return PassResult(model, True)


def _is_done(node: NodeProto, values: Mapping[str, object]) -> bool:
    return all(name in values for name in node.output if name)


def _constant(name: str, value: np.ndarray) -> NodeProto:
    return onnx.helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value, name))


def _plan(model: ModelProto) -> tuple[list[NodeProto], dict[str, np.ndarray]]:
    """Nodes that can be evaluated, in order; and the values of Shape and Size nodes."""
    graph = model.graph
    outputs = {value.name for value in graph.output}
    inner = {name for node in graph.node for name in [*node.input, *graphs.captured(node)]}
    known = {tensor.name for tensor in graph.initializer}
    known_shapes = _shapes(model) if any(graphs.is_standard(n, "Shape", "Size") for n in graph.node) else {}
    foldable: list[NodeProto] = []
    sized: dict[str, np.ndarray] = {}
    for node in graph.node:
        if outputs & set(node.output) and (node.op_type == "Constant" or inner & set(node.output)):
            continue  # an output must be made by a node, and here one makes it already
        if graphs.is_standard(node, "Shape", "Size") and node.input[0] in known_shapes:
            sized[node.output[0]] = _size(node, known_shapes[node.input[0]])
            known.add(node.output[0])
        elif _is_foldable(node, known):
            foldable.append(node)
            known |= set(node.output)
    return foldable, sized


def _is_foldable(node: NodeProto, known: set[str]) -> bool:
    if node.op_type in _NEVER or node.domain not in _DOMAINS:
        return False
    if any(child.op_type in _NEVER for graph in graphs.subgraphs(node) for child in graphs.walk_nodes(graph)):
        return False
    return all(name in known for name in [*node.input, *graphs.captured(node)] if name)


def _shapes(model: ModelProto) -> dict[str, tuple[int, ...]]:
    """Shapes that are known to the last number, of tensors in the main graph."""
    light = graphs.skeleton(model)
    try:
        light = infer(light)
    except INFERENCE_ERRORS:
        pass  # what the file itself declares is still there
    found = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    for value in [*light.graph.value_info, *light.graph.input]:
        dims = interface.dims_of(value)
        if value.type.HasField("tensor_type") and dims is not None:
            fixed = tuple(dim for dim in dims if isinstance(dim, int))
            if len(fixed) == len(dims):
                found[value.name] = fixed
    return found


def _size(node: NodeProto, shape: tuple[int, ...]) -> np.ndarray:
    if node.op_type == "Size":
        return np.array(np.prod(shape, dtype=np.int64), np.int64)
    attributes = {a.name: a.i for a in node.attribute}
    return np.array(shape[slice(attributes.get("start", 0), attributes.get("end"))], np.int64)


def _evaluate(model: ModelProto, nodes: list[NodeProto], values: Arrays) -> Arrays:
    """Outputs of ``nodes``, all in one run; one by one where that fails, leaving out what does not run.

    A run keeps every output. Where it is not known beforehand that they stay below ``MOST_FOLDED_BYTES`` together, it
    is one by one, too, and ends there.
    """
    kinds = shapes.types(model) if nodes else {}
    sizes = [_bytes(name, kinds) for node in nodes for name in node.output if name]
    if None not in sizes and sum(filter(None, sizes)) <= limits.MOST_FOLDED_BYTES:
        found = _run(model, nodes, values)
        if found is not None:
            return found
    result: Arrays = {}
    for node in nodes:
        made = [_bytes(name, kinds) for name in node.output if name]
        held = sum(value.nbytes for value in result.values())
        if held + sum(filter(None, made)) > limits.MOST_FOLDED_BYTES:
            continue
        needs = {name for name in [*node.input, *graphs.captured(node)] if name}
        single = (
            _run(model, [node], {**values, **result}) if _available(model, needs, values | result) else None
        )
        if single is not None and sum(value.nbytes for value in single.values()) <= limits.MOST_FOLDED_BYTES:
            result |= single
    return result


def _bytes(name: str, kinds: Mapping[str, TypeProto]) -> int | None:
    kind = kinds.get(name)
    return (
        limits.tensor_bytes(kind.tensor_type) if kind is not None and kind.HasField("tensor_type") else None
    )


def _available(model: ModelProto, names: set[str], values: Arrays) -> bool:
    return names <= {tensor.name for tensor in model.graph.initializer} | set(values)


def _run(model: ModelProto, nodes: list[NodeProto], values: Arrays) -> Arrays | None:
    if not nodes:
        return {}
    needed = {name for node in nodes for name in [*node.input, *graphs.captured(node)] if name}
    made = [name for node in nodes for name in node.output if name]
    tensors: list[TensorProto] = [tensor for tensor in model.graph.initializer if tensor.name in needed]
    tensors += [numpy_helper.from_array(value, name) for name, value in values.items() if name in needed]
    graph = onnx.helper.make_graph(
        nodes, "constants", [], [onnx.ValueInfoProto(name=name) for name in made], tensors
    )
    part = onnx.helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    try:
        outputs = Session(part, optimize=False).run({})
    except ModelError:
        return None
    if any(value.dtype == object for value in outputs.values()):
        return None  # strings, sequences
    return outputs


def _drop_unread(graph: GraphProto, read: Mapping[str, int]) -> None:
    kept = [tensor for tensor in graph.initializer if tensor.name in read]
    if len(kept) < len(graph.initializer):
        del graph.initializer[:]
        graph.initializer.extend(kept)
