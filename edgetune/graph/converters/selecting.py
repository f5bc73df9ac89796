"""Operators that follow from shapes alone, and those that put values at given places."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from edgetune.errors import UnsupportedModelError
from edgetune.graph.converters.base import Node, const, converter, dtype, positive_axis, shape
from edgetune.graph.converters.elementwise import broadcast


def shape_of(node: Node) -> Any:
    """Shape, or a part of it: a constant, since every shape is known."""
    sizes = shape(node.needed(0))
    end = node.attributes.get("end")
    return const(np.array(sizes[node.int("start", 0) : None if end is None else int(end)], np.int64))


def size_of(node: Node) -> Any:
    """Size: a constant."""
    return const(np.array(math.prod(shape(node.needed(0))), np.int64))


def optional_has_element(node: Node) -> Any:
    """OptionalHasElement of a tensor, or of nothing."""
    return const(np.array(node.input(0) is not None))


def flatten(node: Node) -> Any:
    """Flatten to two axes, of no elements as well, where the importer cannot tell their sizes."""
    sizes, axis = shape(node.needed(0)), node.int("axis", 1)
    if not -len(sizes) <= axis <= len(sizes):
        raise UnsupportedModelError(f"axis {axis} of Flatten is out of range for {len(sizes)} dimensions")
    cut = axis % len(sizes) if axis < 0 else axis
    return relax.op.reshape(node.needed(0), (math.prod(sizes[:cut]), math.prod(sizes[cut:])))


def slice_(node: Node) -> Any:
    """Slice, with starts and ends clamped as the standard says, which for steps backwards is not NumPy's way."""
    x = node.needed(0)
    if node.opset < 10:
        return node.by_importer("Slice", list(node.inputs), node.attributes)
    starts, ends = (node.known(i, "where Slice begins and ends") for i in (1, 2))
    assert starts is not None
    assert ends is not None
    given, steps = node.known(3, "the axes of Slice"), node.known(4, "the steps of Slice")
    sizes = list(shape(x))
    axes = [
        positive_axis(int(a), len(sizes))
        for a in (range(starts.size) if given is None else given.reshape(-1))
    ]
    strides = [1] * starts.size if steps is None else [int(s) for s in steps.reshape(-1)]
    begins, stops, bounded, result = [], [], [], list(sizes)
    for axis, start, end, step in zip(axes, starts.reshape(-1), ends.reshape(-1), strides, strict=True):
        if step == 0:
            raise UnsupportedModelError("a step of Slice is 0")
        size = sizes[axis]
        low, high = (0, size) if step > 0 else (-1, size - 1)
        # Python's integers: exporters write the largest of 64 bits for "to the end".
        begin = min(max(int(start) + size * (int(start) < 0), max(low, 0)), high)
        stop = min(max(int(end) + size * (int(end) < 0), low), high)
        result[axis] = max(0, -(-(stop - begin) // step))
        begins.append(begin)
        stops.append(stop if stop >= 0 else -size - 1)
        # Longer steps take the first element alone, too, and overflow where TVM adds them up.
        bounded.append(min(max(step, -max(size, 1)), max(size, 1)))
    if 0 in result:
        return const(np.zeros(result, dtype(x)))
    return relax.op.strided_slice(x, axes, begins, stops, bounded)


def top_k(node: Node) -> Any:
    """TopK; of no elements, which the importer takes for all, both outputs are empty."""
    x = node.needed(0)
    sizes = list(shape(x))
    known = node.known(1, "the number of elements that TopK gives") if node.opset >= 10 else None
    count = node.int("k", 1) if known is None else int(known.reshape(()) if known.size == 1 else -1)
    axis = positive_axis(node.int("axis", -1), len(sizes))
    if not 0 <= count <= sizes[axis]:
        raise UnsupportedModelError(f"TopK of {count} elements along an axis of {sizes[axis]}")
    if count and 0 not in sizes:
        return node.by_importer("TopK", list(node.inputs), node.attributes, 2)
    sizes[axis] = count
    return [const(np.zeros(sizes, dtype(x))), const(np.zeros(sizes, np.int64))]


def one_hot(node: Node) -> Any:
    """OneHot of a known depth; indices outside -depth to depth - 1 give a row of the off value."""
    indices, values = node.needed(0), node.needed(2)
    known = node.known(1, "the depth of OneHot")
    assert known is not None
    depth, sizes = int(known.reshape(())), shape(indices)
    axis = positive_axis(node.int("axis", -1), len(sizes) + 1)

    def kernel(indices: te.Tensor, values: te.Tensor) -> te.Tensor:
        def at(*place: Any) -> Any:
            index = indices(*place[:axis], *place[axis + 1 :]).astype("int64")
            own = place[axis].astype("int64")
            hit = tirx.any(index == own, index + tirx.const(depth, "int64") == own)
            return tirx.Select(hit, values(1), values(0))

        return te.compute((*sizes[:axis], depth, *sizes[axis:]), at, name="one_hot")

    return node.te(kernel, indices, values, name="one_hot")


def pad(node: Node) -> Any:
    """Pad; with a value that is no constant by a kernel of ours."""
    value = node.input(2)
    cropped = node.ints("pads", []) if node.opset < 11 else node.array(1)
    if node.text("mode", "constant") != "constant" and cropped is not None and min(cropped, default=0) < 0:
        # Whether elements that are cut off may come back on the other side is not said; runtimes disagree.
        raise UnsupportedModelError("Pad with negative amounts is only defined for constant padding")
    if node.opset < 11 or value is None or node.array(2) is not None:
        return node.by_importer("Pad", list(node.inputs), node.attributes)
    if node.text("mode", "constant") != "constant":
        return node.by_importer("Pad", [node.needed(0), node.needed(1), None, node.input(3)], node.attributes)
    x, amounts, chosen = node.needed(0), node.known(1, "the padding"), node.known(3, "the axes of Pad")
    assert amounts is not None
    sizes = shape(x)
    axes = range(len(sizes)) if chosen is None else [positive_axis(int(a), len(sizes)) for a in chosen]
    before, after = [0] * len(sizes), [0] * len(sizes)
    for i, axis in enumerate(axes):
        before[axis], after[axis] = int(amounts[i]), int(amounts[len(amounts) // 2 + i])

    def kernel(x: te.Tensor, value: te.Tensor) -> te.Tensor:
        def at(*place: Any) -> Any:
            own = [i - b for i, b in zip(place, before, strict=True)]
            inside = [te.all(i >= 0, i < s) for i, s in zip(own, sizes, strict=True)]
            return te.if_then_else(te.all(*inside), x(*own), value(*[0] * len(value.shape)))

        return te.compute([s + b + a for s, b, a in zip(sizes, before, after, strict=True)], at, name="pad")

    return node.te(kernel, x, value, name="pad")


def split(node: Node) -> Any:
    """Split; parts of no elements are constants, the importer takes the rest."""
    x = node.needed(0)
    axis = positive_axis(node.int("axis", 0), len(shape(x)))
    given = node.array(1) if node.opset >= 13 else node.ints("split")
    parts = None if given is None else [int(p) for p in given]
    if parts is None or 0 not in parts:
        return node.by_importer("Split", list(node.inputs), node.attributes, node.outputs)
    pieces, begin = [], 0
    for part in parts:
        if part:
            pieces.append(
                node.emit(relax.op.strided_slice(x, axes=[axis], begin=[begin], end=[begin + part]))
            )
        else:
            sizes = [part if a == axis else s for a, s in enumerate(shape(x))]
            pieces.append(const(np.zeros(sizes, dtype(x))))
        begin += part
    return pieces


def tensor_scatter(node: Node) -> Any:
    """TensorScatter: a cache with new entries written at each sequence's own position."""
    cache, update, starts = node.needed(0), node.needed(1), node.input(2)
    sizes = shape(cache)
    axis = positive_axis(node.int("axis", -2), len(sizes))
    length, new = sizes[axis], shape(update)[axis]
    circular = node.text("mode", "linear") == "circular"
    if starts is None:
        starts = const(np.zeros(sizes[0], np.int64))

    def kernel(cache: te.Tensor, update: te.Tensor, starts: te.Tensor) -> te.Tensor:
        def at(*place: Any) -> Any:
            source = place[axis].astype("int64") - starts(place[0]).astype("int64")
            if circular:
                source = tirx.floormod(source, tirx.const(length, "int64"))
            zero, end = tirx.const(0, "int64"), tirx.const(new, "int64")
            inside = te.all(source >= zero, source < end)
            return te.if_then_else(inside, update(*place[:axis], source, *place[axis + 1 :]), cache(*place))

        return te.compute(sizes, at, name="tensor_scatter")

    return node.te(kernel, cache, update, starts, name="tensor_scatter")


def array_feature_extractor(node: Node) -> Any:
    """ai.onnx.ml ArrayFeatureExtractor: columns by index."""
    x, indices = node.needed(0), node.needed(1)
    if len(shape(x)) == 1:
        x = node.emit(relax.op.expand_dims(x, 0))
    flat = node.emit(relax.op.reshape(indices, (math.prod(shape(indices)),)))
    return node.emit(relax.op.take(x, flat, len(shape(x)) - 1, mode="clip"))


def binarizer(node: Node) -> Any:
    """ai.onnx.ml Binarizer: one above the threshold, else zero."""
    x, threshold = node.needed(0), node.float("threshold", 0.0)
    kind = dtype(x)

    def one(value: Any) -> Any:
        return tirx.Select(value > tirx.const(threshold, kind), tirx.const(1, kind), tirx.const(0, kind))

    return broadcast(node, one, x, name="binarizer")


def determinant(node: Node) -> Any:
    """Det of matrices of up to four rows, by the first row's minors."""
    x = node.needed(0)
    *lead, rows, columns = shape(x)
    if rows != columns or not 1 <= rows <= 4:
        raise UnsupportedModelError(f"the determinant of {rows}x{columns} matrices is not implemented")

    def kernel(x: te.Tensor) -> te.Tensor:
        def minor(index: Any, row: int, left: tuple[int, ...]) -> Any:
            if row == rows:
                return tirx.const(1, x.dtype)
            terms = []
            for i, column in enumerate(left):
                rest = minor(index, row + 1, left[:i] + left[i + 1 :])
                terms.append((-1 if i % 2 else 1, x(*index, row, column) * rest))
            total = terms[0][1]
            for sign, term in terms[1:]:
                total = total + term if sign > 0 else total - term
            return total

        return te.compute(lead, lambda *index: minor(index, 0, tuple(range(rows))), name="determinant")

    return node.te(kernel, x, name="determinant")


CONVERTERS: dict[str, type] = {
    "Shape": converter(shape_of),
    "Size": converter(size_of),
    "OptionalHasElement": converter(optional_has_element),
    "Flatten": converter(flatten),
    "Slice": converter(slice_),
    "TopK": converter(top_k),
    "OneHot": converter(one_hot),
    "Pad": converter(pad),
    "Split": converter(split),
    "TensorScatter": converter(tensor_scatter),
    "Det": converter(determinant),
    "ai.onnx.ml.ArrayFeatureExtractor": converter(array_feature_extractor),
    "ai.onnx.ml.Binarizer": converter(binarizer),
}
