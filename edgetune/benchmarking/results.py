"""What a benchmark returns: typed, and with ``to_json`` as the documented JSON object."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from edgetune.results import Latency


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
        error: largest absolute difference from ONNX Runtime's outputs, as a part of the output's largest value;
            infinite where an output is missing or has another size; None where ONNX Runtime did not run.
        power_w: watts that the device drew while this side ran, in a time of its own; None where no sensor tells.
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
    error: float | None = None
    power_w: float | None = None

    @property
    def energy_mj(self) -> float | None:
        """Millijoules that the device takes for one run, all of it that its sensors cover; None where it has none."""
        return None if self.power_w is None else self.power_w * self.median_ms

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
            "power_w": self.power_w,
            "energy_mj": self.energy_mj,
            "error": self.error if self.error is None or math.isfinite(self.error) else "infinite",
        }


@dataclass(frozen=True)
class BenchmarkResult:
    """A bundle's run times, and those of other runtimes measured in alternation.

    Attributes:
        bundle: the bundle. threads: how many all sides ran on.
        edgetune: the bundle's side.
        others: the other sides by name, which is their key in the JSON, in the order they were asked for.
        refused: why a side did not run, by name.
        rounds: how often the sides took turns. runs: timed runs of the bundle, over all rounds.
        drift: by which part the machine's own speed changed between rounds (``fixed_work.py``).
        conditions: what the device's sensors told before and after, and whether it was slowed down meanwhile.
        notes: what the user should know about it.
    """

    bundle: Path
    threads: int
    edgetune: SideResult
    others: Mapping[str, SideResult]
    rounds: int
    runs: int
    drift: float
    refused: Mapping[str, str] = field(default_factory=dict)
    conditions: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def against(self) -> str | None:
        """The first other side's name; None when the bundle ran alone."""
        return next(iter(self.others), None)

    @property
    def other(self) -> SideResult | None:
        """The first other side; None when the bundle ran alone."""
        return next(iter(self.others.values()), None)

    @property
    def onnxruntime(self) -> SideResult | None:
        """ONNX Runtime's side, where it ran."""
        return self.others.get("onnxruntime")

    @property
    def speedup(self) -> float | None:
        """The first other side's median divided by the bundle's: above 1, the bundle is faster."""
        return next(iter(self.speedups.values()), None)

    @property
    def speedups(self) -> dict[str, float]:
        """The same for each other side."""
        return {name: side.median_ms / self.edgetune.median_ms for name, side in self.others.items()}

    @property
    def round_speedups(self) -> tuple[float, ...]:
        """That of the first other side, for each round by itself."""
        if self.other is None:
            return ()
        pairs = zip(self.other.round_medians_ms, self.edgetune.round_medians_ms, strict=True)
        return tuple(other / own for other, own in pairs)

    def to_json(self) -> dict[str, Any]:
        """The JSON object of ``edgetune benchmark``."""
        return {
            "bundle": str(self.bundle),
            "edgetune": self.edgetune.to_json(),
            **{name: side.to_json() for name, side in self.others.items()},
            "against": self.against,
            "speedup": self.speedup,
            "speedups": self.speedups,
            "round_speedups": list(self.round_speedups),
            "refused": dict(self.refused),
            "threads": self.threads,
            "rounds": self.rounds,
            "runs": self.runs,
            "drift": self.drift,
            "conditions": dict(self.conditions),
            "notes": list(self.notes),
        }


def latency(untuned: BenchmarkResult | None, tuned: BenchmarkResult | None) -> Latency:
    """Medians; ONNX Runtime's is the one measured in alternation with the tuned model, where there is one."""
    beside = tuned or untuned
    return Latency(
        edgetune=tuned.edgetune.median_ms if tuned else None,
        onnxruntime=beside.onnxruntime.median_ms if beside and beside.onnxruntime else None,
        untuned=untuned.edgetune.median_ms if untuned else None,
    )
