"""What the stages exchange: small, frozen, picklable values, never TVM objects.

Units are in the names: ``_s`` seconds, ``_ms`` milliseconds, ``_us`` microseconds, ``_bytes`` bytes.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class TensorSpec:
    """One input or output of a model: NumPy dtype name (``float32``) and static shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class PreparedModel:
    """A model ready for lowering: simplified ONNX with static shapes, and its reference run.

    Attributes:
        name: file stem, or the graph's name for a model given as bytes.
        sha256: of the original file's bytes, before any pass.
        onnx: serialised ``ModelProto`` after all passes.
        notes: what the passes did, or left out and why, one sentence each.
        reference_inputs: random inputs by name (seeded, see ``model.reference``).
        reference_outputs: what ONNX Runtime gives for them on the *original* model.
        params: number of weights; flops: floating-point operations of one inference.
    """

    name: str
    sha256: str
    onnx: bytes
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    notes: tuple[str, ...] = ()
    reference_inputs: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)
    reference_outputs: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)
    params: int = 0
    flops: int = 0


@dataclass(frozen=True)
class Task:
    """One distinct kernel of a model.

    Attributes:
        name: readable, unique in the model (``fused_conv2d_add_relu``).
        workload: 16 hex digits naming the computation, stable between runs and machines.
        ir: the unscheduled kernel, an IRModule with one PrimFunc ``main`` as TVM JSON.
        weight: how many times one inference calls it.
        flops: floating-point operations of one call.
        kind: the kernel family that knows its schedule space (a module of ``kernels/``).
    """

    name: str
    workload: str
    ir: str = field(repr=False)
    weight: int = 1
    flops: float = 0.0
    kind: str = "generic"


@dataclass(frozen=True)
class Candidate:
    """A schedule to try for a task: a MetaSchedule trace as JSON.

    ``predicted`` is the cost model's score (higher is better), None without a model.
    """

    workload: str
    trace: str = field(repr=False)
    predicted: float | None = None


class Stage(StrEnum):
    """Where a candidate failed."""

    SEARCH = "search"
    BUILD = "build"
    LOAD = "load"
    RUN = "run"
    CHECK = "check"


class FailureKind(StrEnum):
    """What went wrong with a candidate, coarsely; the message has the rest."""

    ERROR = "error"
    CRASH = "crash"
    TIMEOUT = "timeout"
    WRONG_RESULT = "wrong_result"
    DEVICE_LOST = "device_lost"


@dataclass(frozen=True)
class Failure:
    """A candidate that did not make it: data, not an exception."""

    stage: Stage
    kind: FailureKind
    message: str


@dataclass(frozen=True)
class Timing:
    """Measured run times of one candidate.

    ``times_s`` holds the mean seconds of one call for each repeat. ``slow`` says that measuring
    stopped early because the candidate was clearly slower than the best known.
    """

    times_s: tuple[float, ...]
    slow: bool = False

    @property
    def median_s(self) -> float:
        """Median over the repeats, in seconds."""
        return statistics.median(self.times_s)


@dataclass(frozen=True)
class Artifact:
    """A built candidate: a shared library for the device, linked on the host."""

    candidate: Candidate
    library: bytes = field(repr=False)


@dataclass(frozen=True)
class Record:
    """One measured trial, as the tuning logs keep it.

    ``(workload, target, device)`` say what was measured for whom and where; ``target`` is
    the fingerprint of the target (``Target.fingerprint``), ``device`` the device's name.
    """

    workload: str
    target: str
    device: str
    trace: str = field(repr=False)
    outcome: Timing | Failure
    versions: Mapping[str, str] = field(default_factory=dict)
    created_s: float = 0.0
    task_name: str = ""
    kind: str = "generic"


class Source(StrEnum):
    """Where a kernel's schedule came from."""

    RECORD = "record"
    TRANSFERRED = "transferred"
    DEFAULT = "default"


@dataclass(frozen=True)
class Choice:
    """The schedule chosen for one task when a library is assembled.

    ``trace`` None means the default schedule of the task's kind.
    """

    task: Task
    source: Source
    trace: str | None = field(default=None, repr=False)
    best_s: float | None = None
