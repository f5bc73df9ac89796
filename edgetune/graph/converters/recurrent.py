"""LSTM, GRU and RNN, unrolled over their static number of steps.

The products of the input with its weights are one matrix product for all steps. A step is then one product
of the state with the recurrent weights and one kernel for the gates. All steps share these kernels: the
position in the sequence is an operand, not a constant of the kernel, so a long sequence costs calls, not code.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx, topi

from edgetune.errors import UnsupportedModelError
from edgetune.graph import legalize
from edgetune.graph.converters.base import Node, const, constant, converter, dtype, shape
from edgetune.graph.converters.integer import dynamic_quantize_product

Scalar = Callable[[Any], Any]
_CONCAT = 16
"""Concatenation selects its operand for each element: many operands are joined in a tree."""


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


def lstm(node: Node) -> Any:
    """LSTM; outputs Y, Y_h, Y_c."""
    return _run(node, gates=4, step=_lstm_step, defaults=("Sigmoid", "Tanh", "Tanh"))


def gru(node: Node) -> Any:
    """GRU; outputs Y, Y_h."""
    return _run(node, gates=3, step=_gru_step, defaults=("Sigmoid", "Tanh"))


def rnn(node: Node) -> Any:
    """RNN; outputs Y, Y_h."""
    return _run(node, gates=1, step=_rnn_step, defaults=("Tanh",))


Step = Callable[[Node, Direction, Any, Any, Any, Any], tuple[Any, Any]]
"""(node, direction, hidden, cell, position, lengths) -> the next (hidden, cell)."""
Directions = Callable[[Node, Any, int, Sequence[str]], Iterator[Direction]]
"""(node, input [T, B, I], gates, default activations) -> each direction."""


def dynamic_quantize_lstm(node: Node) -> Any:
    """com.microsoft DynamicQuantizeLSTM: an LSTM whose products quantise the input and the state over their ranges."""
    return _run(node, gates=4, step=_lstm_step, defaults=("Sigmoid", "Tanh", "Tanh"), directions=_quantized_directions)


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
            outputs = [_masked(node, y, const(np.array([t], np.int32)), lengths) for t, y in enumerate(outputs)]
        size = shape(hidden)[-1]
        sequences.append(_join(node, [_reshape(node, y, (1, 1, batch, size)) for y in outputs], 0))
        hiddens.append(_reshape(node, hidden, (1, batch, size)))
        cells.append(None if cell is None else _reshape(node, cell, (1, batch, size)))
    results = [_join(node, sequences, 1), _join(node, hiddens, 0)]
    if cells[0] is not None:
        results.append(_join(node, cells, 0))
    if batch_first:
        orders = ([2, 0, 1, 3], [1, 0, 2], [1, 0, 2])
        results = [node.emit(relax.op.permute_dims(r, order)) for r, order in zip(results, orders, strict=False)]
    return results


def _lengths(node: Node, steps: int) -> Any:
    """The operand ``sequence_lens``; None where every sequence has all steps."""
    value = node.array(4)
    return None if value is not None and np.all(value == steps) else node.input(4)


def _reversals(node: Node, count: int) -> tuple[bool, ...]:
    """For each direction whether it is the reverse one."""
    names = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
    reverse = names[node.text("direction", "forward").lower()]
    if len(reverse) != count:
        raise UnsupportedModelError(f"the weights are for {count} directions, the attribute names {len(reverse)}")
    return reverse


def _quantized_directions(node: Node, x: Any, gates: int, defaults: Sequence[str]) -> Iterator[Direction]:
    w, r = node.needed(1), node.needed(2)
    count, inputs, rows = shape(w)
    size = rows // gates
    activations = _activations(node, [*defaults] * count)
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
    activations = _activations(node, [*defaults] * count)
    separate = gates == 3 and node.int("linear_before_reset", 0) != 0
    for index, backwards in enumerate(reverse):
        bias = node.input(3)
        halves = [None, None] if bias is None else [_part(node, bias, index, k * rows, (k + 1) * rows) for k in (0, 1)]
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
            g[0] if len(g) == 1 else node.te(stack, *g, name="stack", alone=True, same=("stack", *map(shape, g)))
            for g in groups
        ]
    return parts[0]


def _masked(node: Node, y: Any, position: Any, lengths: Any) -> Any:
    """``y`` where the sequence has not ended, zero elsewhere."""

    def mask(y: te.Tensor, at: te.Tensor, lens: te.Tensor) -> te.Tensor:
        zero = tirx.const(0, y.dtype)
        return te.compute(y.shape, lambda b, h: tirx.Select(at(0) < lens(b).astype("int32"), y(b, h), zero), name="mask")

    return node.te(mask, y, position, lengths, name="sequence_mask", same="mask")


def _product(node: Node, weights: Any, bias: Any, hidden: Any) -> Any:
    product = node.emit(relax.op.matmul(hidden, weights))
    return product if bias is None else node.emit(relax.op.add(product, bias))


def _bounded(node: Node) -> Scalar:
    """The attribute ``clip``: what an activation is given lies within it."""
    limit = node.float("clip", 0.0)
    if limit <= 0:
        return lambda x: x
    return lambda x: te.max(te.min(x, tirx.const(limit, str(x.ty.dtype))), tirx.const(-limit, str(x.ty.dtype)))


def _at(projected: te.Tensor, position: te.Tensor, b: Any, column: Any) -> Any:
    """The step's row; the bounds keep a kernel that is measured on random operands inside its memory."""
    last = tirx.const(int(projected.shape[0]) - 1, "int32")
    return projected(te.max(te.min(position(0), last), tirx.const(0, "int32")), b, column)


