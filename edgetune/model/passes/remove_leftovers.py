"""Removes what training and exporting leave behind: Dropout, Identity.

Before: ``x -> Dropout -> y``. After: readers of ``y`` read ``x``. A Dropout in training mode stays
(it is random), as does one whose mask is used.
"""

from __future__ import annotations

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from edgetune.model import graphs
from edgetune.model.pipeline import PassResult, unchanged

_FIRST_DROPOUT_WITH_MODE_INPUT = 12


def remove_leftovers(model: ModelProto) -> PassResult:
    """Let the readers of a node that hands its input on read that input."""
    if not any(_plan(graph, graphs.opset(model)) for graph in graphs.walk_graphs(model.graph)):
        return unchanged(model)
    model = graphs.copy(model)
    for graph in graphs.walk_graphs(model.graph):
        _remove(graph, _plan(graph, graphs.opset(model)))
    return PassResult(model, True)


def _plan(graph: GraphProto, opset: int) -> dict[str, str]:
    """Output -> input of each node of ``graph`` that can go."""
    known = graphs.constants(graph)
    read = graphs.uses(graph)
    outputs = {value.name for value in graph.output}
    produced = {name for node in graph.node for name in node.output}
    plan: dict[str, str] = {}
    taken: set[str] = set()
    for node in graph.node:
        if not _hands_on(node, opset, known, read):
            continue
        source, target = node.input[0], node.output[0]
        if target not in outputs:
            plan[target] = source
        elif source in produced and source not in outputs | plan.keys() | taken:
            # The producer of ``source`` can write one output itself; any other source is an
            # input or a constant, and an output must be made by a node.
            plan[target] = source
            taken.add(source)
    return plan


def _hands_on(node: NodeProto, opset: int, known: dict[str, TensorProto], read: dict[str, int]) -> bool:
    if graphs.is_standard(node, "Identity"):
        return True
    if not graphs.is_standard(node, "Dropout") or any(name and name in read for name in node.output[1:]):
        return False
    if opset >= _FIRST_DROPOUT_WITH_MODE_INPUT:
        if len(node.input) < 3 or not node.input[2]:
            return True
        mode = known.get(node.input[2])
        return mode is not None and not np.any(numpy_helper.to_array(mode))
    # Up to opset 6 an attribute said is_test; its default is training.
    return opset >= 7 or any(a.name == "is_test" and a.i for a in node.attribute)


def _remove(graph: GraphProto, plan: dict[str, str]) -> None:
    outputs = {value.name for value in graph.output}
    forward = {target: source for target, source in plan.items() if target not in outputs}
    # The producers of these take over the output's name.
    backward = {source: target for target, source in plan.items() if target in outputs}
    graphs.replace_nodes(graph, [node for node in graph.node if node.output[0] not in plan])
    resolved = {}
    for target, source in forward.items():
        while source in forward:
            source = forward[source]
        resolved[target] = backward.get(source, source)
    graphs.rename_reads(graph, resolved | backward)
    for node in graph.node:
        for index, name in enumerate(node.output):
            if name in backward:
                node.output[index] = backward[name]
