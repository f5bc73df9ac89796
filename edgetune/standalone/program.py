"""A model as a fixed sequence of kernel calls on planned memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from edgetune.records import TensorSpec

if TYPE_CHECKING:
    import numpy as np

ALIGNMENT_BYTES = 64
"""Kernels load tensors with aligned vector instructions of up to 512 bits."""


class Space(IntEnum):
    """Where a tensor lies; the numbers are those of ``c/internal.h``."""

    ARENA = 0
    WEIGHTS = 1
    INPUT = 2
    OUTPUT = 3


@dataclass(frozen=True)
class Place:
    """The place of a tensor: a number of bytes in the arena, else the index of a weight, input or output."""

    space: Space
    offset: int


@dataclass(frozen=True)
class Step:
    """One call of a kernel.

    Attributes:
        kernel: name of its task or function, for people.
        symbol: the packed function in the object; empty: copy the first argument to the second.
        arguments: indices of ``Program.places``, inputs first.
        size_bytes: of all tensors that it reads or writes; for a copy, how much is copied.
    """

    kernel: str
    symbol: str
    arguments: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True)
class Program:
    """All of a model that is compiled, for one target.

    Attributes:
        kernels: a relocatable object with the kernels.
        arena_bytes: size of the memory that intermediate tensors share.
        workspace_bytes: what the kernels allocate at most on one thread.
        weights: in the order that ``Space.WEIGHTS`` counts them.
    """

    kernels: bytes = field(repr=False)
    steps: tuple[Step, ...]
    places: tuple[Place, ...]
    arena_bytes: int
    workspace_bytes: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    weights: tuple[np.ndarray, ...] = field(repr=False)


@dataclass(frozen=True)
class Lifetime:
    """A tensor's size, and the first and last step that touch it."""

    size_bytes: int
    first: int
    last: int

    def overlaps(self, other: Lifetime) -> bool:
        """Whether both are alive during some step."""
        return self.first <= other.last and other.first <= self.last


def plan_memory(tensors: Sequence[Lifetime]) -> tuple[tuple[int, ...], int]:
    """Offsets for tensors in one arena, and the arena's size, all in bytes.

    Greedy by size: the largest tensors first, each at the lowest place that is free for all of its life
    (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020, section 5).
    """
    offsets = [0] * len(tensors)
    placed: list[int] = []
    for index in sorted(range(len(tensors)), key=lambda i: (-tensors[i].size_bytes, i)):
        tensor = tensors[index]
        taken = sorted(
            (offsets[other], offsets[other] + _aligned(tensors[other].size_bytes))
            for other in placed
            if tensor.overlaps(tensors[other])
        )
        start = 0
        for low, high in taken:
            if low - start >= _aligned(tensor.size_bytes):
                break
            start = max(start, high)
        offsets[index] = start
        placed.append(index)
    ends = [offset + _aligned(item.size_bytes) for offset, item in zip(offsets, tensors, strict=True)]
    return tuple(offsets), max(ends, default=0)


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
