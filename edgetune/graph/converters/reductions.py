"""Reductions: over nothing, of booleans, and those that the importer lacks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from edgetune.errors import UnsupportedModelError
from edgetune.graph.converters.base import Node, const, converter, dtype, positive_axis, shape

_OVER_NOTHING = {
    "ReduceSum": 0.0,
    "ReduceL1": 0.0,
    "ReduceL2": 0.0,
    "ReduceSumSquare": 0.0,
    "ReduceProd": 1.0,
    "ReduceLogSum": -math.inf,
    "ReduceLogSumExp": -math.inf,
    "ReduceMax": -math.inf,
    "ReduceMin": math.inf,
    "ReduceMean": math.nan,
}
"""What a reduction of no element gives; integers take their smallest or largest value for infinity."""


def _reduction(op_type: str) -> type:
    def convert(node: Node) -> Any:
        x = node.needed(0)
        if 0 in shape(x):
            return _empty(node, op_type, x)
        if node.int("noop_with_empty_axes", 0) and _reduced_axes(node, len(shape(x))) is None:
            return _elementwise(node, op_type, x)
        attributes = dict(node.attributes)
        if op_type == "ReduceMean" and np.dtype(dtype(x)).kind in "iu":
            return _integer_mean(node, x)
        if dtype(x) == "bool":
            y = node.by_importer(op_type, [relax.op.astype(x, "int8"), *node.inputs[1:]], attributes)
            return relax.op.astype(y, "bool")
        return node.by_importer(op_type, list(node.inputs), attributes)

    convert.__doc__ = f"{op_type}, over an empty set too."
    return converter(convert)


def _integer_mean(node: Node, x: Any) -> Any:
    """ReduceMean of integers, rounded towards zero."""
    reduced = _reduced_axes(node, len(shape(x)))
    assert reduced is not None
    count = math.prod(shape(x)[a] for a in reduced)
    wide = relax.op.astype(x, "float64")
    total = node.emit(relax.op.sum(wide, sorted(reduced), keepdims=bool(node.int("keepdims", 1))))
    return relax.op.astype(relax.op.trunc(relax.op.divide(total, relax.const(count, "float64"))), dtype(x))


def _elementwise(node: Node, op_type: str, x: Any) -> Any:
    """A reduction over no axis at all: what it does to each element still happens."""
    if op_type in ("ReduceL1", "ReduceL2"):
        return node.emit(relax.op.abs(x))
    if op_type == "ReduceSumSquare":
        return node.emit(relax.op.multiply(x, x))
    return node.emit(relax.op.log(x)) if op_type == "ReduceLogSum" else x


def _reduced_axes(node: Node, rank: int) -> set[int] | None:
    """The axes to reduce; None where the node leaves its operand as it is."""
    given = node.known(1, "the axes of a reduction")
    axes = node.ints("axes") if given is None else [int(a) for a in given.reshape(-1)]
    if not axes:
        return None if node.int("noop_with_empty_axes", 0) else set(range(rank))
    return {positive_axis(a, rank) for a in axes}


def log_sum_exp(node: Node) -> Any:
    """ReduceLogSumExp, of infinities too: from the largest element, where that is finite."""
    x = node.needed(0)
    axes = _reduced_axes(node, len(shape(x)))
    if 0 in shape(x):
        return _empty(node, "ReduceLogSumExp", x)
    if axes is None:
        return x
    if "float" not in dtype(x):
        return node.by_importer("ReduceLogSumExp", list(node.inputs), node.attributes)
    highest = node.emit(relax.op.max(x, sorted(axes), keepdims=True))
    shift = node.emit(relax.op.where(relax.op.isinf(highest), relax.op.zeros_like(highest), highest))
    raised = node.emit(relax.op.exp(relax.op.subtract(x, shift)))
    total = node.emit(relax.op.log(relax.op.sum(raised, sorted(axes), keepdims=True)))
    result = node.emit(relax.op.add(total, shift))
    return result if node.int("keepdims", 1) else node.emit(relax.op.squeeze(result, sorted(axes)))


def _empty(node: Node, op_type: str, x: Any) -> Any:
    sizes = shape(x)
    reduced = _reduced_axes(node, len(sizes))
    if reduced is None:
        return x
    keep = node.int("keepdims", 1)
    result = [1 if a in reduced else s for a, s in enumerate(sizes) if keep or a not in reduced]
    value, kind = _OVER_NOTHING[op_type], np.dtype(dtype(x))
    if kind.kind in "iu" and math.isinf(value):
        value = np.iinfo(kind).min if value < 0 else np.iinfo(kind).max
    if kind.kind in "iu" and math.isnan(value):
        if 0 not in result:
            raise UnsupportedModelError("the mean of no integers is not defined")
        value = 0
    return const(np.full(result, value, kind))


def lp_normalization(node: Node) -> Any:
    """LpNormalization: divided by the norm along an axis, of order 1 or 2; nothing where the norm is zero."""
    x, order = node.needed(0), node.int("p", 2)
    axis = positive_axis(node.int("axis", -1), len(shape(x)))
    if order == 1:
        norm = relax.op.sum(relax.op.abs(x), axis, keepdims=True)
    elif order == 2:
        norm = relax.op.sqrt(relax.op.sum(relax.op.multiply(x, x), axis, keepdims=True))
    else:
        raise UnsupportedModelError(f"LpNormalization of order {order} is not one of the standard's")
    norm = node.emit(norm)
    zero = relax.const(0, dtype(x))
    empty = node.emit(relax.op.equal(norm, zero))
    quotient = relax.op.divide(x, relax.op.where(empty, relax.const(1, dtype(x)), norm))
    return node.emit(relax.op.where(empty, relax.op.zeros_like(x), quotient))


def cumulative_product(node: Node) -> Any:
    """CumProd along a known axis."""
    x = node.needed(0)
    known = node.known(1, "the axis of CumProd")
    assert known is not None
    axis = positive_axis(int(known.reshape(())), len(shape(x)))
    length = shape(x)[axis]
    exclusive, backwards = bool(node.int("exclusive", 0)), bool(node.int("reverse", 0))

    def product(x: te.Tensor) -> te.Tensor:
        k = te.reduce_axis((0, length), "k")
        multiply = te.comm_reducer(lambda a, b: a * b, lambda kind: tirx.const(1, kind), name="product")

        def at(*index: Any) -> Any:
            i = index[axis]
            if backwards:
                inside = k > i if exclusive else k >= i
            else:
                inside = k < i if exclusive else k <= i
            value = x(*index[:axis], k, *index[axis + 1 :])
            return multiply(te.if_then_else(inside, value, tirx.const(1, x.dtype)), axis=k)

        return te.compute(x.shape, at, name="cumulative_product")

    return node.te(product, x, name="cumulative_product")


CONVERTERS: dict[str, type] = {
    **{op_type: _reduction(op_type) for op_type in _OVER_NOTHING},
    "ReduceLogSumExp": converter(log_sum_exp),
    "LpNormalization": converter(lp_normalization),
    "CumProd": converter(cumulative_product),
}
