"""The standard's inference of types and shapes, kept from what makes it run without end.

With ``data_prop`` onnx follows the values of short lists through the graph: shapes, mostly. It holds any list so, at
dozens of bytes an element, and its Slice walks with the step until it is past the end, in 32 bits. A graph of some
hundred bytes (a list joined to itself thirty times, a step of 2**63) then takes all memory or ends the process.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import onnx
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from edgetune.model import graphs, interface

MOST_FOLLOWED = 1 << 16
"""Elements of a list whose values are followed. Shapes have up to some dozens, tables of a vocabulary are weights."""

_LONGEST_STEP = 1 << 30

INFERENCE_ERRORS = (onnx.shape_inference.InferenceError, ValueError, RuntimeError, MemoryError)
"""What :func:`infer` raises where it cannot follow a model."""


def infer(model: ModelProto, *, strict: bool = False) -> ModelProto:
    """``model`` with the types and shapes that follow from the standard, and from values where those are harmless.

    Raises:
        INFERENCE_ERRORS: the model contradicts itself (with ``strict``), or onnx fails on it.
    """
    plain = onnx.shape_inference.infer_shapes(model, strict_mode=strict)
    if not _harmless(plain):
        return plain
    return onnx.shape_inference.infer_shapes(model, strict_mode=strict, data_prop=True)


def _harmless(model: ModelProto) -> bool:
    """Whether the values of a model's lists can be followed; ``model`` knows the shapes that need none."""
    parts = list(_parts(model))
    known: dict[str, TensorProto] = {}
    shapes: dict[str, tuple[int | str | None, ...]] = {}
    for part in parts:
        known |= _constants(part)
        shapes |= _shapes(part)
    shapes |= {name: tuple(tensor.dims) for name, tensor in known.items()}
    fixed = {name: [dim for dim in dims if isinstance(dim, int)] for name, dims in shapes.items()}
    lengths = {name: math.prod(dims) for name, dims in fixed.items() if len(dims) == len(shapes[name])}
    for node in (node for part in parts for node in part.node):
        if graphs.is_standard(node, "Slice") and not _short_steps(node, known):
            return False
        length = _length(node, lengths)
        is_list = len(shapes.get(node.output[0], ())) < 2 if node.output else False
        if graphs.is_standard(node, "Concat") and is_list and length > MOST_FOLLOWED:
            return False
        for name in node.output:
            lengths.setdefault(name, length)
    return True


def _parts(model: ModelProto) -> Iterator[GraphProto | FunctionProto]:
    """Everything that holds nodes."""
    yield from graphs.walk_graphs(model.graph)
    for function in model.functions:
        yield function
        for node in function.node:
            for inner in graphs.subgraphs(node):
                yield from graphs.walk_graphs(inner)


def _shapes(part: GraphProto | FunctionProto) -> dict[str, tuple[int | str | None, ...]]:
    """What is declared or inferred in ``part``, where the number of dimensions is known."""
    values = (*part.value_info, *((*part.input, *part.output) if isinstance(part, GraphProto) else ()))
    found = {value.name: interface.dims_of(value) for value in values}
    return {name: dims for name, dims in found.items() if dims is not None}


def _constants(part: GraphProto | FunctionProto) -> dict[str, TensorProto]:
    if isinstance(part, GraphProto):
        return graphs.constants(part)
    return {
        node.output[0]: tensor
        for node in part.node
        if graphs.is_standard(node, "Constant") and (tensor := graphs.constant_value(node)) is not None
    }


def _length(node: NodeProto, lengths: Mapping[str, int]) -> int:
    """No list that ``node`` makes of known ones is longer."""
    read = [lengths.get(name, 1) for name in node.input if name]
    return sum(read) if node.op_type == "Concat" else max(read, default=1)


def _short_steps(node: NodeProto, known: Mapping[str, TensorProto]) -> bool:
    """Whether the steps of a Slice are known and none is so long that adding it overflows 32 bits."""
    if len(node.input) < 5 or not node.input[4]:
        return True
    tensor = known.get(node.input[4])
    if tensor is None or tensor.data_type not in (TensorProto.INT32, TensorProto.INT64):
        return False
    steps = numpy_helper.to_array(tensor)
    return bool(((steps > -_LONGEST_STEP) & (steps < _LONGEST_STEP)).all())
