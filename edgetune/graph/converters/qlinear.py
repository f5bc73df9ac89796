"""Element by element, pooling and concatenation on quantised tensors (com.microsoft), and DynamicQuantizeLSTM."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from edgetune.errors import UnsupportedModelError
from edgetune.graph import legalize
from edgetune.graph.converters.base import Node, constant, converter, dtype, element, positive_axis, shape
from edgetune.graph.converters.geometry import window
from edgetune.graph.converters.quantization import (
    default_zero,
    dequantize_operator,
    dequantized,
    quantize_operator,
    quantized,
    scalar,
    zero_or_none,
)


def _given(*values: Any) -> list[Any]:
    return [value for value in values if value is not None]


def _requantized(
    node: Node,
    tensors: list[tuple[Any, Any, Any]],
    out: tuple[Any, Any],
    sizes: Any,
    compute: Callable[..., Any],
    name: str,
) -> Any:
    """A kernel that reads quantised tensors, computes in float32 and quantises the result.

    Args:
        node: emits it.
        tensors: (values, scale, zero point or None), the parameters of one element.
        out: (scale, zero point or None) of the result.
        sizes: shape of the result.
        compute: (readers, index) -> float32 expression; a reader gives the value at an index.
        name: of the kernel.
    """
    kind = dtype(tensors[0][0])
    zeros = [zero_or_none(t[2]) for t in tensors]
    out_zero = zero_or_none(out[1])
    operands = [*(t[0] for t in tensors), *(t[1] for t in tensors), out[0], *_given(*zeros, out_zero)]

    def kernel(*given: te.Tensor) -> te.Tensor:
        count = len(tensors)
        origins = list(given[2 * count + 1 :])
        readers = []
        for i in range(count):
            origin = scalar(origins.pop(0)) if zeros[i] is not None else None

            def read(index: Any, i: int = i, origin: Any = origin) -> Any:
                return dequantized(element(given[i], index), scalar(given[count + i]), origin)

            readers.append(read)
        last = scalar(origins.pop(0)) if out_zero is not None else None
        step = scalar(given[2 * count])
        return te.compute(
            sizes, lambda *i: quantized(compute(readers, i), step, last, kind), name="quantized"
        )

    return node.te(kernel, *operands, name=name)


def _as_operators(
    node: Node, tensors: list[tuple[Any, Any, Any]], out: tuple[Any, Any], operator: Callable[..., Any]
) -> Any:
    """The operator between dequantize and quantize where parameters are constants, as images mostly have them."""
    parameters = [p for given in (*(t[1:] for t in tensors), out) for p in given if p is not None]
    if any(constant(p) is None or constant(p).size != 1 for p in parameters):  # type: ignore[union-attr]
        return None
    if any(len(shape(t[0])) != 4 for t in tensors):
        return None
    kind = dtype(tensors[0][0])
    floats = [
        dequantize_operator(node, x, scale, zero if zero is not None else default_zero(kind), 1)
        for x, scale, zero in tensors
    ]
    zero = out[1] if out[1] is not None else default_zero(kind)
    return quantize_operator(node, node.emit(operator(*floats)), out[0], zero, 1)


def _binary(
    operator: Callable[[Any, Any], Any], operators: Callable[[Any, Any], Any], name: str
) -> Callable[[Node], Any]:
    def convert(node: Node) -> Any:
        a, b = node.needed(0), node.needed(3)
        sizes = tuple(int(s) for s in np.broadcast_shapes(shape(a), shape(b)))
        tensors = [(a, node.needed(1), node.input(2)), (b, node.needed(4), node.input(5))]

        def compute(readers: Any, index: Any) -> Any:
            return operator(readers[0](index), readers[1](index))

        known = _as_operators(node, tensors, (node.needed(6), node.input(7)), operators)
        if known is not None:
            return known
        return _requantized(node, tensors, (node.needed(6), node.input(7)), sizes, compute, name)

    return convert


def _unary(function: Callable[[Node, Any], Any], name: str) -> Callable[[Node], Any]:
    def convert(node: Node) -> Any:
        x = node.needed(0)

        def compute(readers: Any, index: Any) -> Any:
            return function(node, readers[0](index))

        tensors = [(x, node.needed(1), node.input(2))]
        return _requantized(node, tensors, (node.needed(3), node.input(4)), shape(x), compute, name)

    return convert


def _leaky_relu(node: Node, x: Any) -> Any:
    return tirx.Select(x < tirx.const(0, "float32"), x * tirx.const(node.float("alpha", 0.01), "float32"), x)


def softmax(node: Node) -> Any:
    """QLinearSoftmax: over one axis, or before opset 13 (the attribute says so) over all from it on."""
    x = node.needed(0)
    sizes, kind = shape(x), dtype(x)
    axis = positive_axis(node.int("axis", -1), len(sizes))
    if node.int("opset", 13) < 13:
        x = node.emit(relax.op.reshape(x, (math.prod(sizes[:axis]), math.prod(sizes[axis:]))))
        axis = 1

    def dequantize(x: te.Tensor, scale: te.Tensor) -> te.Tensor:
        # Zero points drop out: every element of a row is moved by the same.
        return te.compute(x.shape, lambda *i: dequantized(x(*i), scalar(scale), None), name="dequantized")

    weights = node.emit(relax.op.nn.softmax(node.te(dequantize, x, node.needed(1), name="dequantize"), axis))
    out_zero = zero_or_none(node.input(4))

    def quantize(y: te.Tensor, scale: te.Tensor, *zero: te.Tensor) -> te.Tensor:
        origin = scalar(zero[0]) if zero else None
        return te.compute(y.shape, lambda *i: quantized(y(*i), scalar(scale), origin, kind), name="quantized")

    result = node.te(quantize, weights, node.needed(3), *_given(out_zero), name="quantized_softmax")
    return result if shape(result) == sizes else node.emit(relax.op.reshape(result, sizes))


def concat(node: Node) -> Any:
    """QLinearConcat: every operand to the scale of the result, then joined."""
    out = (node.needed(0), node.input(1))
    given = [(node.needed(i), node.needed(i + 1), node.input(i + 2)) for i in range(2, len(node.inputs), 3)]
    axis = positive_axis(int(node.attributes["axis"]), len(shape(given[0][0])))
    known = _as_operators(node, given, out, lambda *parts: relax.op.concat(list(parts), axis))
    if known is not None:
        return known
    parts = []
    for x, scale, zero in given:
        parts.append(
            _requantized(
                node,
                [(x, scale, zero)],
                out,
                shape(x),
                lambda readers, index: readers[0](index),
                "requantize",
            )
        )
    return node.emit(relax.op.concat(parts, axis))


def _channels_first(node: Node, x: Any) -> Any:
    rank = len(shape(x))
    if not node.int("channels_last", 0):
        return x
    return node.emit(relax.op.permute_dims(x, [0, rank - 1, *range(1, rank - 1)]))


def _channels_back(node: Node, x: Any) -> Any:
    rank = len(shape(x))
    return node.emit(relax.op.permute_dims(x, [0, *range(2, rank), 1])) if node.int("channels_last", 0) else x


def global_average_pool(node: Node) -> Any:
    """QLinearGlobalAveragePool: the sum is one of integers."""
    x = _channels_first(node, node.needed(0))
    sizes = shape(x)
    rank, count = len(sizes), int(np.prod(sizes[2:]))
    kind = dtype(x)
    x_zero, y_zero = zero_or_none(node.input(2)), zero_or_none(node.input(4))

    def pool(x: te.Tensor, x_scale: te.Tensor, y_scale: te.Tensor, *zeros: te.Tensor) -> te.Tensor:
        axes = [te.reduce_axis((0, size), f"k{i}") for i, size in enumerate(sizes[2:])]
        total = te.compute(
            sizes[:2], lambda n, c: te.sum(x(n, c, *axes).astype("int32"), axis=axes), name="sums"
        )
        origins = list(zeros)
        xz = origins.pop(0) if x_zero is not None else None
        yz = origins.pop(0) if y_zero is not None else None

        def at(n: Any, c: Any, *_: Any) -> Any:
            value = total(n, c)
            if xz is not None:
                value = value - tirx.const(count, "int32") * scalar(xz).astype("int32")
            step = scalar(y_scale) * tirx.const(count, "float32") / scalar(x_scale)
            return quantized(value.astype("float32"), step, None if yz is None else scalar(yz), kind)

        return te.compute((*sizes[:2], *[1] * (rank - 2)), at, name="quantized")

    operands = [x, node.needed(1), node.needed(3), *_given(x_zero, y_zero)]
    return _channels_back(node, node.te(pool, *operands, name="quantized_global_average_pool"))


def average_pool(node: Node) -> Any:
    """QLinearAveragePool: the average is computed in float32."""
    x = _channels_first(node, node.needed(0))
    kernel = node.ints("kernel_shape")
    if kernel is None:
        raise UnsupportedModelError("the attribute kernel_shape is required")
    geometry = window(node, shape(x)[2:], kernel)
    kind, whole = dtype(x), bool(node.int("count_include_pad", 0))
    x_zero, y_zero = zero_or_none(node.input(2)), zero_or_none(node.input(4))

    def pool(x: te.Tensor, x_scale: te.Tensor, y_scale: te.Tensor, *zeros: te.Tensor) -> te.Tensor:
        origins = list(zeros)
        xz = scalar(origins.pop(0)) if x_zero is not None else None
        yz = scalar(origins.pop(0)) if y_zero is not None else None
        axes, counted = (
            [te.reduce_axis((0, k), f"{name}{i}") for i, k in enumerate(kernel)] for name in ("k", "j")
        )

        def inside(place: Any, offset: Any, padding: bool) -> Any:
            spans = zip(
                geometry.read(place, offset), geometry.before, geometry.size, geometry.after, strict=True
            )
            return te.all(
                *(
                    te.all(r >= (0 if padding else b), r < b + s + (a if padding else 0))
                    for r, b, s, a in spans
                )
            )

        def read(n: Any, c: Any, place: Any) -> Any:
            reads = [r - b for r, b in zip(geometry.read(place, axes), geometry.before, strict=True)]
            value = x(n, c, *reads).astype("int32")
            value = value if xz is None else value - xz.astype("int32")
            return te.if_then_else(inside(place, axes, False), value, none)

        one, none = tirx.const(1, "int32"), tirx.const(0, "int32")
        outer = (x.shape[0], x.shape[1], *geometry.output)
        total = te.compute(outer, lambda n, c, *p: te.sum(read(n, c, p), axis=axes), name="sums")
        number = te.compute(
            geometry.output,
            lambda *p: te.sum(te.if_then_else(inside(p, counted, whole), one, none), axis=counted),
            name="counts",
        )

        def at(n: Any, c: Any, *p: Any) -> Any:
            average = total(n, c, *p).astype("float32") / number(*p).astype("float32") * scalar(x_scale)
            return quantized(average, scalar(y_scale), yz, kind)

        return te.compute(outer, at, name="quantized")

    operands = [x, node.needed(1), node.needed(3), *_given(x_zero, y_zero)]
    return _channels_back(node, node.te(pool, *operands, name="quantized_average_pool"))


CONVERTERS: dict[str, type] = {
    f"com.microsoft.{name}": converter(convert)
    for name, convert in {
        "QLinearAdd": _binary(lambda a, b: a + b, relax.op.add, "quantized_add"),
        "QLinearMul": _binary(lambda a, b: a * b, relax.op.multiply, "quantized_multiply"),
        "QLinearSigmoid": _unary(lambda node, x: legalize.sigmoid(x), "quantized_sigmoid"),
        "QLinearLeakyRelu": _unary(_leaky_relu, "quantized_leaky_relu"),
        "QLinearSoftmax": softmax,
        "QLinearConcat": concat,
        "QLinearGlobalAveragePool": global_average_pool,
        "QLinearAveragePool": average_pool,
    }.items()
}
