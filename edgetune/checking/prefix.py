"""The largest part of a model that can be compiled, where single nodes stand in the way.

Everything that does not hang on such a node comes first. That part is then tried itself, so that the
advice holds; what fails in it is taken away, too, and the smaller part tried again.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgetune.checking.nodes import UnsupportedNode, diagnose, non_tensors
from edgetune.errors import EdgetuneError

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

    from edgetune.model.loading import SourceModel
    from edgetune.model.variants import Shapes
    from edgetune.targets import Target

MAX_ROUNDS = 6
"""Each takes as long as checking the model; what fails after so many is not worth cutting at."""


@dataclass(frozen=True)
class Prefix:
    """A part of a model that can be compiled.

    Attributes:
        cut: the tensors to cut at, which are its outputs.
        nodes: how many of the model's nodes do the work before them; of: how many it has in all.
    """

    cut: tuple[str, ...]
    nodes: int
    of: int

    def options(self) -> str:
        """The options that compile it."""
        return " ".join(f"--cut {shlex.quote(name)}" for name in self.cut)

    def to_json(self) -> dict[str, Any]:
        """The object ``prefix``."""
        return {"cut": list(self.cut), "nodes": self.nodes, "of": self.of}


def largest_prefix(
    loaded: SourceModel,
    shapes: Shapes | None,
    freeze: Mapping[str, Any] | None,
    target: Target,
    found: Sequence[UnsupportedNode],
    where: ModelProto,
) -> Prefix | None:
    """The part before the nodes ``found``, tried; None where there is none worth compiling.

    Args:
        loaded: the model as it was given.
        shapes, freeze: of its inputs.
        target: what to compile for.
        found: the nodes in the way.
        where: the model in which they were found: the one given, or what preparing made of it.
    """
    from edgetune.model.cutting import frontier
    from edgetune.model.prepare import parse, prepare

    graph = loaded.proto.graph
    odd = _non_tensor_makers(loaded.proto)
    blocked: set[int] = set()
    for _ in range(MAX_ROUNDS):
        new = _original_nodes(graph, where, found) - blocked
        if not new:
            return None
        blocked |= new | odd
        cut, nodes = frontier(graph, blocked)
        if not cut:
            return None
        try:
            prepared = prepare(loaded, shapes, freeze, cut)
            found, _ = diagnose(prepared, target)
        except EdgetuneError:
            return None
        if not found:
            return Prefix(cut, nodes, len(graph.node))
        where = parse(prepared)
    return None


def _non_tensor_makers(model: ModelProto) -> set[int]:
    """Indices of the nodes that make sequences, strings and the like: no bundle can give such."""
    odd = non_tensors(model)
    return {index for index, node in enumerate(model.graph.node) if odd & set(node.output)}


def _original_nodes(graph: GraphProto, where: ModelProto, found: Sequence[UnsupportedNode]) -> set[int]:
    """Indices of the nodes of ``graph`` that became the nodes ``found`` of a prepared model.

    Preparing keeps the names of tensors where it can. A node whose outputs are new is part of the
    next node behind it that makes a tensor of ``graph``.
    """
    bad = {name for node in found for name in node.outputs}
    makers = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    functions = {(f.domain, f.name): f for f in where.functions}
    tensors = {
        name for node in where.graph.node if _outputs_within(node, functions) & bad for name in node.output
    }
    indices = set()
    pending, seen = [name for name in tensors if name], set(tensors)
    readers: dict[str, list[NodeProto]] = {}
    for node in where.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    while pending:
        name = pending.pop()
        if name in makers:
            indices.add(makers[name])
            continue
        for node in readers.get(name, ()):
            fresh = [output for output in node.output if output and output not in seen]
            seen.update(fresh)
            pending += fresh
    return indices


def _outputs_within(node: NodeProto, functions: Mapping[tuple[str, str], Any]) -> set[str]:
    """Outputs of a node, of the nodes in its subgraphs, and in the functions it calls."""
    from edgetune.model import graphs

    names = set(node.output)
    for inner in graphs.subgraphs(node):
        for child in inner.node:
            names |= _outputs_within(child, functions)
    if (node.domain, node.op_type) in functions:
        for child in functions[node.domain, node.op_type].node:
            names |= _outputs_within(child, functions)
    return names