def _kept(position: te.Tensor, lengths: Sequence[te.Tensor], b: Any, new: Any, old: Any) -> Any:
    """``new`` while the sequence lasts, afterwards ``old``."""
    return tirx.Select(position(0) < lengths[0](b).astype("int32"), new, old) if lengths else new


def _lstm_step(
    node: Node, direction: Direction, hidden: Any, cell: Any, position: Any, lengths: Any
) -> tuple[Any, Any]:
    product = direction.recurrent(hidden)
    extra = [x for x in (lengths, direction.peephole) if x is not None]
    masked, peepholes = lengths is not None, direction.peephole is not None
    bounded, coupled = _bounded(node), node.int("input_forget", 0) != 0
    f, g, h = direction.activations

    def gates(
        projected: te.Tensor, product: te.Tensor, old: te.Tensor, before: te.Tensor, at: te.Tensor, *rest: te.Tensor
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
        return [out, te.compute(old.shape, lambda b, j: _kept(at, lens, b, fresh(b, j), old(b, j)), name="kept_cell")]

    # Alone: were the cell no output of the kernel, it would be inlined, and with it several exponentials.
    pair = node.te(gates, direction.projected, product, cell, hidden, position, *extra, name="lstm_gates", alone=True, same=direction.reverse)
    return node.emit(relax.TupleGetItem(pair, 0)), node.emit(relax.TupleGetItem(pair, 1))


def _gru_step(
    node: Node, direction: Direction, hidden: Any, cell: Any, position: Any, lengths: Any
) -> tuple[Any, Any]:
    bounded = _bounded(node)
    f, g = direction.activations
    masks = [] if lengths is None else [lengths]
    size = shape(hidden)[1]

    def total(projected: te.Tensor, product: te.Tensor, at: te.Tensor, k: int, b: Any, j: Any) -> Any:
        return bounded(_at(projected, at, b, k * size + j) + product(b, k * size + j))

    def finish(z: Any, candidate: Any, old: Any) -> Any:
        # (1 - z) candidate + z old, with either gate written once: they are large expressions.
        return old + (tirx.const(1, str(old.ty.dtype)) - z) * (candidate - old)

    if node.int("linear_before_reset", 0) != 0:
        product = direction.recurrent(hidden)

        def gates(
            projected: te.Tensor, product: te.Tensor, old: te.Tensor, at: te.Tensor, *lens: te.Tensor
        ) -> list[te.Tensor]:
            reset = te.compute(old.shape, lambda b, j: f(total(projected, product, at, 1, b, j)), name="reset")

            def new(b: Any, j: Any) -> Any:
                inner = _at(projected, at, b, 2 * size + j) + reset(b, j) * product(b, 2 * size + j)
                value = finish(f(total(projected, product, at, 0, b, j)), g(bounded(inner)), old(b, j))
                return _kept(at, lens, b, value, old(b, j))

            return [te.compute(old.shape, new, name="hidden"), reset]

        # The reset gate is an output only so that it is not inlined into the next activation.
        pair = node.te(gates, direction.projected, product, hidden, position, *masks, name="gru_gates", alone=True, same=direction.reverse)
        return node.emit(relax.TupleGetItem(pair, 0)), None

    update, candidate = _gru_weights(node, direction, size)
    product = node.emit(relax.op.matmul(hidden, update))

    def reset_state(projected: te.Tensor, product: te.Tensor, old: te.Tensor, at: te.Tensor) -> te.Tensor:
        return te.compute(old.shape, lambda b, j: f(total(projected, product, at, 1, b, j)) * old(b, j), name="reset")

    kept = node.te(reset_state, direction.projected, product, hidden, position, name="gru_reset", same=("gru_reset", direction.reverse))
    inner = node.emit(relax.op.matmul(kept, candidate))

    def output(
        projected: te.Tensor, product: te.Tensor, inner: te.Tensor, old: te.Tensor, at: te.Tensor, *lens: te.Tensor
    ) -> te.Tensor:
        def new(b: Any, j: Any) -> Any:
            fresh = g(bounded(_at(projected, at, b, 2 * size + j) + inner(b, j)))
            value = finish(f(total(projected, product, at, 0, b, j)), fresh, old(b, j))
            return _kept(at, lens, b, value, old(b, j))

        return te.compute(old.shape, new, name="hidden")

    return node.te(output, direction.projected, product, inner, hidden, position, *masks, name="gru_output", same=("gru_output", direction.reverse)), None


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


def _rnn_step(
    node: Node, direction: Direction, hidden: Any, cell: Any, position: Any, lengths: Any
) -> tuple[Any, Any]:
    product = direction.recurrent(hidden)
    bounded, (f,) = _bounded(node), direction.activations

    def output(projected: te.Tensor, product: te.Tensor, old: te.Tensor, at: te.Tensor, *lens: te.Tensor) -> te.Tensor:
        return te.compute(
            old.shape,
            lambda b, j: _kept(at, lens, b, f(bounded(_at(projected, at, b, j) + product(b, j))), old(b, j)),
            name="hidden",
        )

    masks = [] if lengths is None else [lengths]
    return node.te(output, direction.projected, product, hidden, position, *masks, name="rnn_output", same=("rnn_output", direction.reverse)), None


_DEFAULTS: dict[str, tuple[float, ...]] = {
    "affine": (1.0, 0.0),
    "leakyrelu": (0.01,),
    "thresholdedrelu": (1.0,),
    "scaledtanh": (1.0, 1.0),
    "hardsigmoid": (0.2, 0.5),
    "elu": (1.0,),
}
"""The activations that take alpha, or alpha and beta, and their default values."""


def _activations(node: Node, defaults: Sequence[str]) -> list[Scalar]:
    """The named activations with their parameters, which are dealt out in order to those that take one."""
    names = [v.decode() if isinstance(v, bytes) else str(v) for v in node.attributes.get("activations", defaults)]
    if len(names) != len(defaults):
        raise UnsupportedModelError(f"{len(names)} activations are named, {len(defaults)} are needed")
    alphas = list(node.attributes.get("activation_alpha", ()))
    betas = list(node.attributes.get("activation_beta", ()))
    result = []
    for name in names:
        parameters = list(_DEFAULTS.get(name.lower(), ()))
        for i, given in enumerate((alphas, betas)):
            if i < len(parameters) and given:
                parameters[i] = float(given.pop(0))
        result.append(_activation(name.lower(), parameters))
    return result


def _activation(name: str, parameters: Sequence[float]) -> Scalar:
    if name not in _FORMULAS:
        raise UnsupportedModelError(f"the activation {name!r} is not one of the standard's")

    def apply(x: Any) -> Any:
        kind = str(x.ty.dtype)
        constants = [tirx.const(p, kind) for p in parameters]
        return legalize.shared(x, lambda x: _FORMULAS[name](x, *constants, one=tirx.const(1, kind)))

    return apply


def _zero(x: Any) -> Any:
    return tvm.tirx.const(0, str(x.ty.dtype))


_FORMULAS: dict[str, Callable[..., Any]] = {
    "sigmoid": lambda x, one: legalize.sigmoid(x),
    "tanh": lambda x, one: legalize.tanh(x),
    "relu": lambda x, one: legalize.relu(x),
    "affine": lambda x, a, b, one: a * x + b,
    "leakyrelu": lambda x, a, one: tirx.Select(x < _zero(x), a * x, x),
    "thresholdedrelu": lambda x, a, one: tirx.Select(x > a, x, _zero(x)),
    "scaledtanh": lambda x, a, b, one: a * legalize.tanh(b * x),
    "hardsigmoid": lambda x, a, b, one: te.max(te.min(a * x + b, one), _zero(x)),
    "elu": lambda x, a, one: tirx.Select(x < _zero(x), a * (legalize.exp(x) - one), x),
    "softsign": lambda x, one: x / (one + te.abs(x)),
    # log(1 + e^x) without overflow.
    "softplus": lambda x, one: te.max(x, _zero(x)) + te.log(one + legalize.exp(-te.abs(x))),
}

CONVERTERS: dict[str, type] = {
    "LSTM": converter(lstm),
    "GRU": converter(gru),
    "RNN": converter(rnn),
    "com.microsoft.DynamicQuantizeLSTM": converter(dynamic_quantize_lstm),
}
