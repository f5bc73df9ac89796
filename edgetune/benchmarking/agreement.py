"""Whether the kernels' times add up to the model's latency, and what stands between the two.

Three figures of the same model: its latency; its kernels timed where they stand in a run; and the same kernels as the
tuning logs have them, each by itself, again and again, with its data in the caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

BOUND = 0.1
"""Part of the latency by which the sum may be off without a word."""


@dataclass(frozen=True)
class KernelTime:
    """One kernel, all its calls of one inference together; ``alone_us`` is None without a measured record."""

    name: str
    calls: int
    time_us: float
    alone_us: float | None


@dataclass(frozen=True)
class Agreement:
    """The model's latency and what it is made of, in milliseconds.

    Attributes:
        latency_ms: median of undisturbed runs, arrays to arrays.
        kernels_ms: sum of the kernels, timed in place.
        between_ms: the virtual machine's other instructions: allocation, shapes, checks of arguments.
        alone_ms: sum of the records of the kernels that have one; recorded_ms: the same kernels in place.
        unrecorded_ms: the others in place, ``unrecorded`` of them: never measured by themselves.
    """

    latency_ms: float
    kernels_ms: float
    between_ms: float
    alone_ms: float
    recorded_ms: float
    unrecorded_ms: float
    unrecorded: int

    @classmethod
    def of(cls, latency_ms: float, between_us: float, kernels: Sequence[KernelTime]) -> Agreement:
        """From the kernels of a profile."""
        recorded = [kernel for kernel in kernels if kernel.alone_us is not None]
        others = [kernel for kernel in kernels if kernel.alone_us is None]
        return cls(
            latency_ms=latency_ms,
            kernels_ms=sum(kernel.time_us for kernel in kernels) / 1e3,
            between_ms=between_us / 1e3,
            alone_ms=sum(kernel.alone_us or 0.0 for kernel in recorded) / 1e3,
            recorded_ms=sum(kernel.time_us for kernel in recorded) / 1e3,
            unrecorded_ms=sum(kernel.time_us for kernel in others) / 1e3,
            unrecorded=len(others),
        )

    @property
    def outside_ms(self) -> float:
        """What no instruction accounts for: arrays in and out, entering the machine; below zero: observing cost it."""
        return self.latency_ms - self.kernels_ms - self.between_ms

    @property
    def agrees(self) -> bool:
        """Whether the kernels in place, and alone, add up to the latency within BOUND."""
        return abs(self._share(self.kernels_ms)) <= BOUND and abs(self._share(self.by_records_ms)) <= BOUND

    @property
    def by_records_ms(self) -> float:
        """The latency that the logs promise: records where there are any, the rest as timed in place."""
        return self.alone_ms + self.unrecorded_ms

    def _share(self, sum_ms: float) -> float:
        return (self.latency_ms - sum_ms) / self.latency_ms if self.latency_ms else 0.0

    def describe(self) -> str:
        """The sums beside the latency and, where they are apart, what lies between, largest part first."""
        text = (
            f"kernels add up to {self.kernels_ms:.3f} ms in place and {self.by_records_ms:.3f} ms by their records, "
            f"of {self.latency_ms:.3f} ms measured"
        )
        if self.agrees:
            return f"{text}: within {BOUND:.0%}"
        parts = [
            (self.outside_ms, "handing over arrays and entering the library, outside all kernels"),
            (self.between_ms, "the virtual machine's other instructions"),
        ]
        if self.alone_ms:
            apart_ms = self.recorded_ms - self.alone_ms
            how = "longer" if apart_ms > 0 else "less"
            parts.append((apart_ms, f"kernels that take {how} in place, now, than alone, when recorded"))
        if self.outside_ms < 0:
            parts[0] = (self.outside_ms, "observing, which slows the kernels in place down")
        named = [
            part for part in sorted(parts, key=lambda part: -abs(part[0])) if abs(self._part(part[0])) >= 0.01
        ]
        text += (
            "; the difference: " + ", ".join(f"{ms:+.3f} ms {what}" for ms, what in named) if named else ""
        )
        if self.unrecorded:
            text += f"; {self.unrecorded} kernels without a record take {self.unrecorded_ms:.3f} ms"
        return text

    def _part(self, time_ms: float) -> float:
        return time_ms / self.latency_ms if self.latency_ms else 0.0

    def to_json(self) -> dict[str, Any]:
        """For the JSON of ``profile`` and ``tune``."""
        return {
            "latency_ms": self.latency_ms,
            "kernels_ms": self.kernels_ms,
            "between_ms": self.between_ms,
            "outside_ms": self.outside_ms,
            "by_records_ms": self.by_records_ms,
            "unrecorded_ms": self.unrecorded_ms,
            "unrecorded": self.unrecorded,
            "agrees": self.agrees,
            "explanation": self.describe(),
        }
