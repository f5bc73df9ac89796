"""Writes out BatchNormalization in training mode, which normalises with the batch's own statistics.

Before: ``y, mean, var = BatchNormalization <training_mode = 1> (x, scale, bias, m, v)``. After:
``y = (x - E[x]) / sqrt(Var[x] + epsilon) * scale + bias`` and the running statistics
``m * momentum + E[x] * (1 - momentum)``, likewise for ``v``; statistics over all axes but the second,
``Var`` being the population's (the standard, BatchNormalization-14). Using the stored statistics
instead would give other values than the model's.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from edgetune.model import graphs, shapes
from edgetune.model.pipeline import PassResult, unchanged

_FIRST_WITH_TRAINING_MODE = 14
_FIRST_WITH_AXES_INPUT = 18  # of ReduceMean
_COMPUTED_IN = {TensorProto.FLOAT: np.float32, TensorProto.DOUBLE: np.float64}


def decompose_batch_norm(model: ModelProto) -> PassResult:
    """Replace training-mode BatchNormalization of the main graph by elementary operators."""
    if graphs.opset(model) < _FIRST_WITH_TRAINING_MODE or not any(map(_trains, model.graph.node)):
        return unchanged(model)
    annotated = shapes.annotate(model)
    sizes, types = shapes.static_shapes(annotated), shapes.element_types(annotated)
    model = graphs.copy(model)
    taken = graphs.names(model.graph)
    nodes: list[NodeProto] = []
    changed = False
    for node in model.graph.node:
        shape, kind = (
            sizes.get(node.input[0]) if node.input else None,
            types.get(node.input[0]) if node.input else None,
        )
        if not _trains(node) or shape is None or kind not in _COMPUTED_IN:
            nodes.append(node)
            continue
        writer = _Writer(model, taken, len(shape), _COMPUTED_IN[kind])
        nodes += writer.write(node)
        changed = True
    if not changed:
        return unchanged(model)
    graphs.replace_nodes(model.graph, nodes)
    return PassResult(model, True)


def _trains(node: NodeProto) -> bool:
    return graphs.is_standard(node, "BatchNormalization") and any(
        a.name == "training_mode" and a.i for a in node.attribute
    )


class _Writer:
    """Writes the nodes of one BatchNormalization."""

    def __init__(self, model: ModelProto, taken: set[str], rank: int, dtype: type) -> None:
        self.model = model
        self.taken = taken
        self.rank = rank
        self.dtype = dtype
        self.axes = [axis for axis in range(rank) if axis != 1]
        self.nodes: list[NodeProto] = []

    def emit(self, op_type: str, inputs: list[str], output: str = "", **attributes: object) -> str:
        name = output or graphs.fresh(f"bn_{op_type.lower()}", self.taken)
        self.nodes.append(onnx.helper.make_node(op_type, inputs, [name], **attributes))
        return name

    def constant(self, value: object, dtype: type) -> str:
        name = graphs.fresh("bn_constant", self.taken)
        self.model.graph.initializer.append(numpy_helper.from_array(np.array(value, dtype), name))
        return name

    def mean(self, x: str) -> str:
        """Over all axes but the second, which is all that is left: shape [C]."""
        if graphs.opset(self.model) >= _FIRST_WITH_AXES_INPUT:
            return self.emit("ReduceMean", [x, self.constant(self.axes, np.int64)], keepdims=0)
        return self.emit("ReduceMean", [x], axes=self.axes, keepdims=0)

    def spread(self, vector: str) -> str:
        """``[C]`` as ``[1, C, 1, ...]``."""
        shape = [1, -1] + [1] * (self.rank - 2)
        return self.emit("Reshape", [vector, self.constant(shape, np.int64)])

    def write(self, node: NodeProto) -> list[NodeProto]:
        attributes = {a.name: a.f for a in node.attribute}
        epsilon, momentum = attributes.get("epsilon", 1e-5), attributes.get("momentum", 0.9)
        x, scale, bias, running_mean, running_var = node.input
        mean = self.mean(x)
        centred = self.emit("Sub", [x, self.spread(mean)])
        variance = self.mean(self.emit("Mul", [centred, centred]))
        deviation = self.emit("Sqrt", [self.emit("Add", [variance, self.constant(epsilon, self.dtype)])])
        normalised = self.emit("Div", [centred, self.spread(deviation)])
        scaled = self.emit("Mul", [normalised, self.spread(scale)])
        self.emit("Add", [scaled, self.spread(bias)], node.output[0])
        statistics = zip(node.output[1:3], (running_mean, running_var), (mean, variance), strict=False)
        for output, running, current in statistics:
            if output:
                kept = self.emit("Mul", [running, self.constant(momentum, self.dtype)])
                new = self.emit("Mul", [current, self.constant(1 - momentum, self.dtype)])
                self.emit("Add", [kept, new], output)
        return self.nodes
