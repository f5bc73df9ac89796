"""LSTM, GRU and RNN, unrolled over their static number of steps.

The products of the input with its weights are one matrix product for all steps. A step is then one product
of the state with the recurrent weights and one kernel for the gates. All steps share these kernels: the
position in the sequence is an operand, not a constant of the kernel, so a long sequence costs calls, not code.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx, topi

from edgetune.errors import UnsupportedModelError
from edgetune.graph.converters.activations import named_activations
from edgetune.graph.converters.base import Node, const, constant, converter, dtype, shape
from edgetune.graph.converters.cells import Direction, gru_step, lstm_step, rnn_step
from edgetune.graph.converters.integer import dynamic_quantize_product

_CONCAT = 16
"""Concatenation selects its operand for each element: many operands are joined in a tree."""


def lstm(node: Node) -> Any:
    """LSTM; outputs Y, Y_h, Y_c."""
    return _run(node, gates=4, step=lstm_step, defaults=("Sigmoid", "Tanh", "Tanh"))


def gru(node: Node) -> Any:
    """GRU; outputs Y, Y_h."""
    return _run(node, gates=3, step=gru_step, defaults=("Sigmoid", "Tanh"))


def rnn(node: Node) -> Any:
    """RNN; outputs Y, Y_h."""
    return _run(node, gates=1, step=rnn_step, defaults=("Tanh",))


Step = Callable[[Node, Direction, Any, Any, Any, Any], tuple[Any, Any]]
"""(node, direction, hidden, cell, position, lengths) -> the next (hidden, cell)."""
Directions = Callable[[Node, Any, int, Sequence[str]], Iterator[Direction]]
"""(node, input [T, B, I], gates, default activations) -> each direction."""


def dynamic_quantize_lstm(node: Node) -> Any:
    """com.microsoft DynamicQuantizeLSTM: an LSTM whose products quantise the input and the state over their ranges."""
    return _run(
        node, gates=4, step=lstm_step, defaults=("Sigmoid", "Tanh", "Tanh"), directions=_quantized_directions
    )


def _run(
    node: Node, gates: int, step: Step, defaults: Sequence[str], directions: Directions | None = None
) -> list[Any]:
    x, batch_first = node.needed(0), node.int("layout", 0) == 1
    if batch_first:
        x = node.emit(relax.op.permute_dims(x, [1, 0, 2]))
    steps, batch, _ = shape(x)
    lengths = _lengths(node, steps)
    sequences, hiddens, cells = [], [], []
    for direction in (directions or _directions)(node, x, gates, defaults):
        hidden, cell = direction.state, direction.cell
        outputs: list[Any] = [None] * steps
        for position in reversed(range(steps)) if direction.reverse else range(steps):
            hidden, cell = step(node, direction, hidden, cell, const(np.array([position], np.int32)), lengths)
            outputs[position] = hidden
        if lengths is not None:
            outputs = [
                _masked(node, y, const(np.array([t], np.int32)), lengths) for t, y in enumerate(outputs)
            ]
        if _may_be_empty(node, lengths):
            # ONNX Runtime: the state after a sequence of no steps is zero, and not the one it began with.
            first = const(np.array([0], np.int32))
            hidden = _masked(node, hidden, first, lengths)
            cell = None if cell is None else _masked(node, cell, first, lengths)
        size = shape(hidden)[-1]
        sequences.append(_join(node, [_reshape(node, y, (1, 1, batch, size)) for y in outputs], 0))
        hiddens.append(_reshape(node, hidden, (1, batch, size)))
        cells.append(None if cell is None else _reshape(node, cell, (1, batch, size)))
    results = [_join(node, sequences, 1), _join(node, hiddens, 0)]
    if cells[0] is not None:
        results.append(_join(node, cells, 0))
    if batch_first:
        orders = ([2, 0, 1, 3], [1, 0, 2], [1, 0, 2])
        results = [
            node.emit(relax.op.permute_dims(r, order)) for r, order in zip(results, orders, strict=False)
        ]
    return results


def _lengths(node: Node, steps: int) -> Any:
    """The operand ``sequence_lens``; None where every sequence has all steps."""
    value = node.array(4)
    return None if value is not None and np.all(value == steps) else node.input(4)


def _may_be_empty(node: Node, lengths: Any) -> bool:
    """Whether a sequence may have no steps at all."""
    value = node.array(4)
    return lengths is not None and (value is None or bool(np.any(value < 1)))


def _reversals(node: Node, count: int) -> tuple[bool, ...]:
    """For each direction whether it is the reverse one."""
    names = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
    reverse = names[node.text("direction", "forward").lower()]
    if len(reverse) != count:
        raise UnsupportedModelError(
            f"the weights are for {count} directions, the attribute names {len(reverse)}"
        )
    return reverse


def _quantized_directions(node: Node, x: Any, gates: int, defaults: Sequence[str]) -> Iterator[Direction]:
    w, r = node.needed(1), node.needed(2)
    count, inputs, rows = shape(w)
    size = rows // gates
    activations = named_activations(node, [*defaults] * count)
    steps, batch, _ = shape(x)
    flat = _reshape(node, x, (steps * batch, inputs))
    for index, backwards in enumerate(_reversals(node, count)):
        bias = node.input(3)
        if bias is not None:
            bias = _add(node, *(_part(node, bias, index, k * rows, (k + 1) * rows) for k in (0, 1)))
        w_scale, w_zero, r_scale, r_zero = (
            None if node.input(i) is None else _part(node, node.input(i), index) for i in range(8, 12)
        )
        projected = dynamic_quantize_product(node, flat, _part(node, w, index), w_scale, w_zero, bias)
        weights = _part(node, r, index)

        def recurrent(hidden: Any, weights: Any = weights, scale: Any = r_scale, zero: Any = r_zero) -> Any:
            return dynamic_quantize_product(node, hidden, weights, scale, zero)

        yield Direction(
            backwards,
            _reshape(node, projected, (steps, batch, rows)),
            weights,
            recurrent,
            _initial(node, 5, index, batch, size, dtype(x)),
            _initial(node, 6, index, batch, size, dtype(x)),
            None if node.input(7) is None else _part(node, node.input(7), index),
            tuple(activations[index * len(defaults) : (index + 1) * len(defaults)]),
        )


def _directions(node: Node, x: Any, gates: int, defaults: Sequence[str]) -> Iterator[Direction]:
    w, r = node.needed(1), node.needed(2)
    count, rows, _ = shape(w)
    size = rows // gates
    reverse = _reversals(node, count)
    activations = named_activations(node, [*defaults] * count)
    separate = gates == 3 and node.int("linear_before_reset", 0) != 0
    for index, backwards in enumerate(reverse):
        bias = node.input(3)
        halves = (
            [None, None]
            if bias is None
            else [_part(node, bias, index, k * rows, (k + 1) * rows) for k in (0, 1)]
        )
        if not separate and halves[0] is not None:
            halves = [_add(node, *halves), None]
        weights = _transposed(node, _part(node, r, index))
        yield Direction(
            backwards,
            _project(node, x, _transposed(node, _part(node, w, index)), halves[0]),
            weights,
            functools.partial(_product, node, weights, halves[1]),
            _initial(node, 5, index, shape(x)[1], size, dtype(x)),
            _initial(node, 6, index, shape(x)[1], size, dtype(x)) if gates == 4 else None,
            None if gates != 4 or node.input(7) is None else _part(node, node.input(7), index),
            tuple(activations[index * len(defaults) : (index + 1) * len(defaults)]),
        )


def _project(node: Node, x: Any, weight: Any, bias: Any) -> Any:
    """All steps' products with the input weights: ``[T, B, gates * H]``."""
    steps, batch, inputs = shape(x)
    flat = _reshape(node, x, (steps * batch, inputs))
    product = node.emit(relax.op.matmul(flat, weight))
    if bias is not None:
        product = node.emit(relax.op.add(product, bias))
    return _reshape(node, product, (steps, batch, shape(weight)[1]))


