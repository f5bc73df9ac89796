"""Replaces an ``If`` whose condition is known by the branch that is taken.

Before: ``If(true) <then: y = Relu(x), else: y = Neg(x)>``. After: ``y = Relu(x)``. Conditions become
known when inputs are frozen and shapes bound. A branch may use tensors of the graph around it.
"""

from __future__ import annotations

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from edgetune.model import graphs
from edgetune.model.pipeline import PassResult, unchanged


def inline_branches(model: ModelProto) -> PassResult:
    """Put the taken branch in the place of each ``If`` of the main graph with a constant condition."""
    known = graphs.constants(model.graph)
    if not any(_taken(node, known) for node in model.graph.node):
        return unchanged(model)
    model = graphs.copy(model)
    taken_names = graphs.names(model.graph)
    nodes: list[NodeProto] = []
    for node in model.graph.node:
        branch = _taken(node, known)
        if branch is None:
            nodes.append(node)
            continue
        body, tensors = graphs.splice(branch, {}, node.output, taken_names)
        nodes += body
        model.graph.initializer.extend(tensors)
    graphs.replace_nodes(model.graph, nodes)
    return PassResult(model, True)


def _taken(node: NodeProto, known: dict[str, TensorProto]) -> GraphProto | None:
    if not graphs.is_standard(node, "If") or node.input[0] not in known:
        return None
    wanted = "then_branch" if np.all(numpy_helper.to_array(known[node.input[0]])) else "else_branch"
    return next(a.g for a in node.attribute if a.name == wanted and a.type == AttributeProto.GRAPH)
