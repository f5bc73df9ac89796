"""The weights of a standalone model in one piece, and the checksum that its library knows of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgetune.standalone.program import ALIGNMENT_BYTES

_MASK = (1 << 64) - 1
_FACTOR = 0x9E3779B97F4A7C15
_STEP = 0x9E3779B97F4A7C16
_CHUNK_WORDS = 1 << 20


def pack(weights: Sequence[np.ndarray]) -> tuple[bytes, tuple[int, ...]]:
    """All weights in one piece, each at a multiple of 64 bytes, and where each starts."""
    parts: list[bytes] = []
    offsets = []
    size = 0
    for array in weights:
        padding = -size % ALIGNMENT_BYTES
        data = np.ascontiguousarray(array).tobytes()
        offsets.append(size + padding)
        parts += [bytes(padding), data]
        size += padding + len(data)
    return b"".join(parts), tuple(offsets)


def checksum(data: bytes) -> int:
    """The 64-bit checksum of ``c/runtime.c``: a sum of little-endian words, each times an odd number of its own.

    It notices every change of one word; against deliberate changes there is the manifest's SHA-256.
    """
    words = np.frombuffer(data + bytes(-len(data) % 8), "<u8")
    total = len(data)
    for start in range(0, len(words), _CHUNK_WORDS):
        chunk = words[start : start + _CHUNK_WORDS]
        first = np.uint64((_FACTOR + start * _STEP) & _MASK)
        factors = (first + np.arange(len(chunk), dtype=np.uint64) * np.uint64(_STEP)) | np.uint64(1)
        mixed = chunk ^ (chunk >> np.uint64(32))
        total += int((mixed * factors).sum(dtype=np.uint64))
    return total & _MASK
