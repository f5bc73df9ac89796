"""Register tiles: how many results an inner loop keeps in vector registers."""

from __future__ import annotations

from edgetune.kernels.schedules import divisors


def register_tiles(blocks: int, columns: int, registers: int) -> list[tuple[float, int, int]]:
    """Tiles ``(merit, output blocks, columns)`` whose accumulators stay in registers, best first.

    A tile of ``b x c`` does ``b * c`` multiply-adds for ``b`` loads of weights and ``c`` broadcasts, of which the
    weights count twice, as they come from further away; it needs ``b * c`` accumulators, up to two weight vectors
    and one broadcast, and hides the latency of the multiply-add when it has about ten accumulators.
    """
    tiles = []
    for b in (d for d in divisors(blocks) if d <= 8):
        # Only as many as fit: the divisors of a long row are many, and take long to find.
        most = min(columns, (registers + (b == 1) - min(b, 2) - 1) // b)
        for c in (c for c in range(1, most + 1) if columns % c == 0):
            work = b * c
            tiles.append((min(work, 10) / 10 * work / (2 * b + c), b, c))
    return sorted(tiles, reverse=True)


def padded_columns(blocks: int, columns: int, registers: int) -> int:
    """How many columns to compute where a row is a prime number of them, say: up to an eighth more, if that pays."""

    def cost(count: int) -> float:
        # Results computed beside the epilogue instead of in it cost another pass over them.
        return count / register_tiles(blocks, count, registers)[0][0] * (1.0 if count == columns else 1.08)

    return min(range(columns, columns + max(1, -(-columns // 8)) + 1), key=cost) if columns > 1 else columns
