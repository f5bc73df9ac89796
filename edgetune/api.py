"""The commands as functions: same names, same results as the JSON, as typed objects.

TVM is imported inside the functions, after its version has been checked: a wrong one may crash.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgetune.config import parse_duration
from edgetune.errors import UsageError
from edgetune.request import Request
from edgetune.versions import check_pins

if TYPE_CHECKING:
    from edgetune.benchmarking.results import BenchmarkResult
    from edgetune.checking import CheckResult
    from edgetune.records import CompareResult
    from edgetune.request import FilePath, Freeze, Model, Shapes
    from edgetune.results import CompileResult, TuneResult
    from edgetune.watcher import Watcher

__all__ = ["benchmark", "check", "compare", "compile", "tune"]


def check(
    model: Model,
    shapes: Shapes = None,
    freeze: Freeze = None,
    target: FilePath = "local",
    *,
    cut: Sequence[str] = (),
    save_rest: FilePath | None = None,
) -> CheckResult:
    """Say whether a model can be compiled, with every reason why not; spends no trials.

    Args:
        model: path, bytes or ``onnx.ModelProto``.
        shapes: input name -> sizes, for inputs with open dimensions: ``{"x": (1, 3, 224, 224)}``. One that
            varies from call to call is a range, ``{"x": ("1..8", 3, 224, 224)}``, or the sizes to build
            kernels for, ``{"x": ((1, 4, 8), 3, 224, 224)}``.
        freeze: input name -> value, for inputs that are really settings: ``{"sr": 16000}``.
        target: the target that the tasks are counted for.
        cut: tensors up to which the model is looked at, in place of its outputs.
        save_rest: where to write what comes after ``cut`` as an ONNX model.

    Raises:
        ModelError: it is no usable ONNX model.
        UsageError: ``shapes``, ``freeze`` or ``cut`` do not fit the model.
        TargetError: there is no such target.
    """
    check_pins()
    from edgetune.checking import check as stage

    return stage(model, shapes, freeze, os.fspath(target), cut, _path(save_rest))


def tune(
    model: Model,
    target: FilePath = "local",
    device: str | None = None,
    trials: int | None = None,
    time: float | str | None = None,
    shapes: Shapes = None,
    freeze: Freeze = None,
    out: FilePath | None = None,
    logs: FilePath | None = None,
    *,
    threads: int | None = None,
    seed: int | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    archive: bool = False,
    lean: bool = False,
    cut: Sequence[str] = (),
    save_rest: FilePath | None = None,
    standalone: bool | None = None,
    weights: str = "file",
    cluster: str | None = None,
    fix_clocks: bool = False,
    search_threads: bool = False,
    measure_latency: bool = True,
    watcher: Watcher | None = None,
) -> TuneResult:
    """Tune a model for a target on a device, and write a verified bundle.

    Ctrl-C ends the search, and so does the loss of the last device; the bundle of the best so far is written all the
    same, and the result says ``interrupted``, or how the device was ``lost``.

    Args:
        model, shapes, freeze: as of :func:`check`.
        target: ``local``, a name from ``edgetune targets list``, or the path of a TOML file.
        device: where candidates are measured; this machine by default. Several of one kind with commas between
            them are used at once.
        trials: budget in measured candidates, those already in the logs among them.
        time: budget of the search in seconds, or as ``"10m"``. With neither budget, tuning goes on until
            every task has stopped improving.
        out: the bundle to write; default ``edgetune-out/MODEL-TARGET``.
        logs: path or URL of the tuning logs; the user's by default.
        threads: to compile and run for; the target's by default.
        seed: of every random choice.
        rtol, atol: tolerances of the verification; by default those of each output's dtype.
        archive: write one ``.tar`` in place of a directory.
        lean: leave the ONNX model and the reference outputs out of the bundle.
        cut: tensors to compute in place of the model's outputs: what comes after them is left out.
        save_rest: where to write what was left out as an ONNX model, to run on the bundle's outputs.
        standalone: make a library with a C API that needs nothing of TVM (True: or refuse the model), or a
            program for TVM's virtual machine (False). By default, a library wherever the model can be one.
        weights: of a standalone library: ``file`` beside it, or ``embed`` them.
        cluster: the device's CPUs to run on: ``fastest``, ``big``, ``little``, ``all`` or a list as ``4-7``.
        fix_clocks: let them run with the ``performance`` governor meanwhile, where the device's user may say so;
            it is put back whatever happens.
        search_threads: time the untuned model on 1, 2, 4... threads first, and tune for the fastest number.
        measure_latency: time the model beside ONNX Runtime, before and after.
        watcher: told how it goes.

    Raises:
        MismatchError: outputs differ from ONNX Runtime's; no bundle was written.
        EdgetuneError: any other child says what went wrong.
    """
    if trials is not None and trials < 0:
        raise UsageError(f"trials={trials} is too few; give 0 or more")
    time_s = None if time is None else parse_duration(time)
    check_pins()
    from edgetune import workflow
    from edgetune.tuning.options import Budget, TuningOptions

    request = Request(
        model=model,
        shapes=shapes,
        freeze=freeze,
        target=os.fspath(target),
        threads=threads,
        out=_path(out),
        logs=None if logs is None else os.fspath(logs),
        rtol=rtol,
        atol=atol,
        archive=archive,
        lean=lean,
        cut=cut,
        save_rest=_path(save_rest),
        standalone=standalone,
        weights=weights,
        cluster=cluster,
        fix_clocks=fix_clocks,
        search_threads=search_threads,
    )
    return workflow.tune(
        request, Budget(trials, time_s), device, TuningOptions(seed=seed), watcher, measure_latency
    )


def compile(
    model: Model,
    target: FilePath = "local",
    shapes: Shapes = None,
    freeze: Freeze = None,
    out: FilePath | None = None,
    logs: FilePath | None = None,
    *,
    threads: int | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    archive: bool = False,
    lean: bool = False,
    cut: Sequence[str] = (),
    save_rest: FilePath | None = None,
    standalone: bool | None = None,
    weights: str = "file",
    watcher: Watcher | None = None,
) -> CompileResult:
    """Compile a model from the tuning logs alone: no device, no trials.

    Arguments and errors are those of :func:`tune`. The bundle is verified where this machine can run it.
    """
    check_pins()
    from edgetune import workflow

    request = Request(
        model=model,
        shapes=shapes,
        freeze=freeze,
        target=os.fspath(target),
        threads=threads,
        out=_path(out),
        logs=None if logs is None else os.fspath(logs),
        rtol=rtol,
        atol=atol,
        archive=archive,
        lean=lean,
        cut=cut,
        save_rest=_path(save_rest),
        standalone=standalone,
        weights=weights,
    )
    return workflow.compile_from_logs(request, watcher)


def compare(
    bundle: FilePath,
    model: Model | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    inputs: FilePath | Mapping[str, Any] | None = None,
    device: str | None = None,
) -> CompareResult:
    """Compare a bundle's outputs with ONNX Runtime's.

    Args:
        bundle: directory or ``.tar``.
        model: the original model; by default, ONNX Runtime's outputs recorded in the bundle are used. Where
            the bundle was compiled up to certain tensors, it is taken up to these.
        rtol, atol: a value fails when its errors exceed both; by default by dtype.
        inputs: a ``.npz`` file or arrays by name.
        device: where the bundle runs; this machine by default.

    Raises:
        BundleError: the bundle is damaged or for another machine.
        UsageError: tolerances or inputs make no sense.
        DeviceError: the device is unavailable.
    """
    from edgetune.verify import compare as stage

    given = inputs if inputs is None or isinstance(inputs, Mapping) else Path(inputs)
    if model is not None:
        model = _cut_like(Path(bundle), model)
    return stage(Path(bundle), model, rtol, atol, given, device)


def benchmark(
    bundle: FilePath,
    against: str | Sequence[str] | None = "onnxruntime",
    threads: int | None = None,
    device: str | None = None,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    cluster: str | None = None,
    fix_clocks: bool = False,
) -> BenchmarkResult:
    """Time a bundle beside other runtimes, in alternation, each in a process of its own.

    Args:
        bundle: directory or ``.tar``.
        against: ``onnxruntime``, ``openvino``, ``mnn``, ``ncnn``, ``litert``, ``iree``, the path of a ``.py`` file
            with a side of one's own, or None. Of several, those that cannot take part are left out, with
            their reasons in ``refused``.
        threads: of all sides; the bundle's by default.
        device: where to run; this machine by default.
        shapes: input name -> sizes, for a bundle of several; its largest by default.
        cluster, fix_clocks: as of :func:`tune`.

    Raises:
        BundleError: the bundle is damaged or for another machine.
        UsageError: a number is less than one, or there is no such side.
        DeviceError: the device is unavailable.
    """
    from edgetune.benchmarking.rounds import benchmark as stage

    return stage(
        Path(bundle), against, threads, device, shapes=shapes, cluster=cluster, fix_clocks=fix_clocks
    )


def _cut_like(bundle: Path, model: Model) -> Model:
    """The original model, cut where the bundle was if the bundle's outputs are not its own."""
    from edgetune.bundle.reader import open_bundle
    from edgetune.model.cutting import up_to

    if isinstance(model, str | os.PathLike) and not Path(model).expanduser().is_file():
        return model  # the stage says so
    return up_to(model, [output.name for output in open_bundle(bundle).manifest.outputs])


def _path(given: FilePath | None) -> Path | None:
    return None if given is None else Path(given)
