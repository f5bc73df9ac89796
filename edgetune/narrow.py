"""Lets NumPy arrays of bfloat16, 8-bit floats and 4-bit integers pass through ONNX Runtime.

Its Python interface knows no such arrays. Inputs and outputs of these types get a Cast from or to a
type it knows and that holds every value of theirs, so that nothing is rounded. Operators that it
runs on GPUs alone are written out (:mod:`edgetune.bodies`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

from edgetune.bodies import written_out
from edgetune.dtypes import BY_ONNX_NAME, wider

WIDER = {
    TensorProto.DataType.Value(onnx_name): onnx.helper.np_dtype_to_tensor_dtype(np.dtype(wider(name)))
    for onnx_name, name in BY_ONNX_NAME.items()
    if hasattr(TensorProto, onnx_name)
}
"""ONNX element type -> the type it is passed as. Older versions of onnx lack the last of them."""

_SATURATING = {
    kind for name, kind in TensorProto.DataType.items() if name.startswith("FLOAT8E") and name != "FLOAT8E8M0"
}

Arrays = dict[str, np.ndarray[Any, Any]]


def is_narrow(value: ValueInfoProto) -> bool:
    """Whether the value's type is none that ONNX Runtime exchanges with NumPy."""
    return value.type.tensor_type.elem_type in WIDER


@dataclass(frozen=True)
class Widened:
    """A model that ONNX Runtime exchanges NumPy arrays with, in place of another one.

    Attributes:
        original: the other one.
        model: with wide inputs and outputs, beside the narrow tensors and under other names.
        inputs, outputs: narrow name -> the wide one.
        wide, narrow: the types to cast inputs to, and outputs back to, by their narrow names.
    """

    original: ModelProto
    model: ModelProto
    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    wide: Mapping[str, np.dtype[Any]] = field(default_factory=dict)
    narrow: Mapping[str, np.dtype[Any]] = field(default_factory=dict)

    def feed(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> Arrays:
        """Inputs by the names, and of the types, that ``model`` has."""
        return {
            self.inputs.get(name, name): np.asarray(array).astype(self.wide[name])
            if name in self.wide
            else array
            for name, array in arrays.items()
        }

    def names(self, outputs: Sequence[str]) -> list[str]:
        """What ``model`` calls these outputs."""
        return [self.outputs.get(name, name) for name in outputs]

    def result(self, outputs: Sequence[str], values: Sequence[Any]) -> Arrays:
        """Values of ``model``'s outputs under the names, and of the types, of the original model."""
        return {
            name: np.asarray(value).astype(self.narrow[name]) if name in self.narrow else value
            for name, value in zip(outputs, values, strict=True)
        }


def widen(model: ModelProto) -> Widened:
    """``model`` with a Cast at every input and output of such a type; itself where nothing is to be changed."""
    written = written_out(model)
    filled = {tensor.name for tensor in model.graph.initializer}
    ins = [value for value in model.graph.input if is_narrow(value) and value.name not in filled]
    outs = [value for value in model.graph.output if is_narrow(value)]
    if not ins and not outs:
        return Widened(model, written)
    changed = ModelProto()
    changed.CopyFrom(written)
    kinds = {value.name: value.type.tensor_type.elem_type for value in (*ins, *outs)}
    inputs = {value.name: f"edgetune.wide.input.{value.name}" for value in ins}
    outputs = {value.name: f"edgetune.wide.output.{value.name}" for value in outs}
    before = [_cast(wide, name, kinds[name]) for name, wide in inputs.items()]
    after = [_cast(name, wide, WIDER[kinds[name]]) for name, wide in outputs.items()]
    for values, renamed in ((changed.graph.input, inputs), (changed.graph.output, outputs)):
        for value in values:
            if value.name in renamed:
                value.type.tensor_type.elem_type = WIDER[kinds[value.name]]
                value.name = renamed[value.name]
    # So that ONNX Runtime still compares what is declared with what is made.
    changed.graph.value_info.extend({value.name: value for value in (*ins, *outs)}.values())
    nodes = [*before, *changed.graph.node, *after]
    del changed.graph.node[:]
    changed.graph.node.extend(nodes)
    return Widened(
        model,
        changed,
        inputs,
        outputs,
        {name: np.dtype(onnx.helper.tensor_dtype_to_np_dtype(WIDER[kinds[name]])) for name in inputs},
        {name: np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kinds[name])) for name in outputs},
    )


def _cast(source: str, target: str, kind: int) -> NodeProto:
    # Infinity must stay: a cast to 8-bit floats would saturate by default.
    exact = {"saturate": 0} if kind in _SATURATING else {}
    return onnx.helper.make_node("Cast", [source], [target], to=kind, **exact)
