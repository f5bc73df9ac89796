"""Constants in the order in which the kernels on blocked tensors read them."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax


def shape_of(expr: Any) -> tuple[int, ...]:
    """The known shape of an expression."""
    return tuple(int(d) for d in expr.ty.shape)


def pack_conv_weight(
    weight: np.ndarray, groups: int, lanes: int, plain_input: bool, out_groups: int | None = None
) -> np.ndarray:
    """``[O, I, KH, KW]`` to ``[O/b, I/b, KH, KW, b, b]``, or ``[O/b, I, KH, KW, 1, b]`` for plain input.

    Output channels are padded to whole blocks within each of ``out_groups`` (default ``groups``).
    """
    blocked = block_channels(weight, out_groups or groups, lanes)
    if plain_input:
        return blocked.transpose(0, 2, 3, 4, 1)[:, :, :, :, None, :]
    padded = pad_to(blocked, 2, lanes)
    out, _, inner, kernel_h, kernel_w = padded.shape
    return padded.reshape(out, lanes, inner // lanes, lanes, kernel_h, kernel_w).transpose(0, 2, 4, 5, 3, 1)


def block_channels(array: np.ndarray, groups: int, lanes: int) -> np.ndarray:
    """``[C, ...]`` to ``[blocks, b, ...]``, padded with zeros to whole blocks within each group."""
    grouped = pad_to(array.reshape(groups, -1, *array.shape[1:]), 1, lanes)
    return grouped.reshape(-1, lanes, *array.shape[1:])


def pad_to(array: np.ndarray, axis: int, multiple: int) -> np.ndarray:
    """Zeros appended along an axis up to a multiple."""
    missing = -array.shape[axis] % multiple
    return np.pad(array, [(0, missing if a == axis else 0) for a in range(array.ndim)]) if missing else array


def const(array: np.ndarray) -> Any:
    """An array as a constant of Relax."""
    # np.ascontiguousarray would give a scalar one dimension.
    return relax.const(np.asarray(array, order="C"), str(array.dtype))
