"""Small helpers over ONNX protos that passes share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

DEFAULT_DOMAINS = ("", "ai.onnx")
"""Both names of the standard's own operator set."""

SMALL_TENSOR_BYTES = 4096
"""Initializers up to this size stay in a skeleton: shape inference may need their values."""


def opset(model: ModelProto | FunctionProto) -> int:
    """Version of the standard operator set that ``model`` imports; 1 where it names none."""
    return next((entry.version for entry in model.opset_import if entry.domain in DEFAULT_DOMAINS), 1)


def is_standard(node: NodeProto, *op_types: str) -> bool:
    """Whether ``node`` is one of ``op_types`` of the standard operator set."""
    return node.domain in DEFAULT_DOMAINS and node.op_type in op_types


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """The graphs in the attributes of ``node`` (branches of an If, body of a Loop)."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def walk_graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """``graph`` and every graph nested in it, outermost first."""
    yield graph
    for node in graph.node:
        for inner in subgraphs(node):
            yield from walk_graphs(inner)


def walk_nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """Every node of ``graph`` and of the graphs nested in it, each before those it holds."""
    for node in graph.node:
        yield node
        for inner in subgraphs(node):
            yield from walk_nodes(inner)


def captured(node: NodeProto) -> set[str]:
    """Names that the subgraphs of ``node`` take from the scope around it."""
    names: set[str] = set()
    for graph in subgraphs(node):
        own = {value.name for value in graph.input} | {value.name for value in graph.initializer}
        for inner in graph.node:
            names |= ({name for name in inner.input if name} | captured(inner)) - own
            own |= set(inner.output)
        names |= {value.name for value in graph.output} - own
    return names


def uses(graph: GraphProto) -> dict[str, int]:
    """How often each tensor of ``graph`` is read: by nodes, inside subgraphs, as a graph output."""
    counts: dict[str, int] = {}
    for node in graph.node:
        for name in [*node.input, *captured(node)]:
            counts[name] = counts.get(name, 0) + 1
    for value in graph.output:
        counts[value.name] = counts.get(value.name, 0) + 1
    return counts


def names(graph: GraphProto) -> set[str]:
    """Every tensor name in ``graph`` and the graphs nested in it, for choosing fresh ones."""
    taken: set[str] = set()
    for inner in walk_graphs(graph):
        taken |= {value.name for value in [*inner.input, *inner.output, *inner.initializer]}
        for node in inner.node:
            taken |= {*node.input, *node.output}
    return taken


def fresh(stem: str, taken: set[str]) -> str:
    """A name that starts with ``stem`` and is not in ``taken``; it is added there."""
    name, number = stem, 0
    while name in taken:
        number += 1
        name = f"{stem}_{number}"
    taken.add(name)
    return name


def rename_reads(graph: GraphProto, renamed: dict[str, str]) -> None:
    """Make every reader of the tensors in ``renamed`` read the new names instead, in place.

    Nested graphs are followed, except where they define the old name themselves. Graph outputs
    keep their names.
    """
    if not renamed:
        return
    for node in graph.node:
        for index, name in enumerate(node.input):
            if name in renamed:
                node.input[index] = renamed[name]
        for inner in subgraphs(node):
            own = {value.name for value in [*inner.input, *inner.initializer]}
            own |= {name for child in inner.node for name in child.output}
            visible = {old: new for old, new in renamed.items() if old not in own}
            rename_reads(inner, visible)
            for value in inner.output:
                if value.name in visible:
                    # A branch that only hands on an outer tensor: an output must be the branch's own.
                    inner.node.append(onnx.helper.make_node("Identity", [visible[value.name]], [value.name]))


def replace_nodes(graph: GraphProto, nodes: Iterable[NodeProto]) -> None:
    """Make ``nodes`` the node list of ``graph``, in place."""
    kept = list(nodes)
    del graph.node[:]
    graph.node.extend(kept)


def constants(graph: GraphProto) -> dict[str, TensorProto]:
    """Tensors of known value: initializers, and outputs of ``Constant`` nodes that hold a tensor."""
    known = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if is_standard(node, "Constant"):
            tensor = constant_value(node)
            if tensor is not None:
                known[node.output[0]] = tensor
    return known


def constant_value(node: NodeProto) -> TensorProto | None:
    """The tensor a ``Constant`` node holds; None for strings and sparse tensors."""
    attribute = node.attribute[0]
    match attribute.name:
        case "value":
            return attribute.t
        case "value_float":
            return numpy_helper.from_array(np.array(attribute.f, np.float32))
        case "value_floats":
            return numpy_helper.from_array(np.array(attribute.floats, np.float32))
        case "value_int":
            return numpy_helper.from_array(np.array(attribute.i, np.int64))
        case "value_ints":
            return numpy_helper.from_array(np.array(attribute.ints, np.int64))
    return None


def tensor_bytes(tensor: TensorProto) -> int:
    """Size of the tensor's data in bytes (sub-byte types rounded up)."""
    elements = int(np.prod(tensor.dims, dtype=np.int64)) if tensor.dims else 1
    if tensor.data_type in (TensorProto.STRING, TensorProto.UNDEFINED):
        return sum(map(len, tensor.string_data))
    bits = {TensorProto.INT4: 4, TensorProto.UINT4: 4, TensorProto.FLOAT4E2M1: 4}.get(tensor.data_type)
    if bits is None:
        bits = 8 * int(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)
    return (elements * bits + 7) // 8


