"""Rules for operators that move values, or work along some axes: reshapes, slices, reductions.

Each follows the operator's definition in the ONNX standard, in all versions from 7 on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from edgetune.model.rowwise.facts import (
    ROWS,
    SHARED,
    SIZE,
    Mixed,
    NodeFacts,
    Rule,
    State,
    axis_of,
    every_output,
    known,
    number,
)


def transpose(facts: NodeFacts) -> Sequence[State]:
    """The axis moves."""
    axis, rank = facts.rows(), len(facts.shape(0))
    order = facts.attribute("perm", range(rank - 1, -1, -1))
    return [list(order).index(axis)]


def reshape(facts: NodeFacts) -> Sequence[State]:
    """Reshape and its kin: rows stay rows where as many values lie before and after each as before.

    Row-major order: value ``(before, row, after)`` stays at that place, if the products of the sizes
    before and after the one open axis are the same.
    """
    axis, dims = facts.axis(0), facts.shape(0)
    facts.sizes(*range(1, len(facts.states)))
    out = known(facts.output)
    if out.count(ROWS) != 1:
        raise Mixed("changes their number, or gives tensors of unknown shape")
    place = out.index(ROWS)
    same = all(
        math.prod(map(number, old)) == math.prod(map(number, new))
        for old, new in ((dims[:axis], out[:place]), (dims[axis + 1 :], out[place + 1 :]))
    )
    if not same:
        raise Mixed("merges or splits them")
    return [place]


def flatten(facts: NodeFacts) -> Sequence[State]:
    """Two axes in place of many: rows stay where they are the only ones before, or after, the cut."""
    axis, dims = facts.rows(), facts.shape(0)
    cut = axis_of(facts, 1, len(dims))
    beside = (*dims[:axis], *dims[axis + 1 : cut]) if axis < cut else (*dims[cut:axis], *dims[axis + 1 :])
    if any(dim != 1 for dim in beside):
        raise Mixed("merges them with another axis")
    return [0 if axis < cut else 1]


def concat(facts: NodeFacts) -> Sequence[State]:
    """All inputs have the rows, joined along another axis."""
    axes = set(facts.states)
    (axis,) = axes if len(axes) == 1 else (None,)
    if not isinstance(axis, int) or axis_of(facts, 0, len(facts.shape(0))) == axis:
        raise Mixed("joins them with something else")
    return [axis]


def along(default: int) -> Rule:
    """The work goes along ``axis``, each slice by itself: TopK, Split, CumSum, ..."""

    def rule(facts: NodeFacts) -> Sequence[State]:
        axis = facts.rows()
        if axis_of(facts, default, len(facts.shape(0))) == axis:
            raise Mixed("works along them")
        return every_output(facts, axis)

    return rule


def softmax(facts: NodeFacts) -> Sequence[State]:
    """Along one axis; before version 13 along all axes from there on."""
    if facts.opset >= 13:
        return along(-1)(facts)
    return from_axis(1)(facts)


def from_axis(default: int) -> Rule:
    """The work goes along all axes from ``axis`` on: LayerNormalization, and Softmax of old."""

    def rule(facts: NodeFacts) -> Sequence[State]:
        axis = facts.rows()
        if axis >= axis_of(facts, default, len(facts.shape(0))):
            raise Mixed("works along them")
        return every_output(facts, axis)

    return rule


def cumsum(facts: NodeFacts) -> Sequence[State]:
    """The axis is an input."""
    axis, rank = facts.rows(), len(facts.shape(0))
    if facts.value(1)[0] % rank == axis:
        raise Mixed("adds over them")
    return [axis]


def reduce(facts: NodeFacts) -> Sequence[State]:
    """Over axes that are an attribute, or from version 18 (ReduceSum: 13) on an input."""
    axis, rank = facts.rows(), len(facts.shape(0))
    axes = facts.attribute("axes")
    if axes is None and facts.given(1):
        axes = facts.value(1)
    if not axes:
        if not facts.attribute("noop_with_empty_axes", 0):
            raise Mixed("works along them")
        return [axis]
    reduced = {int(item) % rank for item in axes}
    if axis in reduced:
        raise Mixed("works along them")
    return [axis if facts.attribute("keepdims", 1) else axis - sum(item < axis for item in reduced)]


def arg_reduce(facts: NodeFacts) -> Sequence[State]:
    """ArgMax and ArgMin: one axis."""
    axis, rank = facts.rows(), len(facts.shape(0))
    over = axis_of(facts, 0, rank)
    if over == axis:
        raise Mixed("works along them")
    return [axis if facts.attribute("keepdims", 1) else axis - (over < axis)]


def slice_(facts: NodeFacts) -> Sequence[State]:
    """Other axes are cut; or all rows are taken, from the first to the last."""
    axis, rank = facts.axis(0), len(facts.shape(0))
    facts.shared(1, 3, 4)
    facts.sizes(2)
    in_attributes = facts.opset < 10
    starts = facts.attribute("starts") if in_attributes else facts.value(1)
    given = facts.attribute("axes") if in_attributes else facts.value(3) if facts.given(3) else None
    steps = facts.value(4) if facts.given(4) else [1] * len(starts)
    axes = [int(item) % rank for item in (range(len(starts)) if given is None else given)]
    if axis in axes:
        place = axes.index(axis)
        if starts[place] != 0 or steps[place] != 1 or known(facts.output)[axis] != ROWS:
            raise Mixed("takes a part of them")
    return [axis]


def gather(facts: NodeFacts) -> Sequence[State]:
    """Rows of the data with the same indices for each, or rows of indices into the same data."""
    rank = len(facts.shape(0))
    over = axis_of(facts, 0, rank)
    data, indices = facts.states[0], facts.states[1]
    if isinstance(data, int):
        axis = facts.rows(0)
        if axis == over:
            raise Mixed("takes a part of them")
        return [axis if axis < over else axis - 1 + len(facts.shape(1))]
    if data is SHARED and isinstance(indices, int):
        return [over + indices]
    raise Mixed("takes rows by indices that depend on their number")


def pad(facts: NodeFacts) -> Sequence[State]:
    """Other axes grow."""
    axis, rank = facts.rows(), len(facts.shape(0))
    if facts.given(3):
        raise Mixed("names the axes that it pads")
    pads = facts.attribute("pads") if facts.opset < 11 else facts.value(1)
    if pads[axis] or pads[axis + rank]:
        raise Mixed("adds to them")
    return [axis]


def tile(facts: NodeFacts) -> Sequence[State]:
    """Other axes are repeated."""
    axis = facts.rows()
    if facts.value(1)[axis] != 1:
        raise Mixed("repeats them")
    return [axis]


def resize(facts: NodeFacts) -> Sequence[State]:
    """Other axes are resized; sizes may be computed from the number of rows, as long as it is kept."""
    axis = facts.axis(0)
    facts.shared(1)
    facts.sizes(2, 3)
    if facts.attribute("axes") is not None or facts.attribute("antialias", 0):
        raise Mixed("resizes in a way that is not looked into")
    mode = facts.attribute("coordinate_transformation_mode", b"half_pixel")
    policy = facts.attribute("keep_aspect_ratio_policy", b"stretch")
    if mode == b"tf_crop_and_resize" or policy != b"stretch":
        raise Mixed("resizes in a way that is not looked into")
    scales = facts.values[2 if facts.opset >= 11 else 1] if len(facts.values) > 1 else None
    if scales is not None and scales.size:
        kept = float(scales.reshape(-1)[axis]) == 1.0
    else:
        kept = facts.output is not None and facts.output[axis] == ROWS
    if not kept:
        raise Mixed("may resize them")
    return [axis]


def expand(facts: NodeFacts) -> Sequence[State]:
    """Other axes are repeated; the rows stay, where the output has them."""
    axis, dims = facts.axis(0), facts.shape(0)
    facts.sizes(1)
    out = known(facts.output)
    place = axis + len(out) - len(dims)
    if place < 0 or out[place] != ROWS:
        raise Mixed("repeats them")
    return [place]


def spread(facts: NodeFacts) -> Sequence[State]:
    """Without rows among the inputs: a value for each row, the same for all, or shape arithmetic."""
    size = [SIZE] * len(facts.node.output)
    if facts.node.op_type not in ("Expand", "ConstantOfShape"):
        return size
    out = facts.output
    if out is None or out.count(ROWS) != 1 or None in out:
        return size
    place = out.index(ROWS)
    if facts.node.op_type == "Expand":
        if facts.states[0] is not SHARED:
            return size
        dims = facts.shape(0)
        before = place - (len(out) - len(dims))
        if before >= 0 and dims[before] != 1:
            return size
    return [place]
