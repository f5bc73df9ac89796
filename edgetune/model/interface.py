"""Inputs and outputs of an ONNX graph as the file declares them, dimensions open or fixed."""

from __future__ import annotations

import re
from dataclasses import dataclass

import onnx
from onnx import GraphProto, ModelProto, ValueInfoProto

from edgetune.errors import UnsupportedModelError
from edgetune.records import TensorSpec

Dim = int | str | None
"""A fixed size, a symbol that is the same wherever it stands, or None: open and anonymous."""

_SYMBOL = re.compile(r"\w[\w.:/ -]*")


@dataclass(frozen=True)
class Value:
    """One input or output. ``dims`` None: not even the number of dimensions is known."""

    name: str
    dtype: str
    dims: tuple[Dim, ...] | None

    @property
    def fixed(self) -> bool:
        """Whether every dimension is a number."""
        return self.dims is not None and all(isinstance(dim, int) for dim in self.dims)

    def shape_text(self) -> str:
        """The dimensions for a person: ``[batch, 3, ?, ?]``."""
        if self.dims is None:
            return "[unknown number of dimensions]"
        return "[" + ", ".join("?" if dim is None else str(dim) for dim in self.dims) + "]"

    def spec(self) -> TensorSpec:
        """The record for a value whose dimensions are all fixed."""
        assert self.dims is not None
        return TensorSpec(self.name, self.dtype, tuple(int(dim) for dim in self.dims if dim is not None))


def inputs(model: ModelProto) -> tuple[Value, ...]:
    """What a caller must supply: the graph's inputs without those that an initializer fills.

    Raises:
        UnsupportedModelError: an input is a string tensor, a sequence, an optional or a map.
    """
    filled = {tensor.name for tensor in model.graph.initializer}
    filled |= {tensor.values.name for tensor in model.graph.sparse_initializer}
    return tuple(_value(value, "input") for value in model.graph.input if value.name not in filled)


def outputs(model: ModelProto) -> tuple[Value, ...]:
    """The graph's outputs, in order.

    Raises:
        UnsupportedModelError: an output is a string tensor, a sequence, an optional or a map.
    """
    return tuple(_value(value, "output") for value in model.graph.output)


def declared_outputs(model: ModelProto) -> tuple[Value, ...]:
    """The graph's outputs, in order; the dtype of what is no numeric tensor is its kind (``sequence``)."""
    values = []
    for value in model.graph.output:
        try:
            values.append(_value(value, "output"))
        except UnsupportedModelError:
            kind = str(value.type.WhichOneof("value")).removesuffix("_type")
            values.append(Value(value.name, "string" if kind == "tensor" else kind, None))
    return tuple(values)


def _value(value: ValueInfoProto, what: str) -> Value:
    kind = value.type.WhichOneof("value")
    tensor = value.type.tensor_type
    if kind is None and what == "output":
        return Value(value.name, "", None)
    if kind != "tensor_type" or tensor.elem_type in (onnx.TensorProto.STRING, onnx.TensorProto.UNDEFINED):
        named = {"tensor_type": "string or untyped tensor", None: "value without a type"}
        label = named.get(kind, str(kind).removesuffix("_type"))
        raise UnsupportedModelError(
            f"{what} {value.name!r} is a {label}; edgetune compiles models of numeric tensors only: "
            "cut this part off the model and run it beside the bundle"
        )
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
    return Value(value.name, dtype, dims_of(value))


def dims_of(value: ValueInfoProto) -> tuple[Dim, ...] | None:
    """Declared dimensions of a tensor value; None where it declares no shape."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return tuple(_dim(dim) for dim in tensor.shape.dim)


def _dim(dim: onnx.TensorShapeProto.Dimension) -> Dim:
    if dim.HasField("dim_value"):
        # Some exporters write -1 for "any".
        return int(dim.dim_value) if dim.dim_value >= 0 else None
    # "?" stands for several different unknown sizes: no symbol.
    return str(dim.dim_param) if _SYMBOL.fullmatch(dim.dim_param) else None


def set_dims(value: ValueInfoProto, dims: tuple[Dim, ...] | None) -> None:
    """Replace the declared dimensions of a tensor value, in place."""
    shape = value.type.tensor_type.shape
    value.type.tensor_type.ClearField("shape")
    if dims is None:
        return
    shape = value.type.tensor_type.shape
    shape.SetInParent()
    for dim in dims:
        entry = shape.dim.add()
        if isinstance(dim, int):
            entry.dim_value = dim
        elif dim is not None:
            entry.dim_param = dim


def signature(graph: GraphProto) -> tuple[tuple[str, int, tuple[Dim, ...] | None], ...]:
    """Names, types and dimensions of the inputs, then names and types of the outputs, for comparing."""
    ins = tuple((v.name, v.type.tensor_type.elem_type, dims_of(v)) for v in graph.input)
    outs = tuple((v.name, v.type.tensor_type.elem_type, None) for v in graph.output)
    return ins + outs
