"""What a benchmark returns: typed, and with ``to_json`` as the documented JSON object."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class SideResult:
    """Run times of one side, over all its timed runs.

    Attributes:
        version: what ran.
        median_ms, p90_ms, p99_ms, min_ms: of single runs, from arrays in to arrays out; percentiles
            are interpolated linearly.
        round_medians_ms: the median of each round: how much they spread says how far to trust the rest.
        load_s: seconds to load the model.
        peak_memory_bytes: of the whole process, Python included; model_memory_bytes: what came on
            top of a bare Python with NumPy.
    """

    version: str
    median_ms: float
    p90_ms: float
    p99_ms: float
    min_ms: float
    round_medians_ms: tuple[float, ...]
    load_s: float
    peak_memory_bytes: int
    model_memory_bytes: int

    @classmethod
    def of(
        cls, version: str, rounds_ms: Sequence[Sequence[float]], load_s: float, memory_bytes: tuple[int, int]
    ) -> SideResult:
        """From the times of every run, round by round."""
        times = np.concatenate([np.asarray(times_ms) for times_ms in rounds_ms])
        median, p90, p99 = (float(value) for value in np.percentile(times, (50, 90, 99)))
        return cls(
            version=version,
            median_ms=median,
            p90_ms=p90,
            p99_ms=p99,
            min_ms=float(times.min()),
            round_medians_ms=tuple(statistics.median(times_ms) for times_ms in rounds_ms),
            load_s=load_s,
            peak_memory_bytes=memory_bytes[0],
            model_memory_bytes=memory_bytes[1],
        )

    def to_json(self) -> dict[str, Any]:
        """The side's object in the JSON of ``benchmark``."""
        return {
            "version": self.version,
            "median_ms": self.median_ms,
            "p90_ms": self.p90_ms,
            "p99_ms": self.p99_ms,
            "min_ms": self.min_ms,
            "round_medians_ms": list(self.round_medians_ms),
            "load_s": self.load_s,
            "peak_memory_bytes": self.peak_memory_bytes,
            "model_memory_bytes": self.model_memory_bytes,
        }


@dataclass(frozen=True)
class BenchmarkResult:
    """A bundle's run times, and those of another runtime measured in alternation.

    Attributes:
        bundle: the bundle. threads: how many both sides ran on.
        edgetune: the bundle's side. other: the other one, None when the bundle ran alone.
        against: the other side's name, as a key of the JSON.
        rounds: how often the sides took turns. runs: timed runs of each side, over all rounds.
        drift: by which part the machine's own speed changed between rounds (``fixed_work.py``).
    """

    bundle: Path
    threads: int
    edgetune: SideResult
    other: SideResult | None
    against: str | None
    rounds: int
    runs: int
    drift: float

    @property
    def onnxruntime(self) -> SideResult | None:
        """The other side where it is ONNX Runtime; None where another one, or none, ran."""
        return self.other if self.against == "onnxruntime" else None

    @property
    def speedup(self) -> float | None:
        """The other side's median divided by the bundle's: above 1, the bundle is faster."""
        return None if self.other is None else self.other.median_ms / self.edgetune.median_ms

    @property
    def round_speedups(self) -> tuple[float, ...]:
        """The same for each round by itself."""
        if self.other is None:
            return ()
        pairs = zip(self.other.round_medians_ms, self.edgetune.round_medians_ms, strict=True)
        return tuple(other / own for other, own in pairs)

    def to_json(self) -> dict[str, Any]:
        """The JSON object of ``edgetune benchmark``."""
        sides = {"edgetune": self.edgetune.to_json()}
        if self.other is not None and self.against is not None:
            sides[self.against] = self.other.to_json()
        return {
            "bundle": str(self.bundle),
            **sides,
            "against": self.against,
            "speedup": self.speedup,
            "round_speedups": list(self.round_speedups),
            "threads": self.threads,
            "rounds": self.rounds,
            "runs": self.runs,
            "drift": self.drift,
        }
