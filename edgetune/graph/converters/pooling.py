"""MaxPool, AveragePool and LpPool with their padding written out.

TVM reads ``auto_pad`` and ``ceil_mode`` in its own way, and counts wrongly where a window is dilated or reaches
over the end. Here every window is one that explicit padding describes, so that none of this is left to decide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from edgetune.errors import UnsupportedModelError
from edgetune.graph.converters.base import Node, const, converter, dtype, shape
from edgetune.graph.converters.geometry import Window, window

_MAX = (relax.op.nn.max_pool1d, relax.op.nn.max_pool2d, relax.op.nn.max_pool3d)
_AVERAGE = (relax.op.nn.avg_pool1d, relax.op.nn.avg_pool2d, relax.op.nn.avg_pool3d)


def max_pool(node: Node) -> Any:
    """MaxPool."""
    if node.outputs > 1:
        return _max_pool_with_indices(node)
    x, place = _operands(node)
    return _pool(_MAX, x, place, count_include_pad=False)


def _max_pool_with_indices(node: Node) -> Any:
    """The maxima, and where in the whole tensor they were: the first place of each; ``[N, C, ...]`` both."""
    x, place = _operands(node)
    batch, channels, *size = shape(x)
    # With storage order 1 the spatial axes count from the first one on.
    order = range(len(size))[::-1] if node.int("storage_order", 0) == 0 else range(len(size))
    kind = dtype(x)
    lowest = tirx.const(-math.inf, kind) if "float" in kind else tirx.min_value(kind)

    def larger(a: Any, b: Any) -> Any:
        # NaN is passed over, as ONNX Runtime does: a comparison with it is false.
        later = tirx.any(b[1] > a[1], tirx.all(a[0] < 0, b[1] == a[1]))
        return tirx.Select(later, b[0], a[0]), tirx.Select(later, b[1], a[1])

    reducer = te.comm_reducer(larger, lambda *_: (tirx.const(-1, "int64"), lowest), name="larger")

    def kernel(x: te.Tensor) -> Any:
        axes = [te.reduce_axis((0, k), f"k{i}") for i, k in enumerate(place.kernel)]

        def at(n: Any, c: Any, *target: Any) -> Any:
            own = [r - b for r, b in zip(place.read(target, axes), place.before, strict=True)]
            inside = te.all(*(te.all(i >= 0, i < s) for i, s in zip(own, size, strict=True)))
            position, step = tirx.const(0, "int64"), 1
            for axis in order:
                position, step = position + own[axis].astype("int64") * step, step * size[axis]
            position = position + (n * channels + c).astype("int64") * step
            pair = (
                tirx.Select(inside, position, tirx.const(-1, "int64")),
                te.if_then_else(inside, x(n, c, *own), lowest),
            )
            return reducer(pair, axis=axes)

        indices, values = te.compute((batch, channels, *place.output), at, name="max_pool")
        return [values, indices]

    pooled = node.te(kernel, x, name="max_pool")
    return [relax.TupleGetItem(pooled, 0), relax.TupleGetItem(pooled, 1)]


def average_pool(node: Node) -> Any:
    """AveragePool: over the elements of the input, or of the padding that the model asks for too."""
    x, place = _operands(node)
    whole = bool(node.int("count_include_pad", 0))
    grown = tuple(_grown(place)) != place.after
    if any(d > 1 for d in place.dilation) or (whole and grown):
        # Their counts are constants, by which the average over whole windows is corrected.
        average = node.emit(_pool(_AVERAGE, x, place, count_include_pad=True))
        return relax.op.multiply(average, const(_correction(place, whole), dtype(x)))
    return _pool(_AVERAGE, x, place, count_include_pad=whole)


def lp_pool(node: Node) -> Any:
    """LpPool: the p-norm of each window."""
    x, place = _operands(node)
    p = node.int("p", 2)
    powers = relax.op.abs(x) if p == 1 else relax.op.power(relax.op.abs(x), const(p, dtype(x)))
    average = node.emit(_pool(_AVERAGE, node.emit(powers), place, count_include_pad=True))
    total = relax.op.multiply(average, const(np.prod(place.kernel), dtype(x)))
    return total if p == 1 else relax.op.power(node.emit(total), const(1 / p, dtype(x)))


def _operands(node: Node) -> tuple[Any, Window]:
    x, kernel = node.needed(0), node.ints("kernel_shape")
    if kernel is None:
        raise UnsupportedModelError("the attribute kernel_shape is required")
    if not 1 <= len(kernel) <= len(_MAX):
        raise UnsupportedModelError(f"pooling over {len(kernel)} axes is not implemented; 1 to 3 are")
    _refuse_ambiguous(node, shape(x)[2:], kernel)
    return x, window(node, shape(x)[2:], kernel)


def _refuse_ambiguous(node: Node, sizes: Sequence[int], kernel: Sequence[int]) -> None:
    """SAME padding that would be negative, or of a dilated window: ONNX and ONNX Runtime read it differently."""
    if not node.text("auto_pad", "NOTSET").startswith("SAME"):
        return
    strides = node.ints("strides") or [1] * len(kernel)
    needed = [(-(-s // t) - 1) * t + k - s for s, t, k in zip(sizes, strides, kernel, strict=True)]
    if any(d > 1 for d in node.ints("dilations") or ()) or min(needed, default=0) < 0:
        raise UnsupportedModelError(
            "SAME padding of a pooling window that is dilated or smaller than its stride: ONNX and ONNX Runtime "
            "read it differently; export the model with explicit pads"
        )


def _pool(operators: Sequence[Callable[..., Any]], x: Any, place: Window, count_include_pad: bool) -> Any:
    padding = [*place.before, *_grown(place)]
    return operators[len(place.kernel) - 1](
        x, place.kernel, place.stride, padding, place.dilation, False, count_include_pad
    )


def _grown(place: Window) -> list[int]:
    """Padding at the end that lets the last window, where it reaches over, lie within."""
    return [
        max(after, (count - 1) * stride + (kernel - 1) * dilation + 1 - size - before)
        for count, stride, kernel, dilation, size, before, after in zip(
            place.output, place.stride, place.kernel, place.dilation, place.size, place.before, place.after,
            strict=True,
        )
    ]  # fmt: skip


def _correction(place: Window, whole: bool) -> np.ndarray[Any, Any]:
    """Elements of a window by those that count in it, for each output: ``[1, 1, ...]``."""
    factors = np.ones((1, 1))
    for axis, kernel in enumerate(place.kernel):
        starts = np.arange(place.output[axis]) * place.stride[axis] - place.before[axis]
        reads = starts[:, None] + np.arange(kernel) * place.dilation[axis]
        first = -place.before[axis] if whole else 0
        end = place.size[axis] + (place.after[axis] if whole else 0)
        counts = np.count_nonzero((reads >= first) & (reads < end), axis=1)
        # A window in the padding alone: its sum is 0, and so is its average.
        factors = factors[..., None] * (kernel / np.maximum(counts, 1))
    return factors


CONVERTERS: dict[str, Any] = {
    "MaxPool": converter(max_pool),
    "AveragePool": converter(average_pool),
    "LpPool": converter(lp_pool),
}
