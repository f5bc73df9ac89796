"""Replaces calls of functions by their bodies: onnx's own inliner does it.

Before: ``y = mine.Block(x)`` with ``Block`` among the model's functions, or ``y = Celu(x)``, which the
standard defines by other operators. After: those other operators. Of the standard's functions only
those are inlined that cannot be imported as they are, and of com.microsoft those that ONNX Runtime
runs on GPUs alone (:mod:`edgetune.bodies`).
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import FunctionProto, ModelProto, NodeProto, TypeProto
from onnx.inliner import inline_local_functions

from edgetune.bodies import written_out
from edgetune.model import graphs, shapes
from edgetune.model.pipeline import PassResult

INLINED = frozenset(
    {
        "Attention",
        "BlackmanWindow",
        "CausalConvWithState",
        "Celu",
        "CenterCropPad",
        "HammingWindow",
        "HannWindow",
        "LinearAttention",
        "NegativeLogLikelihoodLoss",
        "RotaryEmbedding",
        "SequenceMap",
        "SoftmaxCrossEntropyLoss",
        "SwiGLU",
        "Swish",
    }
)
"""Operators of the standard with a body, which TVM's importer lacks (or means differently)."""

_DOMAIN = "edgetune.inlined"
_MAX_DEPTH = 5
"""Bodies may call functions in turn (SoftmaxCrossEntropyLoss does), never themselves."""


def inline_functions(model: ModelProto) -> PassResult:
    """Inline the model's own functions, and operators of :data:`INLINED`, as long as there are any."""
    result = model
    for _ in range(_MAX_DEPTH):
        result = written_out(result)
        called = any(map(_is_inlined, graphs.walk_nodes(result.graph)))
        if not called and not result.functions:
            break
        result = graphs.copy(result)
        if called and not _make_local(result):
            break
        result = inline_local_functions(result, convert_version=True)
        result.ClearField("functions")
        result.graph.ClearField("value_info")
        _drop_unused_domains(result)
    return PassResult(result, result is not model and result != model)


def _is_inlined(node: NodeProto) -> bool:
    return node.domain in graphs.DEFAULT_DOMAINS and node.op_type in INLINED


def _make_local(model: ModelProto) -> bool:
    """Turn each call of the standard's functions into one of a function of the model, in place.

    One function for each call: a body may depend on the types and attributes it is called with.
    Returns whether there was any.
    """
    opset = graphs.opset(model)
    types = shapes.types(model)
    count = 0
    for node in graphs.walk_nodes(model.graph):
        if not _is_inlined(node):
            continue
        _write_defaults(node, opset)
        body = _body(node, opset, types)
        if body is None:
            continue
        body.domain, body.name = _DOMAIN, f"{node.op_type}_{count}"
        _shorten(body, node)
        count += 1
        model.functions.append(body)
        node.domain, node.op_type = body.domain, body.name
    if count:
        model.opset_import.append(onnx.helper.make_opsetid(_DOMAIN, 1))
    return count > 0


def _body(node: NodeProto, opset: int, types: Mapping[str, TypeProto]) -> FunctionProto | None:
    """The standard's definition of ``node``, as of ``opset``; None where it gives none."""
    schema = onnx.defs.get_schema(node.op_type, opset)
    if fixed := [version for version in schema.function_opset_versions if version <= opset]:
        return FunctionProto.FromString(schema.get_function_with_opset_version(max(fixed)))
    given = [types.get(name, TypeProto()).SerializeToString() for name in node.input]
    if varying := [
        version for version in schema.context_dependent_function_opset_versions if version <= opset
    ]:
        data = schema.get_context_dependent_function_with_opset_version(
            max(varying), node.SerializeToString(), given
        )
        return FunctionProto.FromString(data) if data else None
    return None


def _shorten(body: FunctionProto, node: NodeProto) -> None:
    """Let ``body`` take and give what ``node`` does, in place: trailing optional ones may be left out."""
    for formal, actual in ((body.input, node.input), (body.output, node.output)):
        del formal[len(actual) :]


def _write_defaults(node: NodeProto, opset: int) -> None:
    """Write the defaults of left-out attributes into the call: a body refers to attributes by name."""
    given = {attribute.name for attribute in node.attribute}
    for name, attribute in onnx.defs.get_schema(node.op_type, opset).attributes.items():
        if name not in given and attribute.default_value.name:
            node.attribute.append(attribute.default_value)


def _drop_unused_domains(model: ModelProto) -> None:
    used = {node.domain for node in graphs.walk_nodes(model.graph)}
    kept = [e for e in model.opset_import if e.domain in graphs.DEFAULT_DOMAINS or e.domain in used]
    del model.opset_import[:]
    model.opset_import.extend(kept)