def _part(node: Node, value: Any, index: int, begin: int | None = None, end: int | None = None) -> Any:
    """``value[index]``, of that the elements ``begin`` to ``end``; computed now where the value is known."""
    known = constant(value)
    if known is not None:
        taken = np.asarray(known[index])
        return const(taken if begin is None else taken[begin:end])
    sizes = shape(value)
    taken = node.emit(relax.op.strided_slice(value, axes=[0], begin=[index], end=[index + 1]))
    taken = _reshape(node, taken, sizes[1:])
    if begin is None:
        return taken
    return node.emit(relax.op.strided_slice(taken, axes=[0], begin=[begin], end=[end]))


def _transposed(node: Node, matrix: Any) -> Any:
    known = constant(matrix)
    return const(known.T) if known is not None else node.emit(relax.op.permute_dims(matrix, [1, 0]))


def _add(node: Node, a: Any, b: Any) -> Any:
    known = [constant(a), constant(b)]
    if known[0] is not None and known[1] is not None:
        return const(known[0] + known[1])
    return node.emit(relax.op.add(a, b))


def _initial(node: Node, position: int, index: int, batch: int, size: int, element_type: str) -> Any:
    """An initial state ``[B, H]``: zeros where it was left out."""
    value = node.input(position)
    if value is None:
        return const(np.zeros((batch, size), element_type))
    if node.int("layout", 0) == 1:
        value = node.emit(relax.op.permute_dims(value, [1, 0, 2]))
    return _part(node, value, index)


def _reshape(node: Node, value: Any, sizes: Sequence[int]) -> Any:
    return value if shape(value) == tuple(sizes) else node.emit(relax.op.reshape(value, tuple(sizes)))


def _join(node: Node, parts: Sequence[Any], axis: int) -> Any:
    if 1 < len(parts) <= _CONCAT:
        return node.emit(relax.op.concat(list(parts), axis))

    def stack(*operands: te.Tensor) -> te.Tensor:
        return topi.concatenate(operands, axis)

    while len(parts) > 1:
        groups = [parts[i : i + _CONCAT] for i in range(0, len(parts), _CONCAT)]
        # Alone: fused, the tree would be one kernel again.
        parts = [
            g[0]
            if len(g) == 1
            else node.te(stack, *g, name="stack", alone=True, same=("stack", *map(shape, g)))
            for g in groups
        ]
    return parts[0]


def _masked(node: Node, y: Any, position: Any, lengths: Any) -> Any:
    """``y`` where the sequence has not ended, zero elsewhere."""

    def mask(y: te.Tensor, at: te.Tensor, lens: te.Tensor) -> te.Tensor:
        zero = tirx.const(0, y.dtype)
        return te.compute(
            y.shape, lambda b, h: tirx.Select(at(0) < lens(b).astype("int32"), y(b, h), zero), name="mask"
        )

    return node.te(mask, y, position, lengths, name="sequence_mask", same="mask")


def _product(node: Node, weights: Any, bias: Any, hidden: Any) -> Any:
    product = node.emit(relax.op.matmul(hidden, weights))
    return product if bias is None else node.emit(relax.op.add(product, bias))


CONVERTERS: dict[str, type] = {
    "LSTM": converter(lstm),
    "GRU": converter(gru),
    "RNN": converter(rnn),
    "com.microsoft.DynamicQuantizeLSTM": converter(dynamic_quantize_lstm),
}
