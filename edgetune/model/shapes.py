"""Type and shape of every tensor of a model, written into its ``value_info``.

The standard's inference first; what it leaves open (operators of other domains, values it does not
propagate) is asked of ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from onnx import GraphProto, ModelProto, TypeProto, ValueInfoProto

from edgetune.errors import ModelError
from edgetune.model import graphs, interface
from edgetune.model.inference import INFERENCE_ERRORS, infer
from edgetune.model.session import Session


def annotate(model: ModelProto) -> ModelProto:
    """A copy of ``model`` with ``value_info`` and output shapes filled in, as far as they are known."""
    light = _standard_inference(graphs.skeleton(model))
    if _unknown(light.graph):
        _ask_onnxruntime(light)
    model = graphs.copy(model)
    model.graph.ClearField("value_info")
    if any(True for node in model.graph.node for _ in graphs.subgraphs(node)):
        # Inference writes into nested graphs, too.
        graphs.replace_nodes(model.graph, light.graph.node)
    produced = set(_names(model.graph))
    by_name = _values(light.graph)
    outputs = {value.name for value in model.graph.output}
    for name in sorted(produced - outputs):
        if name in by_name:
            model.graph.value_info.append(by_name[name])
    for value in model.graph.output:
        if value.name in by_name:
            value.CopyFrom(by_name[value.name])
    return model


def static_shapes(model: ModelProto) -> dict[str, tuple[int, ...] | None]:
    """Shape of every tensor of an annotated model, nested graphs included; None where a size is not known."""
    shapes: dict[str, tuple[int, ...] | None] = {}
    for graph in graphs.walk_graphs(model.graph):
        shapes |= {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
        for name in _names(graph):
            shapes.setdefault(name, None)
        for value in _all_values(graph):
            if _is_static(value):
                shapes[value.name] = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
    return shapes


def types(model: ModelProto) -> dict[str, TypeProto]:
    """Type of every tensor of the main graph, as far as the standard's inference knows it."""
    light = _standard_inference(graphs.skeleton(model))
    found = {value.name: value.type for value in _all_values(light.graph)}
    for tensor in model.graph.initializer:
        value = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
        found[tensor.name] = value.type
    return found


def element_types(model: ModelProto) -> dict[str, int]:
    """ONNX element type of every tensor of an annotated model's main graph, where it is known."""
    types = {tensor.name: int(tensor.data_type) for tensor in model.graph.initializer}
    for value in _all_values(model.graph):
        if value.type.tensor_type.elem_type:
            types[value.name] = int(value.type.tensor_type.elem_type)
    return types


def _names(graph: GraphProto) -> Iterator[str]:
    for node in graph.node:
        yield from (name for name in node.output if name)


def _all_values(graph: GraphProto) -> Iterator[ValueInfoProto]:
    yield from graph.value_info
    yield from graph.input
    yield from graph.output


def _values(graph: GraphProto) -> dict[str, ValueInfoProto]:
    return {value.name: value for value in _all_values(graph)}


def _unknown(graph: GraphProto) -> set[str]:
    """Tensors made by nodes of ``graph`` whose type or shape is not known to the last number."""
    values = _values(graph)
    return {name for name in _names(graph) if name not in values or not _is_static(values[name])}


def _is_static(value: ValueInfoProto) -> bool:
    dims = interface.dims_of(value)
    return dims is not None and all(isinstance(dim, int) for dim in dims)


def _standard_inference(light: ModelProto) -> ModelProto:
    if not _has_required_inputs(light):
        return light
    try:
        return infer(light)
    except INFERENCE_ERRORS:
        return light


def _has_required_inputs(model: ModelProto) -> bool:
    """Whether no node lacks an input that the standard requires: onnx's inference dies of some that do."""
    versions = {entry.domain: entry.version for entry in model.opset_import}
    for node in graphs.walk_nodes(model.graph):
        try:
            schema = onnx.defs.get_schema(node.op_type, versions.get(node.domain, 1), node.domain)
        except onnx.defs.SchemaError:
            continue
        required = [i for i in schema.inputs if i.option == onnx.defs.OpSchema.FormalParameterOption.Single]
        given = list(node.input)[: len(required)]
        if len(given) < len(required) or not all(given):
            return False
    return True


def _ask_onnxruntime(light: ModelProto) -> None:
    """Fill gaps of ``light`` in place with what ONNX Runtime infers when it loads the model."""
    probe = graphs.copy(light)
    asked = {value.name for value in probe.graph.output}
    probe.graph.ClearField("value_info")
    for name in dict.fromkeys(_names(light.graph)):
        if name not in asked:
            probe.graph.output.append(ValueInfoProto(name=name))
    try:
        found = Session(probe, optimize=False).declared_outputs()
    except ModelError:
        return
    existing = _values(light.graph)
    for name in _unknown(light.graph):
        type_name, dims = found.get(name, ("", ()))
        if type_name not in _ELEMENT_TYPES:
            continue
        value = onnx.helper.make_tensor_value_info(name, _ELEMENT_TYPES[type_name], list(dims))
        if name in existing:
            existing[name].CopyFrom(value)
        else:
            light.graph.value_info.append(value)


_ELEMENT_TYPES = {
    f"tensor({name})": getattr(onnx.TensorProto, upper)
    for name, upper in (
        [(t, t.upper()) for t in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")]
        + [(t, t.upper()) for t in ("bool", "float", "double", "float16", "bfloat16")]
    )
}
"""ONNX Runtime's names of types -> ONNX element types."""
