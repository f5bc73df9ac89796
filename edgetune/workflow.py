"""The stages in order: what ``tune`` and ``compile`` are made of.

    prepare   model/     ONNX in, simplified ONNX with static shapes and reference outputs out
    lower     graph/     Relax for one target, and the tasks: its distinct kernels
    tune      tuning/    candidates for the tasks, measured on a device, recorded in the logs
    choose    choices.py the best record of each task, or the default schedule
    compile   graph/     one library with the chosen kernels, and the packed weights
    write     bundle/    library, weights and manifest, staged beside the final place
    verify    verify.py  the staged bundle against ONNX Runtime, before it appears
    benchmark            the bundle beside ONNX Runtime and beside its untuned self

Stages know nothing of each other: this page carries their results from one to the next.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgetune.benchmarking.rounds import benchmark
from edgetune.bundle.assemble import WrittenBundle, check_output, write_bundle
from edgetune.choices import choose
from edgetune.cpu import architecture, missing_features
from edgetune.devices.inventory import open_device
from edgetune.errors import EdgetuneError
from edgetune.graph.compile import applies, compile_model
from edgetune.graph.lower import Lowered, lower
from edgetune.kernels.registry import design_spaces
from edgetune.logs import LayeredLogs, open_logs
from edgetune.model.prepare import prepare
from edgetune.records import Choice, PreparedModel, Source
from edgetune.results import CompileResult, KernelResult, Latency, TaskResult, TuneResult
from edgetune.targets import Target, load_target
from edgetune.toolchain import check_pins
from edgetune.tuning.loop import ProgressCallback, tune_tasks
from edgetune.tuning.options import Budget, TuningOptions
from edgetune.tuning.outcome import TuningOutcome
from edgetune.verify import compare

if TYPE_CHECKING:
    import os

    from onnx import ModelProto

    Model = str | os.PathLike[str] | bytes | ModelProto

Say = Callable[[str], None]

BENCHMARK_ROUNDS = 3


@dataclass(frozen=True)
class Request:
    """What ``tune`` and ``compile`` are asked for.

    Attributes:
        model: path, bytes or ``ModelProto``. shapes, freeze: see ``model.prepare``.
        target: ``local``, a name, or the path of a TOML file. threads: in place of the target's.
        out: where to write the bundle; default ``edgetune-out/MODEL-TARGET``.
        logs: path or URL of the tuning logs; None for the user's.
        archive: write one ``.tar``. lean: leave out what only ``compare`` and ``benchmark`` need.
    """

    model: Model
    shapes: Mapping[str, Sequence[int]] | None = None
    freeze: Mapping[str, Any] | None = None
    target: str = "local"
    threads: int | None = None
    out: Path | None = None
    logs: str | Path | None = None
    archive: bool = False
    lean: bool = False


@dataclass(frozen=True)
class Job:
    """A request made concrete: everything that can be refused early has been checked."""

    request: Request
    prepared: PreparedModel
    target: Target
    lowered: Lowered
    out: Path


def tune(
    request: Request,
    budget: Budget,
    device: str | None = None,
    options: TuningOptions | None = None,
    progress: ProgressCallback | None = None,
    say: Say = lambda text: None,
    measure_latency: bool = True,
) -> TuneResult:
    """Tune a model on a device and write a verified bundle of the best that is known.

    Raises:
        EdgetuneError: see the stages; nothing is measured before model, target, logs and output are checked.
    """
    started = time.monotonic()
    job = _begin(request, say)
    with open_logs(request.logs) as logs:
        say(f"tuning {len(job.lowered.tasks)} tasks for {job.target.name}")
        outcome = tune_tasks(
            job.lowered.tasks,
            job.target,
            open_device(device, job.target.threads),
            logs,
            spaces=design_spaces,
            budget=budget,
            options=options,
            progress=progress,
        )
        choices = _choose(job, LayeredLogs(logs))
    written = _compile(job, choices, say)
    latency = _latency(job, written, choices, say) if measure_latency else Latency()
    return TuneResult(
        model=job.prepared.name,
        target=job.target.name,
        device=device or "local",
        bundle=written.path,
        trials_spent=outcome.trials_spent,
        trials_reused=outcome.trials_reused,
        tasks=_task_results(outcome, choices),
        latency_ms=latency,
        verified=written.verification,
        wall_s=time.monotonic() - started,
        failures=outcome.failures,
        interrupted=outcome.interrupted,
        notes=(*job.prepared.notes, *_drift_notes(outcome)),
    )


def compile_from_logs(request: Request, say: Say = lambda text: None) -> CompileResult:
    """Compile a model from the logs alone: no device, no trials.

    Raises:
        EdgetuneError: see the stages.
    """
    job = _begin(request, say)
    with open_logs(request.logs) as logs:
        choices = _choose(job, LayeredLogs(logs))
    written = _compile(job, choices, say)
    kernels = tuple(KernelResult.of(choice) for choice in choices)
    notes = job.prepared.notes
    if written.verification is None:
        notes = (*notes, f"not verified: code for '{job.target.name}' does not run on this machine")
    return CompileResult(job.prepared.name, job.target.name, written.path, kernels, written.verification, notes)


def _begin(request: Request, say: Say) -> Job:
    """Check everything that can be checked before time is spent, then prepare and lower the model."""
    check_pins()
    target = load_target(request.target)
    if request.threads is not None:
        target = target.with_threads(request.threads)
    target.check()
    if request.out is not None:
        check_output(request.out)
    say("preparing the model")
    prepared = prepare(request.model, request.shapes, request.freeze)
    out = request.out or Path("edgetune-out", f"{prepared.name}-{target.name}" + ".tar" * request.archive)
    check_output(out)
    say("lowering it to kernels")
    return Job(request, prepared, target, lower(prepared, target), out)


def _choose(job: Job, logs: LayeredLogs) -> tuple[Choice, ...]:
    """The best known schedule of each task."""
    return choose(
        job.lowered.tasks,
        job.target,
        logs,
        fits=lambda choice: choice.trace is None or applies(choice.task, choice.trace),
    )


def _compile(job: Job, choices: Sequence[Choice], say: Say, out: Path | None = None) -> WrittenBundle:
    """Compile, verify where the code can run, and write the bundle."""
    say("compiling and verifying")
    return write_bundle(
        out or job.out,
        compile_model(job.lowered, choices, job.target),
        job.prepared,
        job.target,
        choices,
        check=compare if runs_here(job.target) else None,
        archive=job.request.archive and out is None,
        lean=job.request.lean and out is None,
    )


def runs_here(target: Target) -> bool:
    """Whether this machine can run code for a target."""
    return (
        target.kind == "llvm"
        and target.arch == architecture()
        and not missing_features(target.required_features())
    )


def _latency(job: Job, written: WrittenBundle, choices: Sequence[Choice], say: Say) -> Latency:
    """Time the bundle beside ONNX Runtime, and what default schedules alone would have given."""
    if not runs_here(job.target):
        return Latency()
    say("timing it beside ONNX Runtime")
    try:
        with tempfile.TemporaryDirectory(prefix="edgetune-") as folder:
            result = benchmark(written.path, model=job.prepared.onnx, rounds=BENCHMARK_ROUNDS)
            untuned_ms: float | None = result.edgetune.median_ms
            if any(choice.source is not Source.DEFAULT for choice in choices):
                defaults = [Choice(choice.task, Source.DEFAULT) for choice in choices]
                plain = _compile(job, defaults, lambda text: None, Path(folder, "untuned"))
                untuned_ms = benchmark(plain.path, None, rounds=BENCHMARK_ROUNDS).edgetune.median_ms
    except EdgetuneError as error:
        # The bundle stands, verified: a failed comparison must not hide it.
        say(f"not timed: {error}")
        return Latency()
    other = result.other.median_ms if result.other else None
    return Latency(result.edgetune.median_ms, other, untuned_ms)


def _task_results(outcome: TuningOutcome, choices: Sequence[Choice]) -> tuple[TaskResult, ...]:
    by_workload = {choice.task.workload: choice for choice in choices}
    return tuple(
        TaskResult(
            name=task.task.name,
            weight=task.task.weight,
            trials=task.trials,
            best_us=None if task.best_s is None else task.best_s * 1e6,
            gflops=task.gflops,
            source=by_workload[task.task.workload].source,
            problem=task.reason,
        )
        for task in outcome.tasks
    )


def _drift_notes(outcome: TuningOutcome) -> tuple[str, ...]:
    drift = outcome.drift
    if not drift.unsteady:
        return ()
    return (
        f"{drift.unsteady} of {drift.batches} batches were measured while the device's own speed changed by more "
        f"than {drift.bound:.0%}: their times are less sure",
    )
