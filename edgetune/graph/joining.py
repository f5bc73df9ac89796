"""Concatenations without copies: what makes a part of a joined tensor writes it where the whole lies.

Parts follow one another in memory where all axes before the joined one are of size one, as the channels of a single
image are. The kernel that copies them is needless then, if each part can lie inside the whole: one that is an
input, a weight or an output of the model has a place of its own, and one that is joined twice can be in one place
only. A whole may be part of another, so that all layers of a dense block write into one buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from edgetune.standalone.program import ALIGNMENT_BYTES

JOINS_ATTR = "edgetune.joins"
"""Attribute of a kernel that does nothing but put its inputs one after the other into its output."""

Tensor = TypeVar("Tensor")


def join(
    joins: Iterable[Sequence[Tensor]],
    size_bytes: Callable[[Tensor], int],
    movable: Callable[[Tensor, bool], bool],
) -> dict[Tensor, tuple[Tensor, int]]:
    """The tensors that can lie in another one, each with that one and its offset there, in bytes.

    Args:
        joins: arguments of the kernels that join, parts first and the whole last, in the order of the calls.
        size_bytes: of a tensor.
        movable: whether a tensor may lie anywhere; the second argument says that it is a whole of one part.
    """
    inside: dict[Tensor, tuple[Tensor, int]] = {}
    for *parts, whole in joins:
        offsets = [sum(map(size_bytes, parts[:i])) for i in range(len(parts))]
        free = movable(whole, len(parts) == 1) and all(movable(p, False) and p not in inside for p in parts)
        if free and len(set(parts)) == len(parts) and not any(offset % ALIGNMENT_BYTES for offset in offsets):
            inside |= {part: (whole, offset) for part, offset in zip(parts, offsets, strict=True)}
    return inside


def home(tensor: Any, inside: dict[Any, tuple[Any, int]]) -> tuple[Any, int]:
    """The tensor that a tensor lies in, which lies in no other, and the offset there in bytes."""
    start = 0
    while tensor in inside:
        tensor, offset = inside[tensor]
        start += offset
    return tensor, start
