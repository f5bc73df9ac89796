"""Bodies for operators that ONNX Runtime runs on GPUs alone, in operators of the standard.

Its tools leave them in files that were optimised for a GPU. Written out, a CPU can run such a file, and a
bundle of it can be compared with that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto

DOMAIN = "edgetune.bodies"
OLDEST_OPSET = 15
"""That of CastLike."""

_FIRST_WITH_FUNCTIONS = 8
"""The version of the file format that knows functions."""

_TO_FIRST, _TO_LAST = [0, 3, 1, 2], [0, 2, 3, 1]


def written_out(model: ModelProto) -> ModelProto:
    """``model`` with each such node calling a function of the model; itself where there is none to be written out."""
    opset = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 1)
    if opset < OLDEST_OPSET or not any(has_body(node) for node in _nodes(model.graph)):
        return model
    changed = ModelProto()
    changed.CopyFrom(model)
    for node in _nodes(changed.graph):
        nodes = _BODIES[node.domain, node.op_type](node, changed.graph) if has_body(node) else None
        if nodes is None:
            continue
        name = f"{node.op_type}_{len(changed.functions)}"
        inputs = ["x", "second", "third"][: len(node.input)]
        standard = onnx.helper.make_opsetid("", opset)
        changed.functions.append(
            FunctionProto(domain=DOMAIN, name=name, input=inputs, output=["y"], node=nodes)
        )
        changed.functions[-1].opset_import.append(standard)
        node.domain, node.op_type = DOMAIN, name
        del node.attribute[:]
    if len(changed.functions) == len(model.functions):
        return model
    changed.opset_import.append(onnx.helper.make_opsetid(DOMAIN, 1))
    changed.ir_version = max(changed.ir_version, _FIRST_WITH_FUNCTIONS)
    return changed


def has_body(node: NodeProto) -> bool:
    """Whether ``node`` is an operator that this module knows; not each of them can be written out."""
    return (node.domain, node.op_type) in _BODIES


def _nodes(graph: GraphProto) -> Iterator[NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _nodes(inner)


def _node(op_type: str, inputs: str, output: str, **attributes: object) -> NodeProto:
    return onnx.helper.make_node(op_type, inputs.split(), [output], **attributes)


def _group_norm(node: NodeProto, graph: GraphProto) -> list[NodeProto] | None:
    """GroupNorm of com.microsoft, in float32 whatever its types are, as ONNX Runtime's kernels compute it.

    Formula and attributes: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md.
    """
    given = {attribute.name: attribute.i for attribute in node.attribute if attribute.type == attribute.INT}
    epsilon = next((attribute.f for attribute in node.attribute if attribute.name == "epsilon"), 1e-5)
    groups, activation = given.get("groups", 0), given.get("activation")
    if len(node.input) != 3 or groups < 1 or activation not in (0, 1):
        return None
    last = given.get("channels_last", 1)
    wide = {"to": onnx.TensorProto.FLOAT}
    nodes = [
        _node("Cast", "x", "wide", **wide),
        _node("Transpose", "wide", "planes", perm=_TO_FIRST) if last else _node("Identity", "wide", "planes"),
        _node("Shape", "planes", "shape"),
        _node("Constant", "", "split", value_ints=[0, groups, -1]),
        _node("Reshape", "planes split", "grouped"),
        _node("Constant", "", "ones", value_floats=[1.0] * groups),
        _node("Constant", "", "zeros", value_floats=[0.0] * groups),
        _node("InstanceNormalization", "grouped ones zeros", "even", epsilon=epsilon),
        _node("Reshape", "even shape", "normal"),
        _node("Constant", "", "column", value_ints=[-1, 1, 1]),
    ]
    for name, scaled in (("second", "gamma"), ("third", "beta")):
        nodes += [
            _node("Cast", name, f"flat_{scaled}", **wide),
            _node("Reshape", f"flat_{scaled} column", scaled),
        ]
    nodes += [_node("Mul", "normal gamma", "scaled"), _node("Add", "scaled beta", "sum")]
    if activation:
        nodes += [_node("Sigmoid", "sum", "gate"), _node("Mul", "sum gate", "active")]
    made = "active" if activation else "sum"
    if last:
        nodes.append(_node("Transpose", made, "result", perm=_TO_LAST))
    return [*nodes, _node("CastLike", f"{'result' if last else made} x", "y")]


def _nhwc_conv(node: NodeProto, graph: GraphProto) -> list[NodeProto] | None:
    """NhwcConv of com.microsoft; None where shapes do not tell how its weights lie.

    The documentation has them as those of Conv, the tool that makes such nodes (onnxruntime.transformers,
    fusion_nhwc_conv.py) puts the channels last. A kernel as high and wide as it is deep fits both.
    """
    kernel = next(
        (list(attribute.ints) for attribute in node.attribute if attribute.name == "kernel_shape"), []
    )
    dims = _dims(node.input[1], graph) if len(node.input) in (2, 3) else []
    last, first = dims[1:3] == kernel, dims[2:4] == kernel
    if len(dims) != 4 or last == first:
        return None
    conv = _node("Conv", "planes weight" + " third" * (len(node.input) == 3), "found")
    conv.attribute.extend(node.attribute)
    return [
        _node("Transpose", "x", "planes", perm=_TO_FIRST),
        _node("Transpose", "second", "weight", perm=_TO_FIRST)
        if last
        else _node("Identity", "second", "weight"),
        conv,
        _node("Transpose", "found", "y", perm=_TO_LAST),
    ]


def _dims(name: str, graph: GraphProto) -> list[int]:
    """Sizes of an initializer, or of one transposed; none where it is something else."""
    perm = None
    for node in graph.node:
        if name in node.output and node.op_type == "Transpose" and node.input:
            name, perm = node.input[0], next((list(a.ints) for a in node.attribute if a.name == "perm"), [])
            break
    dims = next((list(tensor.dims) for tensor in graph.initializer if tensor.name == name), [])
    if perm is None:
        return dims
    return [dims[axis] for axis in perm] if sorted(perm) == list(range(len(dims))) else []


_BODIES: dict[tuple[str, str], Callable[[NodeProto, GraphProto], list[NodeProto] | None]] = {
    ("com.microsoft", "GroupNorm"): _group_norm,
    ("com.microsoft", "NhwcConv"): _nhwc_conv,
}
