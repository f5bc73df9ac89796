"""Whether a model treats each row of a dimension by itself: then padding with further rows is exact.

A proof on the graph, node by node. The dimension stays open, a symbol, while all others are numbers: what
an initializer holds cannot depend on its size then, and every way to learn the size is a node. For each
tensor one of four things is known:

* SHARED       the same whatever the size and the rows are
* SIZE         made of the size alone: what shape arithmetic computes
* an axis      along it lie the rows, row *i* of it made of row *i* of the inputs and of SHARED tensors
* a text       rows are mixed, or may be; the text says where

The operators that keep rows apart are listed in ``rules.py``; every other one counts as mixing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from onnx import ModelProto, NodeProto, numpy_helper

from edgetune.errors import EdgetuneError
from edgetune.model import graphs, interface, pipeline
from edgetune.model.interface import Dim
from edgetune.model.passes.fold_constants import fold_constants
from edgetune.model.passes.inline_branches import inline_branches
from edgetune.model.passes.inline_functions import inline_functions
from edgetune.model.passes.remove_leftovers import remove_leftovers
from edgetune.model.passes.unroll_loops import unroll_loops
from edgetune.model.rowwise.facts import ROWS, SHARED, SIZE, Mixed, NodeFacts, State
from edgetune.model.rowwise.moving import spread
from edgetune.model.rowwise.rules import RULES
from edgetune.model.shapes import annotate, static_shapes
from edgetune.sizes import Dimension

_PASSES = (inline_functions, fold_constants, inline_branches, unroll_loops, remove_leftovers)
"""Those that need no fixed sizes: what they fold is what depends on no size."""


@dataclass(frozen=True)
class Rows:
    """What was found: where the rows lie in the outputs, or why they are not kept apart.

    Attributes:
        outputs: ``(output, axis)``; outputs that no row reaches are left out.
        problem: the first operator that mixes rows, in words; empty when none does.
    """

    outputs: tuple[tuple[str, int], ...] = ()
    problem: str = ""


@dataclass
class _Facts:
    opset: int
    shapes: Mapping[str, tuple[Dim, ...]]
    values: Mapping[str, np.ndarray]
    states: dict[str, State] = field(default_factory=dict)


def rows(model: ModelProto, dimension: Dimension) -> Rows:
    """Follow the rows of ``dimension``, which is the only open one of ``model``, to the outputs."""
    if len({name for name, _ in dimension.inputs}) < len(dimension.inputs):
        return Rows(problem="it stands twice in one input")
    try:
        model = pipeline.run_passes(model, _PASSES, lambda _: None).model
    except EdgetuneError as error:
        return Rows(problem=str(error))
    facts = _facts(model, dimension)
    for node in model.graph.node:
        facts.states.update(zip(node.output, _states(node, facts), strict=False))
    found = []
    for output in model.graph.output:
        state = facts.states[output.name]
        if isinstance(state, str):
            return Rows(problem=state)
        if state is SIZE:
            return Rows(problem=f"the output {output.name!r} is made of the size itself")
        if isinstance(state, int):
            found.append((output.name, state))
    return Rows(tuple(found))


def _facts(model: ModelProto, dimension: Dimension) -> _Facts:
    values = {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in model.graph.initializer
        if tensor.ByteSize() <= graphs.SMALL_TENSOR_BYTES
    }
    facts = _Facts(graphs.opset(model), _shapes(model, dimension), values)
    facts.states |= dict.fromkeys([value.name for value in model.graph.input], SHARED)
    facts.states |= dict.fromkeys([tensor.name for tensor in model.graph.initializer], SHARED)
    facts.states |= dict(dimension.inputs)
    return facts


def _shapes(model: ModelProto, dimension: Dimension) -> dict[str, tuple[Dim, ...]]:
    """Dimensions of every tensor, ROWS where they are as many as there are rows.

    Computed at the ends of the range and at an odd and an even size between them: a dimension is the
    number of rows, or a constant, where it is so at each of these sizes; else it is None.
    """
    inside = dimension.sizes.between() or dimension.sizes.exact[0]
    sizes = sorted({dimension.sizes.exact[0], inside, inside + 1, dimension.sizes.exact[-1]})
    at_each = [_shapes_at(model, dimension, size) for size in sizes]
    found: dict[str, tuple[Dim, ...]] = {}
    for name, first in at_each[0].items():
        shapes = [known.get(name) for known in at_each]
        known_at_each = [shape for shape in shapes if shape is not None and len(shape) == len(first)]
        if len(known_at_each) == len(sizes):
            found[name] = tuple(_dim(same, sizes) for same in zip(*known_at_each, strict=True))
    return found


def _dim(found: Sequence[int], sizes: Sequence[int]) -> Dim:
    if len(set(found)) == 1:
        return found[0]
    return ROWS if list(found) == list(sizes) else None


def _shapes_at(model: ModelProto, dimension: Dimension, size: int) -> dict[str, tuple[int, ...]]:
    fixed = graphs.copy(model)
    for value in fixed.graph.input:
        dims = list(interface.dims_of(value) or ())
        for name, axis in dimension.inputs:
            if name == value.name:
                dims[axis] = size
        interface.set_dims(value, tuple(dims))
    folded = annotate(pipeline.run_passes(fixed, _PASSES, lambda _: None).model)
    made = {name for node in folded.graph.node for name in node.output}
    # A shape without dimensions may mean that nothing is known.
    shapes = static_shapes(folded)
    return {name: shape for name, shape in shapes.items() if shape or (shape == () and name not in made)}


def _states(node: NodeProto, facts: _Facts) -> Sequence[State]:
    """What is known of each output of a node."""
    read = [name for name in [*node.input, *sorted(graphs.captured(node))] if name]
    states = [facts.states.get(name, f"{name!r} is not known") for name in read]
    count = len(node.output)
    if mixed := next((state for state in states if isinstance(state, str)), None):
        return [mixed] * count
    if all(state is SHARED for state in states):
        return [SHARED] * count
    what = f"{node.op_type} {node.name!r}" if node.name else f"{node.op_type} (makes {node.output[0]!r})"
    standard = node.domain in graphs.DEFAULT_DOMAINS
    if standard and node.op_type in ("Shape", "Size"):
        return [SIZE] * count
    given = NodeFacts(
        node,
        facts.opset,
        tuple(facts.states[name] if name else None for name in node.input),
        tuple(facts.shapes.get(name) for name in node.input),
        tuple(facts.values.get(name) for name in node.input),
        facts.shapes.get(node.output[0]),
    )
    try:
        if not any(isinstance(state, int) for state in states):
            return spread(given) if standard else [SIZE] * count
        rule = RULES.get(node.op_type) if standard else None
        if rule is None:
            raise Mixed("may mix rows")
        if SIZE in states and None in (given.output or (None,)):
            raise Mixed("gives each row a size that depends on their number")
        return rule(given)
    except Mixed as problem:
        return [f"{what} {problem}"] * count
