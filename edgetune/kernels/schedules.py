"""What the kernel families share: sampling with a default, epilogues, padding, parallel grain."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import tvm
import tvm_ffi
from tvm.s_tir import Schedule

if TYPE_CHECKING:
    from tvm.s_tir.schedule import ExprRV, LoopRV, SBlockRV

    from edgetune.targets import Target

Space = Callable[[], Schedule]
"""Makes one design space. It may raise where the kernel has a shape that nobody foresaw: the registry goes on
with the next one."""

KERNEL_ATTR = "edgetune.kernel"
"""Block annotation that names the kernel family of the computation."""

LAUNCH_FLOPS = 60_000
"""Work, in operations, below which waking a second thread costs more than it saves (a launch takes some
microseconds, in which one core does tens of thousands of operations)."""

LAUNCH_ELEMENTS = 16_384
"""The same for kernels that only move or map elements."""


def divisors(number: int) -> list[int]:
    """The divisors of a positive number, ascending."""
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return small + [number // d for d in reversed(small) if d * d != number]


def option(sch: Schedule, candidates: Sequence[int], default: int) -> ExprRV:
    """Sample one of the candidates; ``default`` is the decision that the trace starts with."""
    probability = 1.0 / len(candidates)
    return sch.sample_categorical(
        list(candidates), [probability] * len(candidates), decision=list(candidates).index(default)
    )


def tile(sch: Schedule, loop: LoopRV, inner: int, max_inner: int | None = None) -> list[LoopRV]:
    """Split a loop in two by a sampled divisor; ``inner`` (a divisor) is the default inner extent."""
    extent = extent_of(sch, loop)
    factors = sch.sample_perfect_tile(
        loop, n=2, max_innermost_factor=max_inner or extent, decision=[extent // inner, inner]
    )
    return list(sch.split(loop, factors))


def extent_of(sch: Schedule, loop: LoopRV) -> int:
    """The constant extent of a loop."""
    return int(sch.get(loop).extent)


def unflatten(position: tvm.tirx.PrimExpr, height: int, width: int) -> tuple[Any, Any]:
    """Row and column of a flat position; written without a quotient where one row is all, for the analyser's sake."""
    return (0, position) if height == 1 else (position // width, position % width)


def axis_extents(sch: Schedule, block: SBlockRV, axes: Sequence[str]) -> dict[str, int]:
    """Extents of a block's iteration axes, under the names given in their order."""
    return {axis: int(v.dom.extent) for axis, v in zip(axes, sch.get(block).iter_vars, strict=True)}


def has_block(sch: Schedule, name: str) -> bool:
    """Whether the schedule has a block of this name."""
    return name in block_names(sch)


def block_names(sch: Schedule) -> list[str]:
    """Names of the blocks below the root, in program order."""
    names: list[str] = []

    def visit(block: tvm.s_tir.SBlock) -> None:
        if block.name_hint != "root":
            names.append(block.name_hint)

    tvm_ffi.structural_walk(sch.mod["main"].body, (tvm.s_tir.SBlock, visit))
    return names


def consumers_of(sch: Schedule, block: SBlockRV) -> list[SBlockRV]:
    """All blocks downstream of a block, nearest first."""
    found: list[SBlockRV] = []
    names: set[str] = set()
    frontier = [block]
    while frontier:
        for consumer in sch.get_consumers(frontier.pop(0)):
            name = sch.get(consumer).name_hint
            if name not in names:
                names.add(name)
                found.append(consumer)
                frontier.append(consumer)
    return found


def is_spatial(sch: Schedule, block: SBlockRV) -> bool:
    """Whether a block has no reduction axis."""
    return all(int(v.iter_type) == 0 for v in sch.get(block).iter_vars)


def inline_into_last(sch: Schedule, block: SBlockRV) -> SBlockRV | None:
    """Inline every consumer of ``block`` but the last one; None without a consumer."""
    consumers = consumers_of(sch, block)
    if not consumers:
        return None
    last = next(c for c in consumers if not sch.get_consumers(c))
    last_name = sch.get(last).name_hint
    for consumer in consumers:
        if sch.get(consumer).name_hint != last_name:
            sch.compute_inline(consumer)
    return last


def schedule_padding(sch: Schedule, at: LoopRV | None) -> None:
    """Compute the padded input where it is used, one vector of channels at a time."""
    if not has_block(sch, "padding"):
        return
    padding = sch.get_sblock("padding")
    if at is not None:
        sch.compute_at(padding, at, preserve_unit_loops=True)
    loops = sch.get_loops(padding)
    if extent_of(sch, loops[-1]) > 1:
        sch.vectorize(loops[-1])
    if at is None:
        sch.parallel(sch.fuse(*loops[:-2]))


def chunk(extent: int, pieces: int) -> int:
    """The largest divisor of ``extent`` that leaves at least ``pieces`` pieces, or 1."""
    return max(d for d in divisors(extent) if extent // d >= min(pieces, extent))


def spread(sch: Schedule, block: SBlockRV, target: Target, serial: bool = False) -> None:
    """Default schedule of a block without reduction: outer loops parallel, innermost loop in vectors.

    An innermost loop that is no multiple of the vector is left to LLVM's vectoriser, which peels the tail.
    """
    loops = sch.get_loops(block)
    if not loops:
        return
    sizes = [extent_of(sch, loop) for loop in loops]
    while len(loops) > 1 and sizes[-1] == 1:
        loops, sizes = loops[:-1], sizes[:-1]
    inner = loops[-1]
    outer = list(loops[:-1])
    lanes = vector_lanes(sch, block, target)
    if sizes[-1] % lanes == 0 and sizes[-1] > lanes:
        rest, inner = sch.split(inner, [None, lanes])
        outer.append(rest)
        sch.vectorize(inner)
    elif sizes[-1] in (2, 4, 8, 16) and sizes[-1] <= lanes:
        sch.vectorize(inner)
    if outer and not serial and math.prod(sizes) >= LAUNCH_ELEMENTS:
        sch.parallel(sch.fuse(*outer))


def vector_lanes(sch: Schedule, block: SBlockRV, target: Target) -> int:
    """Lanes of a vector of the type that a block writes."""
    dtype = str(sch.get(block).writes[0].source.dtype)
    return target.lanes(dtype if dtype != "bool" else "int8")
