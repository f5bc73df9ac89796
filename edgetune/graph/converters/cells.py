"""One step of LSTM, GRU and RNN, as kernels over the projected input, the recurrent product and the state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax, te, tirx

from edgetune.graph.converters.activations import Scalar, clipping
from edgetune.graph.converters.base import Node, const, constant, shape


@dataclass(frozen=True)
class Direction:
    """Weights and initial state of one direction, in the form that the steps read.

    Attributes:
        reverse: whether the sequence is read from its end.
        projected: ``[T, B, gates * H]``, the input's part of every step, biases included where they are simply added.
        weights: recurrent, ``[H, gates * H]``.
        recurrent: gives the product of a hidden state and the weights, the bias included that is not in ``projected``.
        state: initial hidden state ``[B, H]``; ``cell`` likewise, LSTM only.
        peephole: ``[3 * H]`` or None.
        activations: as the operator names them, in order.
    """

    reverse: bool
    projected: Any
    weights: Any
    recurrent: Callable[[Any], Any]
    state: Any
    cell: Any
    peephole: Any
    activations: tuple[Scalar, ...]


def _at(projected: te.Tensor, position: te.Tensor, b: Any, column: Any) -> Any:
    """The step's row; the bounds keep a kernel that is measured on random operands inside its memory."""
    last = tirx.const(int(projected.shape[0]) - 1, "int32")
    return projected(te.max(te.min(position(0), last), tirx.const(0, "int32")), b, column)


def _kept(position: te.Tensor, lengths: Sequence[te.Tensor], b: Any, new: Any, old: Any) -> Any:
    """``new`` while the sequence lasts, afterwards ``old``."""
    return tirx.Select(position(0) < lengths[0](b).astype("int32"), new, old) if lengths else new


def lstm_step(
    node: Node, direction: Direction, hidden: Any, cell: Any, position: Any, lengths: Any
) -> tuple[Any, Any]:
    """One step of LSTM: the new hidden and cell state."""
    product = direction.recurrent(hidden)
    extra = [x for x in (lengths, direction.peephole) if x is not None]
    masked, peepholes = lengths is not None, direction.peephole is not None
    bounded, coupled = clipping(node), node.int("input_forget", 0) != 0
    f, g, h = direction.activations

    def gates(
        projected: te.Tensor,
        product: te.Tensor,
        old: te.Tensor,
        before: te.Tensor,
        at: te.Tensor,
        *rest: te.Tensor,
    ) -> list[te.Tensor]:
        size = int(old.shape[1])
        peephole = rest[-1] if peepholes else None
        lens = rest[:1] if masked else ()

        def gate(k: int, b: Any, j: Any, seen: Any) -> Any:
            total = _at(projected, at, b, k * size + j) + product(b, k * size + j)
            # The gates are in the order i, o, f, c; the peepholes in i, o, f.
            return bounded(total if peephole is None or k == 3 else total + peephole(k * size + j) * seen)

        def next_cell(b: Any, j: Any) -> Any:
            i = f(gate(0, b, j, old(b, j)))
            new = g(gate(3, b, j, old(b, j)))
            if coupled:
                # The forget gate is 1 - i; written so, i stands here once.
                return old(b, j) + i * (new - old(b, j))
            return f(gate(2, b, j, old(b, j))) * old(b, j) + i * new

        fresh = te.compute(old.shape, next_cell, name="cell")
        out = te.compute(
            old.shape,
            lambda b, j: _kept(at, lens, b, f(gate(1, b, j, fresh(b, j))) * h(fresh(b, j)), before(b, j)),
            name="hidden",
        )
        if not lens:
            return [out, fresh]
        return [
            out,
            te.compute(old.shape, lambda b, j: _kept(at, lens, b, fresh(b, j), old(b, j)), name="kept_cell"),
        ]

    # Alone: were the cell no output of the kernel, it would be inlined, and with it several exponentials.
    pair = node.te(
        gates,
        direction.projected,
        product,
        cell,
        hidden,
        position,
        *extra,
        name="lstm_gates",
        alone=True,
        same=direction.reverse,
    )
    return node.emit(relax.TupleGetItem(pair, 0)), node.emit(relax.TupleGetItem(pair, 1))


def gru_step(
    node: Node, direction: Direction, hidden: Any, cell: Any, position: Any, lengths: Any
) -> tuple[Any, Any]:
    """One step of GRU: the new hidden state; it has no cell."""
    step = _gru_reset_after if node.int("linear_before_reset", 0) != 0 else _gru_reset_before
    return step(node, direction, hidden, position, lengths), None


class _GruCell:
    """The formulas that both kinds of GRU share."""

    def __init__(self, node: Node, size: int) -> None:
        self.size = size
        self.bounded = clipping(node)

    def total(self, projected: te.Tensor, product: te.Tensor, at: te.Tensor, k: int, b: Any, j: Any) -> Any:
        """What gate ``k`` is activated with."""
        column = k * self.size + j
        return self.bounded(_at(projected, at, b, column) + product(b, column))

    def finish(self, z: Any, candidate: Any, old: Any) -> Any:
        """(1 - z) candidate + z old, with either gate written once: they are large expressions."""
        return old + (tirx.const(1, str(old.ty.dtype)) - z) * (candidate - old)


