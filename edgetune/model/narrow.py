"""Lets NumPy arrays of bfloat16, 8-bit floats and 4-bit integers pass through ONNX Runtime.

Its Python interface knows no such arrays. Inputs and outputs of these types get a Cast from or to a
type it knows and that holds every value of theirs, so that nothing is rounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

from edgetune.model import graphs

_WIDER = {
    "BFLOAT16": TensorProto.FLOAT,
    "FLOAT8E4M3FN": TensorProto.FLOAT,
    "FLOAT8E4M3FNUZ": TensorProto.FLOAT,
    "FLOAT8E5M2": TensorProto.FLOAT,
    "FLOAT8E5M2FNUZ": TensorProto.FLOAT,
    "FLOAT8E8M0": TensorProto.FLOAT,
    "FLOAT4E2M1": TensorProto.FLOAT,
    "INT4": TensorProto.INT8,
    "UINT4": TensorProto.UINT8,
    "INT2": TensorProto.INT8,
    "UINT2": TensorProto.UINT8,
}
WIDER = {
    int(getattr(TensorProto, name)): int(wide) for name, wide in _WIDER.items() if hasattr(TensorProto, name)
}
"""ONNX element type -> the type it is passed as. Older versions of onnx lack the last of them."""

_SATURATING = {
    kind for name, kind in TensorProto.DataType.items() if name.startswith("FLOAT8E") and name != "FLOAT8E8M0"
}

Dtypes = dict[str, np.dtype[Any]]


def is_narrow(value: ValueInfoProto) -> bool:
    """Whether the value's type is none that ONNX Runtime exchanges with NumPy."""
    return value.type.tensor_type.elem_type in WIDER


def widen(model: ModelProto) -> tuple[ModelProto, Dtypes, Dtypes]:
    """A model with wide inputs and outputs, the types to cast inputs to, and those of the outputs.

    Names stay the same outside; the tensors inside get fresh ones. The model itself, and empty
    dictionaries, where it has no such types.
    """
    filled = {tensor.name for tensor in model.graph.initializer}
    ins = [value for value in model.graph.input if is_narrow(value) and value.name not in filled]
    outs = [value for value in model.graph.output if is_narrow(value)]
    if not ins and not outs:
        return model, {}, {}
    model = graphs.copy(model)
    taken = graphs.names(model.graph)
    before: list[NodeProto] = []
    after: list[NodeProto] = []
    renamed: dict[str, str] = {}
    wide_inputs, narrow_outputs = {}, {}
    for value in model.graph.input:
        if is_narrow(value) and value.name not in filled:
            kind = value.type.tensor_type.elem_type
            inner = renamed[value.name] = graphs.fresh(f"{value.name}_narrow", taken)
            # Infinity must stay: a cast to 8-bit floats would saturate by default.
            exact = {"saturate": 0} if kind in _SATURATING else {}
            before.append(onnx.helper.make_node("Cast", [value.name], [inner], to=kind, **exact))
            wide_inputs[value.name] = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(WIDER[kind]))
            value.type.tensor_type.elem_type = WIDER[kind]
    for value in model.graph.output:
        if is_narrow(value):
            kind = value.type.tensor_type.elem_type
            if value.name not in wide_inputs:  # else the wide input itself is the output
                renamed[value.name] = graphs.fresh(f"{value.name}_narrow", taken)
                after.append(
                    onnx.helper.make_node("Cast", [renamed[value.name]], [value.name], to=WIDER[kind])
                )
            narrow_outputs[value.name] = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind))
            value.type.tensor_type.elem_type = WIDER[kind]
    graphs.rename_reads(model.graph, renamed)
    for node in model.graph.node:
        for index, name in enumerate(node.output):
            node.output[index] = renamed.get(name, name)
    graphs.replace_nodes(model.graph, [*before, *model.graph.node, *after])
    return model, wide_inputs, narrow_outputs


def cast(arrays: Mapping[str, np.ndarray[Any, Any]], dtypes: Dtypes) -> dict[str, np.ndarray[Any, Any]]:
    """``arrays`` with those named in ``dtypes`` converted."""
    return {
        name: np.asarray(array).astype(dtypes[name]) if name in dtypes else array
        for name, array in arrays.items()
    }
