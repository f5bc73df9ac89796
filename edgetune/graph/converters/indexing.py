"""Reading and writing at indices that are known at run time only: those out of range touch nothing beyond the tensor.

To the standard such an index is an error, which compiled code cannot report: left as it is, it would read or
overwrite foreign memory, or end the process. Here it stands for the nearest element of its axis. Indices that are
constants were in range when ONNX Runtime ran the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax

from edgetune.graph.converters.base import Node, const, constant, converter, dtype, positive_axis, shape

_Extents = Callable[[Node, Sequence[int], Sequence[int]], "np.ndarray[Any, Any]"]
"""From the shapes of data and indices the sizes that indices are below: a scalar, or a vector along their last axis."""


def gather(node: Node) -> Any:
    """Gather; negative indices count from the end."""
    x, indices = node.needed(0), node.needed(1)
    if isinstance(x, relax.ShapeExpr) or _is_known(indices):
        return node.by_importer("Gather", list(node.inputs), node.attributes, node.outputs)
    axis = positive_axis(node.int("axis", 0), len(shape(x)))
    # take holds its indices between the ends itself.
    return node.emit(relax.op.take(x, _counted_from_front(node, indices, shape(x)[axis]), axis, mode="clip"))


def _counted_from_front(node: Node, indices: Any, size: int) -> Any:
    kind = dtype(indices)
    behind = node.emit(relax.op.add(indices, const(size, kind)))
    return node.emit(relax.op.where(relax.op.less(indices, const(0, kind)), behind, indices))


def _held(op_type: str, extents: _Extents) -> Callable[[Node], Any]:
    """A converter that holds the indices of another operator within ``extents``, and leaves it to the importer."""

    def convert(node: Node) -> Any:
        inputs = list(node.inputs)
        x, indices = node.needed(0), node.needed(1)
        if not _is_known(indices):
            sizes = extents(node, shape(x), shape(indices))
            kind = dtype(indices)
            held = node.emit(relax.op.maximum(indices, const(-sizes, kind)))
            inputs[1] = node.emit(relax.op.minimum(held, const(sizes - 1, kind)))
        return node.by_importer(op_type, inputs, node.attributes, node.outputs)

    convert.__doc__ = f"{op_type}, its indices held within the tensor."
    return convert


def _is_known(value: Any) -> bool:
    return isinstance(value, relax.ShapeExpr) or constant(value) is not None


def _one_axis(node: Node, x: Sequence[int], _: Sequence[int]) -> np.ndarray[Any, Any]:
    return np.array(x[positive_axis(node.int("axis", 0), len(x))])


def _coordinates(node: Node, x: Sequence[int], indices: Sequence[int]) -> np.ndarray[Any, Any]:
    first = node.int("batch_dims", 0)
    return np.array(x[first : first + indices[-1]])


CONVERTERS: dict[str, type] = {
    "Gather": converter(gather),
    "GatherElements": converter(_held("GatherElements", _one_axis)),
    "GatherND": converter(_held("GatherND", _coordinates)),
    "ScatterElements": converter(_held("ScatterElements", _one_axis)),
    "ScatterND": converter(_held("ScatterND", _coordinates)),
}
