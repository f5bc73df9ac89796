"""Parameters and floating-point operations of one inference, counted on the ONNX graph.

The convention is the usual one: a multiply-accumulate is two operations, a comparison, a
transcendental function or any other element-wise operation is one for each output element, and
moving data (Reshape, Transpose, Concat, Gather, Slice, ...) is none. Quantised operators count like
their float twins. An If counts its dearer branch, the body of a Loop or Scan counts once. Nodes
whose shapes are not known count nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from onnx import AttributeProto, ModelProto, NodeProto, TensorProto

from edgetune.model import graphs, shapes

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape | None]

_NOT_WEIGHTS = {TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING}

_FREE = {
    "Cast", "CastLike", "Concat", "Constant", "ConstantOfShape", "DepthToSpace", "Dropout", "Expand",
    "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "Pad", "Range", "Reshape",
    "ScatterElements", "ScatterND", "Shape", "Size", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile",
    "Transpose", "Unsqueeze", "Where",
}  # fmt: skip
"""Operators that only move, repeat or retype data."""

_PER_OUTPUT = {
    "Softmax": 5, "LogSoftmax": 5, "Softplus": 2, "Sigmoid": 3, "HardSigmoid": 3, "HardSwish": 4, "Elu": 3,
    "Selu": 4, "Gelu": 5, "Mish": 4, "BatchNormalization": 2, "InstanceNormalization": 7,
    "LayerNormalization": 7, "GroupNormalization": 7, "SkipLayerNormalization": 8, "RMSNormalization": 5,
    "Clip": 2, "QuantizeLinear": 3, "DequantizeLinear": 2,
}  # fmt: skip
"""Operations for each element of the first output, where they are not one."""

_PER_INPUT = {"GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool", "ArgMax", "ArgMin", "CumSum", "TopK"}
"""One operation for each element of the first input; so do all ``Reduce*``."""


def count_params(model: ModelProto) -> int:
    """Elements of all weights: constants, those of 64-bit integers (shapes, indices) left out."""
    return sum(
        math.prod(tensor.dims)
        for graph in graphs.walk_graphs(model.graph)
        for tensor in graphs.constants(graph).values()
        if tensor.data_type not in _NOT_WEIGHTS
    )


def count_flops(model: ModelProto) -> int:
    """Floating-point operations of one inference of an annotated model (see ``shapes.annotate``)."""
    known = shapes.static_shapes(model)
    return sum(node_flops(node, known) for node in model.graph.node)


def node_flops(node: NodeProto, known: Shapes) -> int:
    """Operations of one node, given the shapes of the tensors it reads and writes."""
    inner = [sum(node_flops(child, known) for child in graph.node) for graph in graphs.subgraphs(node)]
    if inner:
        return max(inner)
    if node.op_type in _FREE:
        return 0
    output = known.get(node.output[0]) if node.output else None
    if output is None:
        return 0
    counter = _COUNTERS.get(node.op_type)
    if counter is not None:
        try:
            return counter(node, known, output)
        except (KeyError, IndexError, TypeError):
            return 0  # malformed or of unknown shape: nothing to count
    if node.op_type in _PER_INPUT or node.op_type.startswith("Reduce"):
        return math.prod(_shape(node, known, 0))
    return _PER_OUTPUT.get(node.op_type, max(1, len(node.input) - 1)) * math.prod(output)


def _shape(node: NodeProto, known: Shapes, index: int) -> Shape:
    shape = known.get(node.input[index]) if index < len(node.input) else None
    return () if shape is None else shape


def _attribute(node: NodeProto, name: str, default: int | list[int]) -> int | list[int]:
    for attribute in node.attribute:
        if attribute.name == name:
            return attribute.i if attribute.type == AttributeProto.INT else list(attribute.ints)
    return default


def _conv(node: NodeProto, known: Shapes, output: Shape) -> int:
    quantized = node.op_type == "QLinearConv"
    weight = _shape(node, known, 3 if quantized else 1)
    bias = (8 if quantized else 2) < len(node.input) and node.op_type != "ConvInteger"
    # Weight: output channels x input channels of a group x kernel.
    return math.prod(output) * (2 * math.prod(weight[1:]) + bias)


def _conv_transpose(node: NodeProto, known: Shapes, output: Shape) -> int:
    weight = _shape(node, known, 1)
    bias = math.prod(output) if len(node.input) > 2 else 0
    return 2 * math.prod(_shape(node, known, 0)) * math.prod(weight[1:]) + bias


def _matmul(node: NodeProto, known: Shapes, output: Shape) -> int:
    return 2 * math.prod(output) * _shape(node, known, 0)[-1]


def _gemm(node: NodeProto, known: Shapes, output: Shape) -> int:
    a = _shape(node, known, 0)
    inner = a[0] if _attribute(node, "transA", 0) else a[1]
    bias = math.prod(output) if node.op_type == "Gemm" and len(node.input) > 2 else 0
    return 2 * math.prod(output) * inner + bias


def _pool(node: NodeProto, known: Shapes, output: Shape) -> int:
    kernel = _attribute(node, "kernel_shape", [])
    return math.prod(output) * (math.prod(kernel) if isinstance(kernel, list) else 1)


def _recurrent(gates: int) -> Callable[[NodeProto, Shapes, Shape], int]:
    def count(node: NodeProto, known: Shapes, output: Shape) -> int:
        x, recurrence = _shape(node, known, 0), _shape(node, known, 2)
        directions, hidden = recurrence[0], recurrence[2]
        steps = x[0] * x[1]
        return steps * directions * gates * hidden * (2 * (x[2] + hidden) + 5)

    return count


def _lrn(node: NodeProto, known: Shapes, output: Shape) -> int:
    size = _attribute(node, "size", 1)
    return math.prod(output) * (2 * (size if isinstance(size, int) else 1) + 3)


def _resize(node: NodeProto, known: Shapes, output: Shape) -> int:
    mode = next((a.s for a in node.attribute if a.name == "mode"), b"nearest")
    changed = sum(a != b for a, b in zip(_shape(node, known, 0), output, strict=False))
    taps = {b"nearest": 0, b"linear": 2, b"cubic": 4}.get(mode, 0)
    return math.prod(output) * 2 * taps**changed if taps else 0


def _einsum(node: NodeProto, known: Shapes, output: Shape) -> int:
    equation = next(a.s.decode() for a in node.attribute if a.name == "equation").replace(" ", "")
    terms = equation.split("->")[0].split(",")
    sizes: dict[str, int] = {}
    for index, term in enumerate(terms):
        if "." in term:
            return 2 * math.prod(output)
        sizes.update(zip(term, _shape(node, known, index), strict=True))
    return max(1, len(terms)) * math.prod(sizes.values())


_COUNTERS: dict[str, Callable[[NodeProto, Shapes, Shape], int]] = {
    "Conv": _conv,
    "QLinearConv": _conv,
    "ConvInteger": _conv,
    "FusedConv": _conv,
    "ConvTranspose": _conv_transpose,
    "MatMul": _matmul,
    "MatMulInteger": _matmul,
    "QLinearMatMul": _matmul,
    "FusedMatMul": _matmul,
    "Gemm": _gemm,
    "QGemm": _gemm,
    "MaxPool": _pool,
    "AveragePool": _pool,
    "LpPool": _pool,
    "LRN": _lrn,
    "Resize": _resize,
    "Upsample": _resize,
    "Einsum": _einsum,
    "LSTM": _recurrent(4),
    "GRU": _recurrent(3),
    "RNN": _recurrent(1),
}
