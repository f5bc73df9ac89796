"""What ``tune`` and ``compile`` return: typed, and with ``to_json`` as the documented JSON object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from edgetune.records import Choice, CompareResult, Source


@dataclass(frozen=True)
class KernelResult:
    """One kernel of a compiled model and where its schedule came from."""

    name: str
    source: Source
    weight: int = 1
    best_us: float | None = None

    @classmethod
    def of(cls, choice: Choice) -> KernelResult:
        """From the choice that the kernel was compiled with."""
        best_us = None if choice.best_s is None else choice.best_s * 1e6
        return cls(choice.task.name, choice.source, choice.task.weight, best_us)

    def to_json(self) -> dict[str, Any]:
        """The kernel's entry in ``kernels``."""
        return asdict(self)


@dataclass(frozen=True)
class TaskResult:
    """One task after tuning.

    ``trials`` are those measured for it, earlier runs included; ``gflops`` is the speed of the best
    one in 10^9 floating-point operations a second. ``best_us`` is None where nothing was measured.
    ``problem`` says why a task was set aside, empty when it was not.
    """

    name: str
    weight: int
    trials: int
    best_us: float | None
    gflops: float | None
    source: Source
    problem: str = ""

    @classmethod
    def of(cls, choice: Choice, trials: int, problem: str) -> TaskResult:
        """With the time of the schedule that went into the bundle."""
        task, best_s = choice.task, choice.best_s
        return cls(
            name=task.name,
            weight=task.weight,
            trials=trials,
            best_us=None if best_s is None else best_s * 1e6,
            gflops=task.flops / best_s / 1e9 if best_s and task.flops else None,
            source=choice.source,
            problem=problem,
        )

    def to_json(self) -> dict[str, Any]:
        """The task's entry in ``tasks``."""
        return asdict(self)


@dataclass(frozen=True)
class Latency:
    """Median milliseconds of one inference; None where it was not measured."""

    edgetune: float | None = None
    onnxruntime: float | None = None
    untuned: float | None = None

    @property
    def speedup(self) -> float | None:
        """How many times faster than ONNX Runtime; below 1 is slower."""
        return self.onnxruntime / self.edgetune if self.onnxruntime and self.edgetune else None

    def to_json(self) -> dict[str, float | None]:
        """The object ``latency_ms``."""
        return asdict(self)


def verification_json(result: CompareResult | None) -> dict[str, Any] | None:
    """The object ``verified``; None where the library could not be run here."""
    if result is None:
        return None
    return {
        "passed": result.passed,
        "max_abs_error": result.max_abs_error,
        "max_rel_error": result.max_rel_error,
    }


@dataclass(frozen=True)
class CompileResult:
    """A bundle compiled from the logs alone; ``rest`` is the ONNX file of what was cut off, if it was saved."""

    model: str
    target: str
    bundle: Path
    kernels: tuple[KernelResult, ...]
    verified: CompareResult | None = None
    notes: tuple[str, ...] = ()
    rest: Path | None = None

    def to_json(self) -> dict[str, Any]:
        """The JSON object of ``edgetune compile``."""
        return {
            "model": self.model,
            "target": self.target,
            "bundle": str(self.bundle),
            "kernels": [kernel.to_json() for kernel in self.kernels],
            "verified": verification_json(self.verified),
            "notes": list(self.notes),
            "rest": None if self.rest is None else str(self.rest),
        }


@dataclass(frozen=True)
class TuneResult:
    """A tuned, verified bundle and what it took.

    ``trials_spent`` were measured by this run, ``trials_reused`` came from the logs; both count
    against the budget. ``failures`` counts failed candidates by kind. ``interrupted`` says that
    Ctrl-C ended the search early: the bundle is the best found until then. ``agreement`` sets the kernels'
    times beside the latency, as in the JSON of ``profile``; None where it was not measured. ``rest`` is the
    ONNX file of what was cut off, if it was saved. ``devices`` are the trials that this run measured on each device.
    ``lost`` says why no device was left to measure on, where that ended the search; the bundle is then the best that
    was known. ``conditions`` says how steady the devices were, and what their sensors told before and after each
    batch.
    """

    model: str
    target: str
    device: str
    bundle: Path
    trials_spent: int
    trials_reused: int
    tasks: tuple[TaskResult, ...]
    latency_ms: Latency
    verified: CompareResult | None
    wall_s: float
    failures: Mapping[str, int] = field(default_factory=dict)
    interrupted: bool = False
    notes: tuple[str, ...] = ()
    rest: Path | None = None
    agreement: Mapping[str, Any] | None = None
    devices: Mapping[str, int] = field(default_factory=dict)
    lost: str = ""
    conditions: Mapping[str, Any] = field(default_factory=dict)

    @property
    def speedup_vs_onnxruntime(self) -> float | None:
        """ONNX Runtime's latency divided by the bundle's; None where either was not measured."""
        return self.latency_ms.speedup

    def to_json(self) -> dict[str, Any]:
        """The JSON object of ``edgetune tune``."""
        return {
            "model": self.model,
            "target": self.target,
            "device": self.device,
            "devices": dict(self.devices),
            "lost": self.lost,
            "bundle": str(self.bundle),
            "trials_spent": self.trials_spent,
            "trials_reused": self.trials_reused,
            "tasks": [task.to_json() for task in self.tasks],
            "latency_ms": self.latency_ms.to_json(),
            "speedup_vs_onnxruntime": self.speedup_vs_onnxruntime,
            "verified": verification_json(self.verified),
            "wall_s": self.wall_s,
            "failures": dict(self.failures),
            "interrupted": self.interrupted,
            "agreement": None if self.agreement is None else dict(self.agreement),
            "conditions": dict(self.conditions),
            "notes": list(self.notes),
            "rest": None if self.rest is None else str(self.rest),
        }