def _gru_reset_after(node: Node, direction: Direction, hidden: Any, position: Any, lengths: Any) -> Any:
    """The reset gate applied to the recurrent product (``linear_before_reset``)."""
    cell = _GruCell(node, shape(hidden)[1])
    f, g = direction.activations
    masks = [] if lengths is None else [lengths]
    size = cell.size
    product = direction.recurrent(hidden)

    def gates(
        projected: te.Tensor, product: te.Tensor, old: te.Tensor, at: te.Tensor, *lens: te.Tensor
    ) -> list[te.Tensor]:
        reset = te.compute(
            old.shape, lambda b, j: f(cell.total(projected, product, at, 1, b, j)), name="reset"
        )

        def new(b: Any, j: Any) -> Any:
            inner = _at(projected, at, b, 2 * size + j) + reset(b, j) * product(b, 2 * size + j)
            value = cell.finish(
                f(cell.total(projected, product, at, 0, b, j)), g(cell.bounded(inner)), old(b, j)
            )
            return _kept(at, lens, b, value, old(b, j))

        return [te.compute(old.shape, new, name="hidden"), reset]

    # The reset gate is an output only so that it is not inlined into the next activation.
    pair = node.te(
        gates,
        direction.projected,
        product,
        hidden,
        position,
        *masks,
        name="gru_gates",
        alone=True,
        same=direction.reverse,
    )
    return node.emit(relax.TupleGetItem(pair, 0))


def _gru_reset_before(node: Node, direction: Direction, hidden: Any, position: Any, lengths: Any) -> Any:
    """The reset gate applied to the hidden state, whose product then is a second one."""
    cell = _GruCell(node, shape(hidden)[1])
    f, g = direction.activations
    masks = [] if lengths is None else [lengths]
    size = cell.size
    update, candidate = _gru_weights(node, direction, size)
    product = node.emit(relax.op.matmul(hidden, update))

    def reset_state(projected: te.Tensor, product: te.Tensor, old: te.Tensor, at: te.Tensor) -> te.Tensor:
        return te.compute(
            old.shape, lambda b, j: f(cell.total(projected, product, at, 1, b, j)) * old(b, j), name="reset"
        )

    kept = node.te(
        reset_state,
        direction.projected,
        product,
        hidden,
        position,
        name="gru_reset",
        same=("gru_reset", direction.reverse),
    )
    inner = node.emit(relax.op.matmul(kept, candidate))

    def output(
        projected: te.Tensor,
        product: te.Tensor,
        inner: te.Tensor,
        old: te.Tensor,
        at: te.Tensor,
        *lens: te.Tensor,
    ) -> te.Tensor:
        def new(b: Any, j: Any) -> Any:
            fresh = g(cell.bounded(_at(projected, at, b, 2 * size + j) + inner(b, j)))
            value = cell.finish(f(cell.total(projected, product, at, 0, b, j)), fresh, old(b, j))
            return _kept(at, lens, b, value, old(b, j))

        return te.compute(old.shape, new, name="hidden")

    return node.te(
        output,
        direction.projected,
        product,
        inner,
        hidden,
        position,
        *masks,
        name="gru_output",
        same=("gru_output", direction.reverse),
    )


def _gru_weights(node: Node, direction: Direction, size: int) -> tuple[Any, Any]:
    """The recurrent weights of update and reset gate, and those of the candidate."""
    known = constant(direction.weights)
    if known is not None:
        return const(known[:, : 2 * size]), const(known[:, 2 * size :])
    cut = [
        node.emit(relax.op.strided_slice(direction.weights, axes=[1], begin=[a], end=[b]))
        for a, b in ((0, 2 * size), (2 * size, 3 * size))
    ]
    return cut[0], cut[1]


def rnn_step(
    node: Node, direction: Direction, hidden: Any, cell: Any, position: Any, lengths: Any
) -> tuple[Any, Any]:
    """One step of RNN: the new hidden state; it has no cell."""
    product = direction.recurrent(hidden)
    bounded, (f,) = clipping(node), direction.activations

    def output(
        projected: te.Tensor, product: te.Tensor, old: te.Tensor, at: te.Tensor, *lens: te.Tensor
    ) -> te.Tensor:
        return te.compute(
            old.shape,
            lambda b, j: _kept(at, lens, b, f(bounded(_at(projected, at, b, j) + product(b, j))), old(b, j)),
            name="hidden",
        )

    masks = [] if lengths is None else [lengths]
    return node.te(
        output,
        direction.projected,
        product,
        hidden,
        position,
        *masks,
        name="rnn_output",
        same=("rnn_output", direction.reverse),
    ), None
