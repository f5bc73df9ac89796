"""The machine's multiply-add units at work on nothing else: twelve independent sums in vector registers.

Twelve, because two units of a latency of four or five cycles want ten under way, and the narrowest machine has sixteen
registers. The vectors are the widest that the compiler knows this CPU to have.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from edgetune.cpu import architecture
from edgetune.errors import ToolchainError
from edgetune.standalone.compiler import find_compiler

_SUMS = 12
_TIMEOUT_S = 60.0
_STEPS = 1_000_000
_MEASURE_S = 0.3
_SOURCE = """
#if defined(__AVX512F__)
enum { BYTES = 64 };
#elif defined(__AVX__)
enum { BYTES = 32 };
#else
enum { BYTES = 16 };
#endif
typedef float V __attribute__((vector_size(BYTES)));
int lanes(void) { return BYTES / 4; }
float multiply_add(long steps, float by, float plus) {
  V s0 = {0}, s1 = {1}, s2 = {2}, s3 = {3}, s4 = {4}, s5 = {5}, s6 = {6}, s7 = {7}, s8 = {8}, s9 = {9}, sa = {10},
    sb = {11};
  V b = s0 + by, p = s0 + plus;
  for (long i = 0; i < steps; i++) {
    s0 = s0 * b + p, s1 = s1 * b + p, s2 = s2 * b + p, s3 = s3 * b + p, s4 = s4 * b + p, s5 = s5 * b + p;
    s6 = s6 * b + p, s7 = s7 * b + p, s8 = s8 * b + p, s9 = s9 * b + p, sa = sa * b + p, sb = sb * b + p;
  }
  V all = s0 + s1 + s2 + s3 + s4 + s5 + s6 + s7 + s8 + s9 + sa + sb;
  return all[0];
}
"""


def multiply_add_gflops(threads: int) -> float:
    """10^9 float32 operations a second of multiply-adds on ``threads`` threads, each counting two.

    Zero where it cannot be measured: no C compiler.
    """
    with tempfile.TemporaryDirectory(prefix="edgetune-") as folder:
        try:
            library = _build(Path(folder))
        except (ToolchainError, OSError, subprocess.SubprocessError):
            return 0.0
        run = library.multiply_add
        run.argtypes, run.restype = (ctypes.c_long, ctypes.c_float, ctypes.c_float), ctypes.c_float
        operations = 2.0 * _SUMS * library.lanes() * _STEPS * threads
        best_s = float("inf")
        with ThreadPoolExecutor(threads) as pool:
            end = time.perf_counter() + _MEASURE_S
            while time.perf_counter() < end:
                start = time.perf_counter()
                list(pool.map(lambda _: run(_STEPS, 0.5, 1.0), range(threads)))
                best_s = min(best_s, time.perf_counter() - start)
    return operations / best_s / 1e9


def _build(folder: Path) -> ctypes.CDLL:
    source, library = folder / "multiply_add.c", folder / "multiply_add.so"
    source.write_text(_SOURCE, encoding="utf-8")
    options = ("-O2", "-march=native", "-ffp-contract=fast", "-fPIC", "-shared", "-nostdlib")
    subprocess.run(
        [*find_compiler(architecture()), *options, str(source), "-o", str(library)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_TIMEOUT_S,
        check=True,
    )
    return ctypes.CDLL(str(library))
