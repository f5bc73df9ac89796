"""Register tiles: how many results an inner loop keeps in vector registers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgetune.kernels.schedules import divisors

if TYPE_CHECKING:
    from tvm.s_tir import Schedule
    from tvm.s_tir.schedule import LoopRV

    from edgetune.targets import Target


@dataclass(frozen=True)
class RegisterFile:
    """The vector registers that a register tile may use.

    Attributes:
        count: how many.
        by_lane: whether multiply-adds take one factor from a lane of a vector, as on Arm. Values that several
            multiply-adds share are then loaded many at once, and stay until the last lane was used.
    """

    count: int
    by_lane: bool = False

    @staticmethod
    def of(target: Target, reserved: int = 0) -> RegisterFile:
        """Those of a target, less some that a kernel needs for other things."""
        return RegisterFile(target.vector_registers - reserved, target.arch in ("aarch64", "arm"))

    def holds(self, blocks: int, columns: int) -> bool:
        """Whether a tile's accumulators fit, and what they are computed from.

        In the order of :func:`unroll_tile` that is a weight vector for each block and one broadcast, or the other
        way round.
        """
        factors = blocks + columns if self.by_lane else min(blocks, columns)
        return blocks * columns + factors + 1 <= self.count


def register_tiles(blocks: int, columns: int, registers: RegisterFile) -> list[tuple[float, int, int]]:
    """Tiles ``(merit, output blocks, columns)`` whose accumulators stay in registers, best first.

    A tile of ``b x c`` does ``b * c`` multiply-adds for ``b`` loads of weights and ``c`` broadcasts, of which the
    weights count twice, as they come from further away; it hides the latency of the multiply-add when it has about
    ten accumulators.
    """
    tiles = []
    for b in (d for d in divisors(blocks) if d <= 8):
        # Only as many as fit: the divisors of a long row are many, and take long to find.
        for c in range(1, min(columns, registers.count // b) + 1):
            if columns % c == 0 and (b * c == 1 or registers.holds(b, c)):
                work = b * c
                tiles.append((min(work, 10) / 10 * work / (2 * b + c), b, c))
    return sorted(tiles, reverse=True)


def padded_columns(blocks: int, columns: int, registers: RegisterFile) -> int:
    """How many columns to compute where a row is a prime number of them, say: up to an eighth more, if that pays."""

    def cost(count: int) -> float:
        # Results computed beside the epilogue instead of in it cost another pass over them.
        return count / register_tiles(blocks, count, registers)[0][0] * (1.0 if count == columns else 1.08)

    return min(range(columns, columns + max(1, -(-columns // 8)) + 1), key=cost) if columns > 1 else columns


def unroll_tile(sch: Schedule, blocks: LoopRV, columns: LoopRV, wide: bool) -> None:
    """Unroll two neighbouring loops over a register tile, in the order that needs the fewest registers.

    The code keeps what the inner loop reads in registers for the next turn of the outer one: of a ``wide`` tile, one of
    at least as many columns as blocks, the weights. With the loops the other way round, LLVM stores and reloads half of
    the accumulators.
    """
    outer, inner = (columns, blocks) if wide else (blocks, columns)
    sch.reorder(outer, inner)
    sch.unroll(outer)
    sch.unroll(inner)