def skeleton(model: ModelProto) -> ModelProto:
    """``model`` with its large initializers turned into graph inputs of the same type and shape.

    Shape inference and the checker see the same graph without hundreds of megabytes of weights.
    """
    light = ModelProto()
    for field, value in model.ListFields():
        if field.name != "graph":
            copy_field(light, field.name, value)
    for field, value in model.graph.ListFields():
        if field.name != "initializer":
            copy_field(light.graph, field.name, value)
    declared = {value.name for value in model.graph.input}
    for tensor in model.graph.initializer:
        if tensor_bytes(tensor) <= SMALL_TENSOR_BYTES:
            light.graph.initializer.append(tensor)
        elif tensor.name not in declared:
            light.graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            )
    return light


def copy_field(target: ModelProto | GraphProto, name: str, value: object) -> None:
    """Give a message's field a copy of ``value``, as ``ListFields`` gives it."""
    if hasattr(value, "extend") or hasattr(value, "append"):
        getattr(target, name).extend(value)
    elif hasattr(value, "CopyFrom"):
        getattr(target, name).CopyFrom(value)
    else:
        setattr(target, name, value)


def copy(model: ModelProto) -> ModelProto:
    """A deep copy of ``model``: passes never change the model they are given."""
    duplicate = ModelProto()
    duplicate.CopyFrom(model)
    return duplicate


def splice(
    body: GraphProto, inputs: Mapping[str, str], outputs: Sequence[str], taken: set[str]
) -> tuple[list[NodeProto], list[TensorProto]]:
    """A copy of the nodes and initializers of ``body``, to stand in the graph around it.

    Args:
        body: a branch, or the body of a loop.
        inputs: name of each of its inputs -> the tensor that takes its place.
        outputs: names that its outputs are to have outside, in order; "" for one not wanted.
        taken: names that are in use outside; those made here are added.
    """
    renamed = dict(inputs)
    results: list[NodeProto] = []
    produced = {name for node in body.node for name in node.output if name}
    for value, outer in zip(body.output, outputs, strict=True):
        if outer and value.name in produced and value.name not in renamed:
            renamed[value.name] = outer
    tensors = []
    for tensor in body.initializer:
        renamed[tensor.name] = fresh(tensor.name, taken)
        tensors.append(TensorProto.FromString(tensor.SerializeToString()))
        tensors[-1].name = renamed[tensor.name]
    for name in [name for node in body.node for name in node.output if name]:
        if name not in renamed:
            renamed[name] = fresh(name, taken)
    for node in body.node:
        duplicate = NodeProto.FromString(node.SerializeToString())
        _rename(duplicate, renamed)
        results.append(duplicate)
    for value, outer in zip(body.output, outputs, strict=True):
        inner = renamed.get(value.name, value.name)
        if outer and inner != outer:
            results.append(onnx.helper.make_node("Identity", [inner], [outer]))
    return results, tensors


def _rename(node: NodeProto, renamed: Mapping[str, str]) -> None:
    """Rename what ``node`` reads and makes, and what its subgraphs take from outside, in place."""
    for names_ in (node.input, node.output):
        for index, name in enumerate(names_):
            names_[index] = renamed.get(name, name)
    for graph in subgraphs(node):
        own = {value.name for value in [*graph.input, *graph.initializer]}
        own |= {name for inner in graph.node for name in inner.output}
        visible = {old: new for old, new in renamed.items() if old not in own}
        for inner in graph.node:
            _rename(inner, visible)
        for value in graph.output:
            value.name = visible.get(value.name, value.name)
