"""Rules for operators that compute: elementwise, convolutions, matrix products, recurrent cells.

Each follows the operator's definition in the ONNX standard, in all versions from 7 on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from edgetune.model.rowwise.facts import SHARED, Mixed, NodeFacts, State, axis_of, every_output, number


def elementwise(facts: NodeFacts) -> Sequence[State]:
    """One value of the output is made of one value of each input, broadcast."""
    return every_output(
        facts, _broadcast(facts, [i for i, state in enumerate(facts.states) if state is not None])
    )


def _broadcast(facts: NodeFacts, indices: Sequence[int], cut: int = 0) -> int:
    """The axis of the rows after broadcasting inputs whose last ``cut`` axes do not take part."""
    ranks = {index: len(facts.shape(index)) - cut for index in indices}
    rank = max(ranks.values())
    found: set[int] = set()
    for index in indices:
        state = facts.states[index]
        if isinstance(state, int):
            found.add(state + rank - ranks[index])
    if len(found) != 1:
        raise Mixed("aligns rows with another axis")
    (axis,) = found
    for index in indices:
        place = axis - (rank - ranks[index])
        if isinstance(facts.states[index], int):
            continue
        # A longer one fits only one number of rows, with values of its own for each.
        longer = place >= 0 and facts.shape(index)[place] != 1
        if facts.states[index] is not SHARED or longer:
            raise Mixed("adds something to each row that depends on its position or on their number")
    return axis


def leading(facts: NodeFacts) -> Sequence[State]:
    """Convolutions, poolings, normalizations: the first axis of the first input is the batch."""
    if facts.rows() != 0:
        raise Mixed("works along them")
    return [0, *[_LATER] * (len(facts.node.output) - 1)]


_LATER = "a further output of a pooling or normalization may mix rows"


def batch_norm(facts: NodeFacts) -> Sequence[State]:
    """BatchNormalization with statistics that are given, not computed from the batch."""
    if facts.attribute("training_mode", 0) or len(facts.node.output) > 1:
        raise Mixed("computes statistics over them")
    return leading(facts)


def gemm(facts: NodeFacts) -> Sequence[State]:
    """``A' B' + C``, rows in A."""
    if facts.rows() != (1 if facts.attribute("transA", 0) else 0):
        raise Mixed("adds over them")
    if facts.given(2):
        dims = facts.shape(2)
        if len(dims) > 1 and dims[0] != 1:
            raise Mixed("adds something to each row that depends on its position")
    return [0]


def matmul(facts: NodeFacts) -> Sequence[State]:
    """Matrix products: rows of the left matrix, columns of the right one, or different matrices."""
    return _product(facts, 0, 1)


def _product(facts: NodeFacts, left: int, right: int) -> Sequence[State]:
    left_rank, right_rank = len(facts.shape(left)), len(facts.shape(right))
    if left_rank < 2 or right_rank < 2:
        raise Mixed("multiplies vectors")
    facts.shared(*(index for index in range(len(facts.states)) if index not in (left, right)))
    rank = max(left_rank, right_rank)
    a, b = facts.states[left], facts.states[right]
    if a == left_rank - 1 or b == right_rank - 2:
        raise Mixed("adds over them")
    if a == left_rank - 2 and b is SHARED:
        return [rank - 2]
    if b == right_rank - 1 and a is SHARED:
        return [rank - 1]
    if a == left_rank - 2 or b == right_rank - 1:
        raise Mixed("multiplies rows with each other")
    return [_broadcast(facts, (left, right), cut=2)]


def qlinear_matmul(facts: NodeFacts) -> Sequence[State]:
    """``a, a_scale, a_zero_point, b, ...``: the scales are for all rows alike."""
    if any(len(facts.shape(index)) > 0 and facts.shape(index) != (1,) for index in (1, 2)):
        raise Mixed("has a scale for each row")
    return _product(facts, 0, 3)


def matmul_integer(facts: NodeFacts) -> Sequence[State]:
    """``A, B, a_zero_point, b_zero_point``."""
    if facts.given(2) and math.prod(map(number, facts.shape(2))) != 1:
        raise Mixed("has a zero point for each row")
    return _product(facts, 0, 1)


def quantize(facts: NodeFacts) -> Sequence[State]:
    """Scales for the whole tensor, or for each index of another axis."""
    axis = facts.rows()
    dims = facts.shape(0)
    if facts.attribute("block_size", 0):
        raise Mixed("has scales for blocks")
    if math.prod(map(number, facts.shape(1))) != 1 and axis_of(facts, 1, len(dims)) == axis:
        raise Mixed("has a scale for each row")
    return [axis]


def recurrent(facts: NodeFacts) -> Sequence[State]:
    """LSTM, GRU, RNN: every sequence by itself; X is ``[time, batch, ...]``, states ``[directions, batch, ...]``."""
    if facts.attribute("layout", 0):
        raise Mixed("has the batch first")
    facts.shared(1, 2, 3, 7)
    expected: dict[int, int] = {0: 1, 4: 0, 5: 1, 6: 1}
    for index, axis in expected.items():
        state = facts.states[index] if index < len(facts.states) else None
        if state is not None and state != axis:
            raise Mixed("has sequences and states that are not rows alike")
    return [2, 1, 1][: len(facts.node.output)]
