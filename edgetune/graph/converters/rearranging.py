"""Operators that move elements: blocks of pixels, sequences, transposed convolution by output shape, col2im."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, te, tirx

from edgetune.errors import UnsupportedModelError
from edgetune.graph.converters.base import Node, const, converter, positive_axis, shape
from edgetune.graph.converters.refused import CUT


def space_to_depth(node: Node) -> Any:
    """SpaceToDepth in either order of the channels."""
    x, block = node.needed(0), int(node.attributes["blocksize"])
    batch, channels, height, width = shape(x)
    split = relax.op.reshape(x, (batch, channels, height // block, block, width // block, block))
    order = {"DCR": [0, 3, 5, 1, 2, 4], "CRD": [0, 1, 3, 5, 2, 4]}.get(node.text("mode", "DCR"))
    if order is None:
        raise UnsupportedModelError(f"the mode {node.text('mode', '')!r} is not one of the standard's")
    moved = relax.op.permute_dims(split, order)
    return node.emit(
        relax.op.reshape(moved, (batch, channels * block * block, height // block, width // block))
    )


def reverse_sequence(node: Node) -> Any:
    """ReverseSequence: the first ``sequence_lens`` steps of each sequence backwards."""
    x, lengths = node.needed(0), node.needed(1)
    batch, time = node.int("batch_axis", 1), node.int("time_axis", 0)

    def reverse(x: te.Tensor, lengths: te.Tensor) -> te.Tensor:
        def at(*index: Any) -> Any:
            step, end = index[time], lengths(index[batch]).astype("int32")
            step = step.astype("int32")
            source = tirx.Select(step < end, end - 1 - step, step)
            # What a random length would read lies outside: the bounds cost nothing.
            last = tirx.const(int(x.shape[time]) - 1, "int32")
            source = te.max(te.min(source, last), tirx.const(0, "int32"))
            return x(*index[:time], source, *index[time + 1 :])

        return te.compute(x.shape, at, name="reverse_sequence")

    return node.te(reverse, x, lengths, name="reverse_sequence")


def conv_transpose(node: Node) -> Any:
    """ConvTranspose; an attribute ``output_shape`` decides the padding."""
    attributes = dict(node.attributes)
    wanted = attributes.pop("output_shape", None)
    if wanted is None:
        return node.by_importer("ConvTranspose", list(node.inputs), attributes)
    size, kernel = shape(node.needed(0))[2:], shape(node.needed(1))[2:]
    rank = len(size)
    wanted = [int(s) for s in wanted][-rank:]
    stride, dilation = ([int(v) for v in node.ints(name) or [1] * rank] for name in ("strides", "dilations"))
    extra = node.ints("output_padding", [0] * rank) or [0] * rank
    begin, end = [], []
    for i in range(rank):
        total = stride[i] * (size[i] - 1) + extra[i] + (kernel[i] - 1) * dilation[i] + 1 - wanted[i]
        if total < 0:
            # Rows and columns that no input reaches: as much more of them at the end.
            extra[i], total = extra[i] - total, 0
        small, large = total // 2, total - total // 2
        first_small = node.text("auto_pad", "NOTSET") == "SAME_UPPER"
        begin.append(small if first_small else large)
        end.append(large if first_small else small)
    if any(e >= s for e, s in zip(extra, stride, strict=True)):
        raise UnsupportedModelError(f"ConvTranspose cannot reach the output shape {wanted}")
    attributes.pop("auto_pad", None)
    attributes |= {"pads": [*begin, *end], "output_padding": extra}
    return node.by_importer("ConvTranspose", list(node.inputs), attributes)


def col2im(node: Node) -> Any:
    """Col2Im: the sum of overlapping blocks."""
    x = node.needed(0)
    image, block = (
        [int(v) for v in value]
        for value in (node.known(1, "the shape of the image"), node.known(2, "the shape of a block"))
        if value is not None
    )
    rank = len(image)
    stride, dilation = ([int(v) for v in node.ints(name) or [1] * rank] for name in ("strides", "dilations"))
    pads = node.ints("pads", [0] * 2 * rank) or [0] * 2 * rank
    batch, rows, _ = shape(x)
    channels = rows // int(np.prod(block))
    counts = [
        (image[i] + pads[i] + pads[rank + i] - dilation[i] * (block[i] - 1) - 1) // stride[i] + 1
        for i in range(rank)
    ]

    def gather(x: te.Tensor) -> te.Tensor:
        axes = [te.reduce_axis((0, size), f"k{i}") for i, size in enumerate(block)]

        def at(n: Any, c: Any, *place: Any) -> Any:
            row, column, inside = c, tirx.const(0, "int32"), []
            for i in range(rank):
                offset = place[i] + pads[i] - axes[i] * dilation[i]
                step = tirx.floordiv(offset, stride[i])
                inside += [offset >= 0, tirx.floormod(offset, stride[i]) == 0, step < counts[i]]
                row, column = row * block[i] + axes[i], column * counts[i] + step
            return te.sum(
                te.if_then_else(te.all(*inside), x(n, row, column), tirx.const(0, x.dtype)), axis=axes
            )

        return te.compute((batch, channels, *image), at, name="col2im")

    return node.te(gather, x, name="col2im")


def compress(node: Node) -> Any:
    """Compress with a known condition."""
    x, condition = node.needed(0), node.array(1)
    if condition is None:
        raise UnsupportedModelError(f"how many elements Compress gives depends on the input's values; {CUT}")
    if "axis" not in node.attributes:
        x = node.emit(relax.op.reshape(x, (-1,)))
    axis = positive_axis(node.int("axis", 0), len(shape(x)))
    kept = np.flatnonzero(condition[: shape(x)[axis]]).astype(np.int64)
    return node.emit(relax.op.take(x, const(kept), axis))


def _with_axes(op_type: str) -> type:
    def convert(node: Node) -> Any:
        inputs, axes = list(node.inputs), node.array(1)
        if axes is not None:
            # The standard asks for a vector; ONNX Runtime takes a scalar too, and models have one.
            inputs[1] = const(axes.reshape(-1))
        return node.by_importer(op_type, inputs, node.attributes)

    convert.__doc__ = f"{op_type}."
    return converter(convert)


def reshape(node: Node) -> Any:
    """Reshape; where ``allowzero`` takes a zero literally, there are no elements to move."""
    target = node.array(1)
    if not node.int("allowzero", 0) or target is None or not (target == 0).any():
        return node.by_importer("Reshape", list(node.inputs), node.attributes)
    return const(np.zeros(target, str(node.needed(0).ty.dtype)))


CONVERTERS: dict[str, type] = {
    "Reshape": converter(reshape),
    "Squeeze": _with_axes("Squeeze"),
    "Unsqueeze": _with_axes("Unsqueeze"),
    "Compress": converter(compress),
    "SpaceToDepth": converter(space_to_depth),
    "ReverseSequence": converter(reverse_sequence),
    "ConvTranspose": converter(conv_transpose),
    "Col2Im": converter(col2im),
}
