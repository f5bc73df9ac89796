"""A fixed piece of work, timed between measurements: it changes only when the machine does."""

from __future__ import annotations

import hashlib
import time
from concurrent.futures import ThreadPoolExecutor

_BYTES = 4 << 20
_REPEATS = 3


class FixedWork:
    """Hashes 4 MiB on each of ``threads`` threads at once.

    SHA-256 is plain integer arithmetic out of the cache, needs no thread pool of a library (none
    spins afterwards), and leaves Python's lock: busy neighbours and a lower clock both show.
    """

    def __init__(self, threads: int) -> None:
        self._data = bytes(_BYTES)
        self._threads = threads

    def time_ms(self) -> float:
        """Milliseconds of the best of three."""
        with ThreadPoolExecutor(self._threads) as pool:
            return min(self._once(pool) for _ in range(_REPEATS))

    def _once(self, pool: ThreadPoolExecutor) -> float:
        start = time.perf_counter()
        list(pool.map(lambda _: hashlib.sha256(self._data).digest(), range(self._threads)))
        return (time.perf_counter() - start) * 1e3


def drift(times_ms: list[float]) -> float:
    """By which part of the fastest time the slowest exceeds it: 0.1 is 10 %."""
    return max(times_ms) / min(times_ms) - 1.0
