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

import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from edgetune.benchmarking.results import BenchmarkResult, latency
from edgetune.bundle.assemble import WrittenBundle, check_output, write_bundle
from edgetune.choices import choose
from edgetune.cuda import check_nvcc
from edgetune.devices.clocks import Clocks, controlled_clocks
from edgetune.devices.transport import Device
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
from edgetune.request import Request
from edgetune.results import CompileResult, KernelResult, TuneResult
from edgetune.targets import Target
from edgetune.tuning.loop import tune_tasks
from edgetune.tuning.options import Budget, TuningOptions
from edgetune.watcher import Watcher

BASELINE_ROUNDS = 2
BENCHMARK_ROUNDS = 5


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
        measured_on, clocks = _with_clocks(stack, measured_on, request.fix_clocks)
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
        after = job.prover.benchmark(written.path, job.prepared.onnx, BENCHMARK_ROUNDS) if timed else None
        agreement = job.prover.agreement(written.path) if timed else None
    return TuneResult(
        model=job.prepared.name,
        target=job.target.name,
        device=",".join(device.name for device in measured_on),
        bundle=written.path,
        trials_spent=outcome.trials_spent,
        trials_reused=outcome.trials_reused,
        tasks=outcome.results(choices),
        latency_ms=latency(before, after),
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
    check_nvcc(target)
    if request.out is not None:
        check_output(request.out)
    watcher.say("preparing the model")
    loaded = load_model(request.model)
    cutting.check_options(request.cut, request.save_rest)
    prepared = prepare(loaded, request.shapes, request.freeze, request.cut)
    out = request.bundle_path(prepared.name, target.name)
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


def _with_clocks(
    stack: ExitStack, devices: Sequence[Device], fix: bool
) -> tuple[tuple[Device, ...], list[Clocks]]:
    """The devices, whose clocks are fixed until the stack ends where ``fix`` says so, and again if one restarts."""
    clocks = [stack.enter_context(controlled_clocks(one.linker, fix)) for one in devices]
    pairs = zip(devices, clocks, strict=True)
    return tuple(replace(one, prepared=clock.renew) for one, clock in pairs), clocks


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
        result = job.prover.benchmark(bundle, job.prepared.onnx, BASELINE_ROUNDS) if timed else None
    watcher.baseline(latency(result, None))
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
        job.lowered,
        choices,
        job.target,
        name,
        standalone=request.standalone,
        embed=request.weights == "embed",
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
