"""What the stages exchange: small, frozen, picklable values, never TVM objects.

Units are in the names: ``_s`` seconds, ``_ms`` milliseconds, ``_us`` microseconds, ``_bytes`` bytes.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from edgetune.sizes import Dimension, Sizes

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class TensorSpec:
    """One input or output of a model: NumPy dtype name (``float32``) and shape.

    ``varying`` holds the axes whose size may differ from call to call, with the sizes they may have;
    ``shape`` then has their largest ones.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    varying: tuple[tuple[int, Sizes], ...] = ()

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Whether an array of this shape is served."""
        if not self.varying:
            return shape == self.shape
        sizes = dict(self.varying)
        return len(shape) == len(self.shape) and all(
            sizes[axis].bucket(size) is not None if axis in sizes else size == self.shape[axis]
            for axis, size in enumerate(shape)
        )

    def __str__(self) -> str:
        """Dtype and shape: ``float32[1..8, 3, 224, 224]``."""
        sizes: dict[int, object] = {**dict(enumerate(self.shape)), **dict(self.varying)}
        return f"{self.dtype}[{', '.join(map(str, sizes.values()))}]"


@dataclass(frozen=True)
class ReferenceRun:
    """Inputs, and ONNX Runtime's outputs of the original model for them, by name."""

    inputs: Mapping[str, np.ndarray] = field(repr=False)
    outputs: Mapping[str, np.ndarray] = field(repr=False)


@dataclass(frozen=True)
class Variants:
    """What makes one model of several sizes out of a model prepared for the largest.

    Attributes:
        dimensions: those that vary; at most one of them is padded.
        smaller: the model prepared for every other combination of sizes, larger ones first.
        onnx: the model with these dimensions left open, its inputs frozen, no pass applied.
        between: a run at a size between two of the padded dimension's; None where there is none.
    """

    dimensions: tuple[Dimension, ...]
    smaller: tuple[PreparedModel, ...]
    onnx: bytes = field(repr=False)
    between: ReferenceRun | None = field(default=None, repr=False)


