"""Computes at once what depends on no input's values: ONNX Runtime evaluates it.

Before: ``Shape(x) -> Gather -> Equal -> If``, with ``x`` of a known shape. After: the condition is an
initializer; an output of the model that depends on no input is made by a Constant. Of a tensor of no elements the
shape is all there is to know: ``x [0, 3] -> ReduceSum over the first axis`` is three zeros. DequantizeLinear stays:
folding it would turn 8-bit weights into float ones.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto, numpy_helper

from edgetune.errors import ModelError
from edgetune.model import graphs, interface, limits, shapes
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
_DEADLY = frozenset({"DFT", "GRU", "LSTM", "RNN"})
"""ONNX Runtime ends the process where these read a constant of no elements."""

_DOMAINS = (*graphs.DEFAULT_DOMAINS, "com.microsoft")


def fold_constants(model: ModelProto) -> PassResult:
    """Replace every node of known inputs by initializers that hold its outputs."""
    kinds = shapes.types(model)
    values = _empty(model, kinds)
    foldable, sized = _plan(model, kinds, values)
    values |= sized
    values |= _evaluate(model, foldable, values, kinds)
    if not values:
        return unchanged(model)
    model = graphs.copy(model)
    kept = [node for node in model.graph.node if not _is_done(node, values)]
    if len(kept) == len(model.graph.node):
        return unchanged(model)
    made = {value.name for value in model.graph.input} | {name for node in kept for name in node.output}
    values = {name: value for name, value in values.items() if name not in made}
    outputs = {value.name for value in model.graph.output}
    constants = [_constant(name, value) for name, value in values.items() if name in outputs]
    graphs.replace_nodes(model.graph, constants + kept)
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


def _empty(model: ModelProto, kinds: Mapping[str, TypeProto]) -> Arrays:
    """Tensors of no elements, other than constants; none where an operator reads one that must not be a constant."""
    known = {tensor.name for tensor in model.graph.initializer}
    known |= {name for node in model.graph.node if node.op_type == "Constant" for name in node.output}
    found = {}
    for name, shape in _shapes(kinds).items():
        elem_type = kinds[name].tensor_type.elem_type
        if 0 in shape and name not in known and elem_type not in (TensorProto.UNDEFINED, TensorProto.STRING):
            found[name] = np.empty(shape, onnx.helper.tensor_dtype_to_np_dtype(elem_type))
    if any(
        node.op_type in _DEADLY and not found.keys().isdisjoint(node.input)
        for node in graphs.walk_nodes(model.graph)
    ):
        return {}
    return found


def _plan(
    model: ModelProto, kinds: Mapping[str, TypeProto], empty: Arrays
) -> tuple[list[NodeProto], dict[str, np.ndarray]]:
    """Nodes that can be evaluated, in order; and the values of Shape and Size nodes."""
    graph = model.graph
    outputs = {value.name for value in graph.output}
    inner = {name for node in graph.node for name in [*node.input, *graphs.captured(node)]}
    known = {tensor.name for tensor in graph.initializer} | set(empty)
    known_shapes = _shapes(kinds)
    foldable: list[NodeProto] = []
    sized: dict[str, np.ndarray] = {}
    for node in graph.node:
        if _is_done(node, empty) or _is_disputed(node, empty):
            continue
        if outputs & set(node.output) and (node.op_type == "Constant" or inner & set(node.output)):
            continue  # an output must be made by a node, and here one makes it already
        if graphs.is_standard(node, "Shape", "Size") and node.input[0] in known_shapes:
            sized[node.output[0]] = _size(node, known_shapes[node.input[0]])
            known.add(node.output[0])
        elif _is_foldable(node, known):
            foldable.append(node)
            known |= set(node.output)
    return foldable, sized


def _is_disputed(node: NodeProto, empty: Arrays) -> bool:
    """Whether the standard leaves the result open, and importing refuses it: no integers have no mean."""
    kinds = {empty[name].dtype.kind for name in node.input if name in empty}
    return node.op_type == "ReduceMean" and not kinds.isdisjoint("iu")


def _is_foldable(node: NodeProto, known: set[str]) -> bool:
    if node.op_type in _NEVER or node.domain not in _DOMAINS:
        return False
    if any(child.op_type in _NEVER for graph in graphs.subgraphs(node) for child in graphs.walk_nodes(graph)):
        return False
    return all(name in known for name in [*node.input, *graphs.captured(node)] if name)


def _shapes(kinds: Mapping[str, TypeProto]) -> dict[str, tuple[int, ...]]:
    """Shapes that are known to the last number."""
    found = {}
    for name, kind in kinds.items():
        dims = interface.dims_of(onnx.ValueInfoProto(type=kind))
        fixed = tuple(dim for dim in dims or () if isinstance(dim, int))
        if dims is not None and len(fixed) == len(dims):
            found[name] = fixed
    return found


def _size(node: NodeProto, shape: tuple[int, ...]) -> np.ndarray:
    if node.op_type == "Size":
        return np.array(np.prod(shape, dtype=np.int64), np.int64)
    attributes = {a.name: a.i for a in node.attribute}
    return np.array(shape[slice(attributes.get("start", 0), attributes.get("end"))], np.int64)


def _evaluate(
    model: ModelProto, nodes: list[NodeProto], values: Arrays, kinds: Mapping[str, TypeProto]
) -> Arrays:
    """Outputs of ``nodes``, all in one run; one by one where that fails, leaving out what does not run.

    A run keeps every output. Where it is not known beforehand that they stay below ``MOST_FOLDED_BYTES`` together, it
    is one by one, too, and ends there.
    """
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
        known = {**values, **result}
        single = None
        if _available(model, needs, known):
            # Shape inference looks at constants, and is stricter than kernels are: a Range takes [6] as 6.
            single = _run(model, [node], known) or _run(model, [node], known, as_inputs=True)
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


def _run(
    model: ModelProto, nodes: list[NodeProto], values: Arrays, *, as_inputs: bool = False
) -> Arrays | None:
    if not nodes:
        return {}
    needed = {name for node in nodes for name in [*node.input, *graphs.captured(node)] if name}
    made = [name for node in nodes for name in node.output if name]
    tensors: list[TensorProto] = [tensor for tensor in model.graph.initializer if tensor.name in needed]
    read = {name: value for name, value in values.items() if name in needed}
    feeds = read if as_inputs else {}
    tensors += [numpy_helper.from_array(value, name) for name, value in read.items() if name not in feeds]
    inputs = [_value_info(name, value) for name, value in feeds.items()]
    graph = onnx.helper.make_graph(
        nodes, "constants", inputs, [ValueInfoProto(name=name) for name in made], tensors
    )
    part = onnx.helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    try:
        outputs = Session(part, optimize=False).run(feeds)
    except ModelError:
        return None
    if any(value.dtype == object for value in outputs.values()):
        return None  # strings, sequences
    return outputs


def _value_info(name: str, value: np.ndarray) -> ValueInfoProto:
    elem_type = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
    return onnx.helper.make_tensor_value_info(name, elem_type, value.shape)


def _drop_unread(graph: GraphProto, read: Mapping[str, int]) -> None:
    kept = [tensor for tensor in graph.initializer if tensor.name in read]
    if len(kept) < len(graph.initializer):
        del graph.initializer[:]
        graph.initializer.extend(kept)
