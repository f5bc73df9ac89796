"""The stages in order: what ``tune`` and ``compile`` are made of.

    prepare    model/         ONNX in, simplified ONNX with static shapes and reference outputs out
    lower      graph/         Relax for one target, and the tasks: its distinct kernels
    baseline                  the model under default schedules, verified, timed beside ONNX Runtime
    tune       tuning/        candidates for the tasks, measured on a device, recorded in the logs
    choose     choices.py     the best record of each task, or the default schedule
    compile    graph/         one library with the chosen kernels, and the packed weights
               standalone/    the same without TVM, where the model is a mere sequence of kernel calls
    write      bundle/        library, weights and manifest, staged beside the final place
    verify     verify.py      the staged bundle against ONNX Runtime, before it appears
    benchmark  benchmarking/  the bundle beside ONNX Runtime

Stages know nothing of each other: this page carries their results from one to the next.

Importing this module imports TVM; ``edgetune.api`` does so only after the pins have been checked.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from edgetune.benchmarking.agreement import Agreement
from edgetune.benchmarking.profile import profile
from edgetune.benchmarking.results import BenchmarkResult
from edgetune.bundle.assemble import WrittenBundle, check_output, write_bundle
from edgetune.choices import choose
from edgetune.devices.clocks import controlled_clocks
from edgetune.devices.transport import Device
from edgetune.errors import EdgetuneError
from edgetune.graph.compile import applies
from edgetune.graph.library import compile_library
from edgetune.graph.lower import Lowered, lower
from edgetune.kernels.registry import design_spaces
from edgetune.logs import LayeredLogs, open_logs
from edgetune.model import cutting
from edgetune.model.loading import load_model
from edgetune.model.prepare import prepare
from edgetune.model.variants import served
from edgetune.placement import chosen_target, device_names, fastest_threads, place, runs_here
from edgetune.proof import Prover
from edgetune.records import Choice, CompiledModel, PreparedModel, Source
from edgetune.results import CompileResult, KernelResult, Latency, TaskResult, TuneResult
from edgetune.targets import Target
from edgetune.tuning.loop import tune_tasks
from edgetune.tuning.options import Budget, TuningOptions
from edgetune.tuning.outcome import TuningOutcome
from edgetune.watcher import Watcher

if TYPE_CHECKING:
    import os

    from onnx import ModelProto

    Model: TypeAlias = "str | os.PathLike[str] | bytes | ModelProto"

BASELINE_ROUNDS = 2
BENCHMARK_ROUNDS = 5


@dataclass(frozen=True)
class Request:
    """What ``tune`` and ``compile`` are asked for.

    Attributes:
        model: path, bytes or ``ModelProto``. shapes, freeze: see ``model.prepare``.
        target: ``local``, a name, or the path of a TOML file. threads: in place of the target's.
        out: where to write the bundle; default ``edgetune-out/MODEL-TARGET``.
        logs: path or URL of the tuning logs; None for the user's.
        rtol, atol: tolerances of the verification; None for those of each output's dtype.
        archive: write one ``.tar``. lean: leave out what only ``compare`` and ``benchmark`` need.
        cut: tensors to compute in place of the model's outputs. save_rest: where to write what comes after
            them as an ONNX model.
        standalone: a library that needs nothing of TVM; None: where the model can be one, else a program for
            TVM's virtual machine. embed_weights: a standalone library with the weights inside it.
        cluster: CPUs of the device to run on, see ``devices.clusters``. fix_clocks: let them run with a fixed
            governor meanwhile. search_threads: tune for the number of threads that the untuned model is fastest on.
    """

    model: Model
    shapes: Mapping[str, Sequence[int | str | Sequence[int]]] | None = None
    freeze: Mapping[str, Any] | None = None
    target: str = "local"
    threads: int | None = None
    out: Path | None = None
    logs: str | Path | None = None
    rtol: float | None = None
    atol: float | None = None
    archive: bool = False
    lean: bool = False
    cut: Sequence[str] = ()
    save_rest: Path | None = None
    standalone: bool | None = None
    embed_weights: bool = False
    cluster: str | None = None
    fix_clocks: bool = False
    search_threads: bool = False


@dataclass(frozen=True)
class Job:
    """A request made concrete: everything that can be refused early has been checked.

    ``prover`` verifies and times bundles. ``rest`` is what to write beside the bundle.
    """

    request: Request
    prepared: PreparedModel
    target: Target
    lowered: Lowered
    out: Path
    prover: Prover
    rest: cutting.Rest | None = None


def tune(
    request: Request,
    budget: Budget,
    device: str | None = None,
    options: TuningOptions | None = None,
    watcher: Watcher | None = None,
    measure_latency: bool = True,
) -> TuneResult:
    """Tune a model on a device, or on several at once, and write a verified bundle of the best that is known.

    Ctrl-C while tuning ends the search, and so does the loss of the last device; the bundle is written all the same
    and the result says ``interrupted``, or how the device was ``lost``.

    Raises:
        MismatchError: the outputs differ from ONNX Runtime's; no bundle was written.
        EdgetuneError: see the stages; nothing is measured before model, target, logs, output and the
            untuned model's values are checked.
    """
    started = time.monotonic()
    watcher = watcher or Watcher()
    with ExitStack() as stack:
        logs = stack.enter_context(open_logs(request.logs))
        if request.search_threads:
            request = replace(request, threads=_fastest_threads(request, device, watcher))
        job, measured_on = _begin_tuning(request, device, watcher)
        names = ", ".join(device.name for device in measured_on)
        if job.prover.elsewhere:
            # Other machines are connected to once, for the verification and timing too.
            watcher.say(f"connecting to {names}")
            for one in measured_on:
                stack.enter_context(one.up())
        clocks = [
            stack.enter_context(controlled_clocks(one.linker, request.fix_clocks)) for one in measured_on
        ]
        before = _baseline(job, watcher, measure_latency)
        watcher.say(f"tuning {len(job.lowered.tasks)} tasks on {names}")
        outcome = tune_tasks(
            job.lowered.tasks,
            job.target,
            measured_on,
            logs,
            spaces=design_spaces,
            budget=budget,
            options=options,
            progress=watcher.tuning,
            news=watcher.note,
        )
        job.prover.lose([one.name for one in outcome.devices if one.problem])
        choices = _choose(job, LayeredLogs(logs))
        written = _compile(job, choices, watcher)
        timed = measure_latency and not outcome.interrupted and not outcome.lost
        after = _benchmark(job, written.path, watcher) if timed else None
        agreement = _agreement(job, written.path, watcher) if timed else None
    return TuneResult(
        model=job.prepared.name,
        target=job.target.name,
        device=",".join(device.name for device in measured_on),
        bundle=written.path,
        trials_spent=outcome.trials_spent,
        trials_reused=outcome.trials_reused,
        tasks=_task_results(outcome, choices),
        latency_ms=_latency(before, after),
        verified=written.verification,
        wall_s=time.monotonic() - started,
        failures=outcome.failures,
        interrupted=outcome.interrupted,
        notes=(
            *(*job.prepared.notes, *outcome.notes),
            *(note for one in clocks for note in one.notes),
            *_last_notes(job, written),
        ),
        rest=request.save_rest,
        agreement=None if agreement is None else agreement.to_json(),
        devices={one.name: one.trials for one in outcome.devices},
        lost=outcome.lost,
        conditions=outcome.drift.to_json(),
    )


def compile_from_logs(request: Request, watcher: Watcher | None = None) -> CompileResult:
    """Compile a model from the logs alone: no device, no trials.

    Raises:
        EdgetuneError: see the stages.
    """
    watcher = watcher or Watcher()
    with open_logs(request.logs, read_only=True) as logs:
        job = _begin(request, watcher)
        choices = _choose(job, LayeredLogs(logs))
    written = _compile(job, choices, watcher)
    return CompileResult(
        model=job.prepared.name,
        target=job.target.name,
        bundle=written.path,
        kernels=tuple(KernelResult.of(choice) for choice in choices),
        verified=written.verification,
        notes=(*job.prepared.notes, *_last_notes(job, written)),
        rest=request.save_rest,
    )


def _begin(
    request: Request, watcher: Watcher, target: Target | None = None, devices: Sequence[Device] = ()
) -> Job:
    """Check everything that can be checked before time is spent, then prepare and lower the model."""
    target = target or chosen_target(request.target, request.threads)
    if request.out is not None:
        check_output(request.out)
    watcher.say("preparing the model")
    loaded = load_model(request.model)
    cutting.check_options(request.cut, request.save_rest)
    prepared = prepare(loaded, request.shapes, request.freeze, request.cut)
    out = request.out or _default_out(prepared.name, target.name, request.archive)
    check_output(out)
    watcher.say(f"lowering {prepared.name} for {target.name}, {target.threads} threads")
    rest = None
    if request.save_rest is not None:
        given = request.shapes or {}, request.freeze or {}, request.cut
        rest = cutting.rest_of(loaded, *given, served(prepared)[1], request.save_rest)
    prover = Prover(devices, runs_here(target), request.rtol, request.atol, watcher, request.cluster)
    return Job(request, prepared, target, lower(prepared, target), out, prover, rest)


def _begin_tuning(request: Request, device: str | None, watcher: Watcher) -> tuple[Job, tuple[Device, ...]]:
    """The job, and the devices to measure on.

    Raises:
        EdgetuneError: see :func:`edgetune.placement.place`.
    """
    target, measured_on = place(request.target, request.threads, device, watcher, request.cluster)
    elsewhere = [one for one in measured_on if not one.shares_host]
    return _begin(request, watcher, target, elsewhere), measured_on


def _fastest_threads(request: Request, device: str | None, watcher: Watcher) -> int:
    """The number of threads that the untuned model is fastest on, at most the target's; on the first device."""
    first = None if device is None else device_names(device)[0]

    def time_ms(count: int) -> float | None:
        job, measured_on = _begin_tuning(replace(request, threads=count), first, watcher)
        with ExitStack() as stack:
            if job.prover.elsewhere:
                stack.enter_context(measured_on[0].up())
            result = _baseline(job, watcher, True)
        return None if result is None else result.edgetune.median_ms

    target, _ = place(request.target, request.threads, first, watcher, request.cluster)
    return fastest_threads(target.threads, time_ms, watcher)