@dataclass(frozen=True)
class PreparedModel:
    """A model ready for lowering: simplified ONNX with static shapes, and its reference run.

    A model whose sizes vary from call to call is that of the largest sizes, with the others in ``variants``.

    Attributes:
        name: file stem, or the graph's name for a model given as bytes.
        sha256: of the original file's bytes, before any pass.
        onnx: serialised ``ModelProto`` after all passes.
        notes: what the passes did, or left out and why, one sentence each.
        reference_inputs: random inputs by name (seeded, see ``model.reference``).
        reference_outputs: what ONNX Runtime gives for them on the *original* model.
        params: number of weights; flops: floating-point operations of one inference.
        frozen: values that inputs of the original model were fixed to, by name.
        variants: the model's other sizes; None for a model of fixed shape.
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
    frozen: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)
    variants: Variants | None = None

    @property
    def all_sizes(self) -> tuple[PreparedModel, ...]:
        """The model for each combination of sizes, the largest first."""
        return (self, *self.variants.smaller) if self.variants else (self,)

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """The dimensions that vary; none for a model of fixed shape."""
        return self.variants.dimensions if self.variants else ()

    @property
    def reference_runs(self) -> tuple[ReferenceRun, ...]:
        """One run for each combination of sizes, then the one between them."""
        runs = [ReferenceRun(model.reference_inputs, model.reference_outputs) for model in self.all_sizes]
        between = self.variants.between if self.variants else None
        return (*runs, between) if between else tuple(runs)


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
    """A schedule to try for a task: a MetaSchedule trace as JSON."""

    workload: str
    trace: str = field(repr=False)


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


@dataclass(frozen=True)
class Program:
    """The code for one combination of sizes: a function of the library, and which weights it takes.

    Attributes:
        function: takes the inputs, then the weights, and returns one tensor or a tuple of tensors.
        inputs, outputs: in the order of its parameters and results.
        weights: positions in ``CompiledModel.weights``, in the order of its parameters.
    """

    function: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    weights: tuple[int, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class CompiledModel:
    """A model compiled for one target: what a bundle is made of.

    Attributes:
        library: a shared library for the target, a Relax VM executable whose function ``main``
            takes the inputs, then the weights, and returns one tensor or a tuple of tensors.
        weights: in the order of ``main``'s parameters, laid out as the kernels want them.
        inputs, outputs: in the order of ``main``'s parameters and results.
        symbols: kernel function in the library -> name of its task, where the two differ.
        standalone: the library is no VM executable but a program of its own, with the C API of
            ``standalone/c/edgetune.h``; ``weights`` are then empty where they are inside it.
        files: what else goes into the bundle (headers, a static library), by name.
        programs: where sizes vary, the function for each combination, ``main`` for the largest first;
            ``weights`` are then those of all programs. Empty for a model of fixed shape.
        needs_vm: why it is no standalone library; empty where it is one, or was not to be.
        without_runtime: why ``files`` has no TVM runtime for the virtual machine; empty where it has, or needs none.
    """

    library: bytes = field(repr=False)
    weights: tuple[np.ndarray, ...] = field(repr=False)
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    symbols: Mapping[str, str] = field(default_factory=dict, repr=False)
    programs: tuple[Program, ...] = ()
    standalone: bool = False
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    needs_vm: str = ""
    without_runtime: str = ""


@dataclass(frozen=True)
class OutputDifference:
    """How one output differs from the reference; a value fails when abs > ``atol`` and rel > ``rtol``.

    Attributes:
        max_abs_error, max_rel_error: over all values; infinite where NaN or infinity stands on one
            side only, or the reference is zero and the value is not.
        failed: number of values that fail, of ``size``.
        position, value, expected: the first value that fails, in row-major order; None when none does.
        passing_atol: the smallest absolute tolerance that would pass with this ``rtol``;
            passing_rtol: the relative one that would pass with this ``atol``. Infinite: none would.
        problem: what makes values incomparable (another shape or dtype), empty when nothing does.
        sizes: the sizes of this run, as ``batch=3``; empty for a model of fixed shape.
    """

    name: str
    passed: bool
    max_abs_error: float
    max_rel_error: float
    rtol: float
    atol: float
    size: int = 0
    failed: int = 0
    position: tuple[int, ...] | None = None
    value: float | None = None
    expected: float | None = None
    passing_atol: float = 0.0
    passing_rtol: float = 0.0
    problem: str = ""
    sizes: str = ""

    def describe(self) -> str:
        """The output by name, and where and how it differs first."""
        output = f"output {self.name!r}" + (f" at {self.sizes}" if self.sizes else "")
        if self.problem:
            return f"{output} {self.problem}"
        if self.position is None:
            return f"{output} agrees"
        index = ", ".join(str(part) for part in self.position)
        return (
            f"{output} differs in {self.failed} of {self.size} values, first at [{index}]: "
            f"{self.value!r} instead of {self.expected!r} (largest absolute error {self.max_abs_error:.3g}, "
            f"relative {self.max_rel_error:.3g}; allowed {self.atol:g} or {self.rtol:g})"
        )


@dataclass(frozen=True)
class CompareResult:
    """All outputs of a bundle against a reference.

    ``reference`` says what gave the expected values; ``notes`` what a reader should know about them.
    """

    passed: bool
    outputs: tuple[OutputDifference, ...]
    reference: str = ""
    notes: tuple[str, ...] = ()

    @property
    def first_failure(self) -> OutputDifference | None:
        """The first output that differs too much; None when all pass."""
        return next((output for output in self.outputs if not output.passed), None)

    @property
    def max_abs_error(self) -> float:
        """The largest absolute error of all outputs."""
        return max((output.max_abs_error for output in self.outputs), default=0.0)

    @property
    def max_rel_error(self) -> float:
        """The largest relative error of all outputs."""
        return max((output.max_rel_error for output in self.outputs), default=0.0)

    def to_json(self) -> dict[str, Any]:
        """The JSON object of ``edgetune compare``."""
        return {
            "passed": self.passed,
            "reference": self.reference,
            "outputs": [asdict(output) for output in self.outputs],
            "notes": list(self.notes),
        }
