"""What this machine can do at best: arithmetic and memory bandwidth, measured, not looked up.

Arithmetic: float32 multiply-adds in registers (``multiply_add.py``), or, where those cannot be compiled,
the fastest of several matrix products of NumPy's BLAS, which comes within some ten per cent of them.
Bandwidth: copying arrays, bytes read plus bytes written, for working sets from the inner caches to main
memory, all threads at once. Both run in a process of their own, so that BLAS can be given its thread
count and its threads end with the measurement.

A kernel cannot be faster than its operations at the peak, nor than its bytes at the bandwidth of the
memory they fit into: the longer of the two times is its roofline (Williams, Waterman, Patterson:
Roofline, CACM 52(4), 2009).
"""

from __future__ import annotations

import functools
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgetune.benchmarking.multiply_add import multiply_add_gflops
from edgetune.errors import EdgetuneError
from edgetune.sides.process import side_environment

METHOD = "peak: float32 multiply-adds in registers; bandwidth: copying arrays, bytes read and written"
_TIMEOUT_S = 120.0
_MATRIX_SIZES = (384, 768, 1536)
WORKING_SETS_BYTES = tuple(1 << exponent for exponent in (18, 20, 22, 24, 26, 28))
_MEASURE_S = 0.1


@dataclass(frozen=True)
class Roofline:
    """The machine's limits.

    Attributes:
        peak_gflops: 10^9 float32 operations a second, a multiply-add counting two.
        bandwidth_gbps: ``(bytes, 10^9 bytes a second)`` for working sets of growing size.
    """

    peak_gflops: float
    bandwidth_gbps: tuple[tuple[int, float], ...]

    def bandwidth_for(self, size_bytes: float) -> float:
        """10^9 bytes a second for data of this size: that of the next larger working set."""
        for size, bandwidth in self.bandwidth_gbps:
            if size_bytes <= size:
                return bandwidth
        return self.bandwidth_gbps[-1][1]

    def least_time_us(self, flops: float, size_bytes: float) -> tuple[float, str]:
        """The shortest possible time of one call, and what limits it: ``compute`` or ``memory``."""
        compute_us = flops / self.peak_gflops / 1e3
        memory_us = size_bytes / self.bandwidth_for(size_bytes) / 1e3
        return (compute_us, "compute") if compute_us >= memory_us else (memory_us, "memory")

    def to_json(self) -> dict[str, Any]:
        """For the JSON of ``profile``."""
        if math.isinf(self.peak_gflops):
            return {"peak_gflops": None, "bandwidth": [], "method": "not measured"}
        return {
            "peak_gflops": self.peak_gflops,
            "bandwidth": [{"bytes": size, "gbps": value} for size, value in self.bandwidth_gbps],
            "method": METHOD,
        }


UNKNOWN = Roofline(math.inf, ((0, math.inf),))
"""Limits that were not measured: nothing is near them."""


def measure(threads: int) -> Roofline:
    """Measure the machine's limits on ``threads`` threads; takes about three seconds.

    Raises:
        EdgetuneError: the measuring process failed.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-m", "edgetune.benchmarking.roofline", str(threads)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=side_environment(threads),
            timeout=_TIMEOUT_S,
            check=True,
        )
        answer = json.loads(done.stdout)
    except (subprocess.SubprocessError, OSError, ValueError) as error:
        raise EdgetuneError(f"the machine's peak could not be measured ({error}); try again") from error
    return Roofline(
        answer["peak_gflops"], tuple((int(size), value) for size, value in answer["bandwidth_gbps"])
    )


def _best_s(work: Callable[[], object], seconds: float = _MEASURE_S) -> float:
    """The shortest time of ``work`` within the given time, after one run to warm up."""
    work()
    best = float("inf")
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def _peak_gflops() -> float:
    rng = np.random.default_rng(0)
    best = 0.0
    for size in _MATRIX_SIZES:
        left, right = rng.random((2, size, size), np.float32)
        seconds = _best_s(functools.partial(np.matmul, left, right, out=np.empty_like(left)))
        best = max(best, 2.0 * size**3 / seconds / 1e9)
    return best


def _bandwidth_gbps(threads: int, working_set_bytes: int) -> float:
    """All threads copy, each its own pair of arrays; the working set is all arrays together."""
    part = working_set_bytes // (2 * threads)
    pairs = [(np.ones(part, np.uint8), np.zeros(part, np.uint8)) for _ in range(threads)]
    # Many copies for each handing over of work, which costs some ten microseconds.
    repeats = max(1, (8 << 20) // part)

    def copy(pair: tuple[np.ndarray, np.ndarray]) -> None:
        for _ in range(repeats):
            np.copyto(pair[1], pair[0])

    with ThreadPoolExecutor(threads) as pool:
        seconds = _best_s(lambda: list(pool.map(copy, pairs)))
    return 2.0 * part * threads * repeats / seconds / 1e9


def main() -> None:
    """Measure in this process and print the result as JSON."""
    threads = int(sys.argv[1])
    bandwidths = [(size, _bandwidth_gbps(threads, size)) for size in WORKING_SETS_BYTES]
    peak = max(multiply_add_gflops(threads), _peak_gflops())
    print(json.dumps({"peak_gflops": peak, "bandwidth_gbps": bandwidths}))


if __name__ == "__main__":
    main()
