"""Refuses models that would take all of the memory, or would never end, before anything runs them.

A file of a few hundred bytes can ask for that: by a shape, or by functions that call each other.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Sequence

import onnx
from onnx import FunctionProto, ModelProto, TensorProto, TypeProto

from edgetune.errors import ModelError
from edgetune.model import graphs, shapes
from edgetune.records import TensorSpec

MAX_ELEMENTS = 2**31 - 1
"""Of one tensor: no more can be counted in 32 bits."""

MAX_RANK = 64
"""Of a NumPy array."""

MAX_NODES = 200_000
"""Of a model whose functions are written out. Exported models have up to some ten thousand."""

MOST_FOLDED_BYTES = 1 << 30
"""That constants are folded to, together: a model of over 2 GB can be neither written nor compiled."""

_DRAWN_BYTES = 16
"""What drawing one element of a random input takes: float64, and the converted copies."""


def refuse_runaway_functions(model: ModelProto, what: str) -> None:
    """Refuse functions that call themselves, and those that multiply without bound.

    Raises:
        ModelError: ONNX allows no recursion; or more nodes would come of it than can be compiled.
    """
    if twice := [name for (_, name, _), n in Counter(map(_key, model.functions)).items() if n > 1]:
        raise ModelError(
            f"{what} is no valid ONNX: it has two functions of the name {twice[0]!r}; export the model again"
        )
    calls = {
        (f.domain, f.name): Counter((node.domain, node.op_type) for node in graphs.walk_nodes(f))
        for f in model.functions
    }
    sizes: dict[tuple[str, str], int] = {}
    while len(sizes) < len(calls):
        ready = {
            key: sum(count * sizes.get(name, 1) for name, count in called.items())
            for key, called in calls.items()
            if key not in sizes and all(name in sizes for name in called if name in calls)
        }
        if not ready:
            names = ", ".join(sorted(name for key in calls if key not in sizes for name in key[1:]))[:200]
            raise ModelError(
                f"{what} is no valid ONNX: its functions call themselves ({names}), which the standard forbids; "
                "export the model again"
            )
        sizes |= ready
    total = sum(sizes.get((node.domain, node.op_type), 1) for node in graphs.walk_nodes(model.graph))
    if total > MAX_NODES:
        raise ModelError(
            f"{what} has {total} nodes when its functions are written out, and edgetune takes up to {MAX_NODES}; "
            "export a smaller part of the model"
        )


def _key(function: FunctionProto) -> tuple[str, str, str]:
    return function.domain, function.name, function.overload


def refuse_huge_tensors(model: ModelProto, inputs: Sequence[TensorSpec]) -> None:
    """Refuse a model of fixed shapes with tensors that cannot be held.

    Raises:
        ModelError: the message names the tensor.
    """
    memory = _memory_bytes()
    for spec in inputs:
        _refuse_tensor(f"input {spec.name!r}", spec.shape, _DRAWN_BYTES, memory)
    for name, kind in shapes.types(model).items():
        sizes = [dim.dim_value for dim in kind.tensor_type.shape.dim if dim.HasField("dim_value")]
        element_bytes = _element_bytes(kind.tensor_type.elem_type)
        _refuse_tensor(f"tensor {name!r}", sizes, element_bytes, memory)


def _refuse_tensor(what: str, shape: Sequence[int], element_bytes: int, memory: int) -> None:
    if len(shape) > MAX_RANK:
        raise ModelError(
            f"{what} has {len(shape)} dimensions, and edgetune takes up to {MAX_RANK}; merge some"
        )
    elements = math.prod(shape)
    text = "x".join(map(str, shape))
    if elements > MAX_ELEMENTS or any(size > MAX_ELEMENTS for size in shape):
        raise ModelError(
            f"{what} is {text}, and edgetune takes no tensors of more than {MAX_ELEMENTS} elements; "
            "choose smaller shapes (--shape), or cut the model before it (--cut)"
        )
    if elements * element_bytes > memory:
        raise ModelError(
            f"{what} is {text}, which does not fit into this machine's {memory >> 30} GB of memory; "
            "choose smaller shapes (--shape), or cut the model before it (--cut)"
        )


def tensor_bytes(kind: TypeProto.Tensor) -> int | None:
    """What a tensor of this type takes; None where a size, or the type of the elements, is not known."""
    dims = kind.shape.dim
    if not kind.HasField("shape") or not all(dim.HasField("dim_value") for dim in dims):
        return None
    if kind.elem_type == TensorProto.UNDEFINED:
        return None
    return _element_bytes(kind.elem_type) * math.prod(dim.dim_value for dim in dims)


def _element_bytes(elem_type: int) -> int:
    if elem_type in (TensorProto.UNDEFINED, TensorProto.STRING):
        return 1
    return int(onnx.helper.tensor_dtype_to_np_dtype(elem_type).itemsize)


def available_bytes() -> int:
    """Memory that can be had now without another process losing some."""
    import psutil

    return int(psutil.virtual_memory().available)


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
