"""Tensors of 8- and 4-bit floats and of 4- and 2-bit integers, carried through the compiler as bytes.

TVM computes wrongly with most of these types, or packs them as no other runtime does. Here an integer is held by an
8-bit one, and a float by its code, a byte; only the operators that convert from and to such types look at the code,
operators that move elements move bytes, and every other operator is refused.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from edgetune.dtypes import BFLOAT16, BY_ONNX_NAME, container, held
from edgetune.errors import UnsupportedModelError

CONTAINERS = {
    TensorProto.DataType.Value(onnx_name): onnx.helper.np_dtype_to_tensor_dtype(np.dtype(container(name)))
    for onnx_name, name in BY_ONNX_NAME.items()
    if name != BFLOAT16 and hasattr(TensorProto, onnx_name)
}
"""ONNX element type -> the type that holds it. Older versions of onnx lack the last of them."""

CAST = "edgetune.Cast"
"""Cast from or to such a type: attributes ``source`` and ``target`` name it, empty for other types."""

_MOVERS = frozenset(
    {
        "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "Reshape",
        "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze",
    }
)  # fmt: skip


def hold_in_bytes(model: ModelProto) -> None:
    """Rewrite the tensors of such types, and the operators that read or make them, in place.

    Raises:
        UnsupportedModelError: an operator computes with such a type.
    """
    graph = model.graph
    types = {tensor.name: int(tensor.data_type) for tensor in graph.initializer}
    for value in (*graph.value_info, *graph.input, *graph.output):
        types[value.name] = int(value.type.tensor_type.elem_type)
    if not any(kind in CONTAINERS for kind in types.values()):
        return
    for node in graph.node:
        _rewrite(node, types)
    for tensor in graph.initializer:
        if tensor.data_type in CONTAINERS:
            _hold(tensor)
    for value in (*graph.value_info, *graph.input, *graph.output):
        kind = value.type.tensor_type.elem_type
        if kind in CONTAINERS:
            value.type.tensor_type.elem_type = CONTAINERS[kind]


def _hold(tensor: TensorProto) -> None:
    tensor.CopyFrom(numpy_helper.from_array(held(numpy_helper.to_array(tensor)), tensor.name))


def _rewrite(node: NodeProto, types: dict[str, int]) -> None:
    used = [types.get(name, 0) for name in [*node.input, *node.output] if name]
    narrow = [kind for kind in used if kind in CONTAINERS]
    if not narrow or node.op_type in _MOVERS:
        return
    if node.op_type == "Constant":
        _hold(node.attribute[0].t)
    elif node.op_type in ("Cast", "CastLike"):
        _name(node, "source", types.get(node.input[0], 0))
        target = types.get(node.output[0], 0)
        _name(node, "target", target)
        if node.op_type == "CastLike":
            node.attribute.append(onnx.helper.make_attribute("to", target))
            del node.input[1:]
        node.op_type = CAST
    elif node.op_type in ("QuantizeLinear", "DequantizeLinear"):
        side = node.output[0] if node.op_type == "QuantizeLinear" else node.input[0]
        _name(node, "narrow", types.get(side, 0))
    else:
        kind = TensorProto.DataType.Name(narrow[0]).lower()
        raise UnsupportedModelError(
            f"{node.op_type} is not implemented for {kind}: cast to float32 before it"
        )


def _name(node: NodeProto, attribute: str, kind: int) -> None:
    name = onnx.helper.tensor_dtype_to_np_dtype(kind).name if kind in CONTAINERS else ""
    node.attribute.append(onnx.helper.make_attribute(attribute, name))