def _default_out(model: str, target: str, archive: bool) -> Path:
    # A graph's name may hold anything; a folder's had better not.
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", f"{model}-{target}").lstrip(".") or "model"
    return Path("edgetune-out", f"{name}.tar" if archive else name)


def _baseline(job: Job, watcher: Watcher, timed: bool) -> BenchmarkResult | None:
    """Verify the model under default schedules, and time it beside ONNX Runtime: what tuning has to beat.

    A model that is compiled wrongly is found out here, before any trial is spent on it.

    Raises:
        MismatchError: its outputs differ from ONNX Runtime's.
    """
    if not job.prover.possible:
        return None
    watcher.say("verifying the untuned model")
    choices = [Choice(task, Source.DEFAULT) for task in job.lowered.tasks]
    with tempfile.TemporaryDirectory(prefix="edgetune-untuned-") as folder:
        bundle = Path(folder, "untuned")
        library = _library(job, choices)
        write_bundle(bundle, library, job.prepared, job.target, choices, check=job.prover.verify)
        result = _benchmark(job, bundle, watcher, BASELINE_ROUNDS) if timed else None
    watcher.baseline(_latency(result, None))
    return result


def _choose(job: Job, logs: LayeredLogs) -> tuple[Choice, ...]:
    """The best known schedule of each task."""
    return choose(
        job.lowered.tasks,
        job.target,
        logs,
        fits=lambda choice: choice.trace is None or applies(choice.task, choice.trace),
    )


