"""Gives a network whose weights are constants random ones.

The networks that ``onnx`` carries keep only the shape of each weight: every element is 0.02 or so.
Every channel then computes the same, the outputs hardly depend on the inputs, and equal tensors
share memory. Neither values nor times of such a model mean much. With seeded random weights of the
usual scale (He et al. 2015) the same network has outputs worth comparing; the last layer is scaled
so that a softmax after it does not saturate.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, numpy_helper

from edgetune.model import graphs, interface
from edgetune.model.reference import random_inputs
from edgetune.model.session import Session

SEED = 2015
_MATRIX_INPUT = {"Conv": 1, "Gemm": 1, "MatMul": 1, "ConvTranspose": 1}
_POSITIVE_INPUTS = {"BatchNormalization": (1, 4), "Mul": (0, 1)}
"""Scales and variances: around one, above zero."""


def randomize_weights(model: bytes, seed: int = SEED) -> bytes:
    """``model`` with each ``ConstantOfShape`` of a constant shape replaced by random weights.

    The result is the same for the same seed.
    """
    proto = ModelProto.FromString(model)
    graph = proto.graph
    known = graphs.constants(graph)
    rng = np.random.default_rng(seed)
    kept: list[NodeProto] = []
    taken: set[str] = set()
    for node in graph.node:
        if graphs.is_standard(node, "ConstantOfShape") and node.input[0] in known:
            shape = tuple(int(size) for size in numpy_helper.to_array(known[node.input[0]]))
            weights = _draw(graph, node.output[0], shape, rng)
            graph.initializer.append(numpy_helper.from_array(weights, node.output[0]))
            taken.add(node.input[0])
        else:
            kept.append(node)
    graphs.replace_nodes(graph, kept)
    _drop_unused(graph, taken)
    proto.ir_version = max(proto.ir_version, 4)
    _scale_logits(proto)
    return bytes(proto.SerializeToString(deterministic=True))


def _draw(
    graph: GraphProto, name: str, shape: tuple[int, ...], rng: np.random.Generator
) -> np.ndarray[Any, Any]:
    op_type, index = _reader(graph, name)
    if index in _POSITIVE_INPUTS.get(op_type, ()):
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)
    if _MATRIX_INPUT.get(op_type) == index and len(shape) > 1:
        return (rng.standard_normal(shape) * math.sqrt(2 / math.prod(shape[1:]))).astype(np.float32)
    return (rng.standard_normal(shape) * 0.1).astype(np.float32)


def _reader(graph: GraphProto, name: str) -> tuple[str, int]:
    """Operator and input position that read ``name``, seen through Unsqueeze and Reshape."""
    for node in graph.node:
        for index, read in enumerate(node.input):
            if read == name:
                if node.op_type in ("Unsqueeze", "Reshape"):
                    return _reader(graph, node.output[0])
                return node.op_type, index
    return "", 0


def _drop_unused(graph: GraphProto, names: set[str]) -> None:
    gone = names - set(graphs.uses(graph))
    for values in (graph.initializer, graph.input):
        kept = [value for value in values if value.name not in gone]
        del values[:]
        values.extend(kept)


def _scale_logits(proto: ModelProto) -> None:
    """Divide weight and bias of the layer before the last Softmax by the spread of its output."""
    producers = {name: node for node in proto.graph.node for name in node.output}
    node = producers.get(proto.graph.output[0].name)
    softmax_seen = False
    while node is not None and node.op_type not in _MATRIX_INPUT:
        softmax_seen |= node.op_type == "Softmax"
        node = producers.get(node.input[0])
    if node is None or not softmax_seen:
        return
    probe = graphs.copy(proto)
    probe.graph.output.append(onnx.ValueInfoProto(name=node.output[0]))
    specs = [value.spec() for value in interface.inputs(proto)]
    spread = float(Session(probe).run(random_inputs(specs), [node.output[0]])[node.output[0]].std())
    for tensor in proto.graph.initializer:
        if tensor.name in node.input[1:]:
            scaled = (numpy_helper.to_array(tensor) / spread).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(scaled, tensor.name))