def _compile(job: Job, choices: Sequence[Choice], watcher: Watcher) -> WrittenBundle:
    """Compile, verify where the code can run, and write the bundle, and the rest of the model after it."""
    watcher.say("compiling and verifying the model" if job.prover.possible else "compiling the model")
    written = write_bundle(
        job.out,
        _library(job, choices),
        job.prepared,
        job.target,
        choices,
        check=job.prover.verify,
        archive=job.request.archive,
        lean=job.request.lean,
    )
    if job.rest is not None:
        cutting.save(job.rest.model, job.rest.path)
    return written


def _library(job: Job, choices: Sequence[Choice]) -> CompiledModel:
    request, name = job.request, job.prepared.name
    return compile_library(
        job.lowered, choices, job.target, name, standalone=request.standalone, embed=request.embed_weights
    )


def _benchmark(
    job: Job, bundle: Path, watcher: Watcher, rounds: int = BENCHMARK_ROUNDS
) -> BenchmarkResult | None:
    """Time a bundle beside ONNX Runtime; None where that cannot be done."""
    if not job.prover.possible:
        return None
    watcher.say("timing it" if job.prover.elsewhere else "timing it beside ONNX Runtime")
    try:
        return job.prover.benchmark(bundle, job.prepared.onnx, rounds)
    except EdgetuneError as error:
        # The bundle stands, verified: a failed comparison must not hide it.
        watcher.note(f"not timed: {error}")
        return None


def _agreement(job: Job, bundle: Path, watcher: Watcher) -> Agreement | None:
    """Whether the kernels' times add up to the latency; None where the bundle does not run on this machine."""
    if not job.prover.possible or job.prover.elsewhere:
        return None
    watcher.say("adding up its kernels")
    try:
        return profile(bundle, roofline=False).agreement
    except EdgetuneError as error:
        watcher.note(f"kernels not timed: {error}")
        return None


def _latency(before: BenchmarkResult | None, after: BenchmarkResult | None) -> Latency:
    """Medians; ONNX Runtime's is the one measured in alternation with the tuned model, where there is one."""
    beside = after or before
    return Latency(
        edgetune=after.edgetune.median_ms if after else None,
        onnxruntime=beside.onnxruntime.median_ms if beside and beside.onnxruntime else None,
        untuned=before.edgetune.median_ms if before else None,
    )


def _task_results(outcome: TuningOutcome, choices: Sequence[Choice]) -> tuple[TaskResult, ...]:
    """The tasks with the times of the schedules that went into the bundle."""
    by_workload = {choice.task.workload: choice for choice in choices}
    return tuple(
        TaskResult.of(by_workload[tuned.task.workload], tuned.trials, tuned.reason) for tuned in outcome.tasks
    )


def _last_notes(job: Job, written: WrittenBundle) -> tuple[str, ...]:
    notes = (*(() if job.rest is None else (job.rest.note,)), *written.notes())
    if job.prover.note:
        return (*notes, job.prover.note)
    if written.verification is not None:
        return notes
    return (
        *notes,
        f"not verified, for this machine cannot run code for {job.target.name}; "
        "run 'edgetune compare' with --device, or on such a machine",
    )
