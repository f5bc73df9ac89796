"""The commands as functions, with the same names and results; see the README for examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgetune import workflow
from edgetune.benchmarking.rounds import benchmark
from edgetune.checking import check
from edgetune.config import parse_duration
from edgetune.errors import UsageError
from edgetune.results import CompileResult, TuneResult
from edgetune.tuning.loop import ProgressCallback
from edgetune.tuning.options import Budget, TuningOptions
from edgetune.verify import compare

if TYPE_CHECKING:
    from edgetune.workflow import Model

__all__ = ["benchmark", "check", "compare", "compile", "tune"]


def tune(
    model: Model,
    target: str = "local",
    device: str | None = None,
    trials: int | None = None,
    time: float | str | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    freeze: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    logs: str | Path | None = None,
    *,
    threads: int | None = None,
    seed: int | None = None,
    archive: bool = False,
    lean: bool = False,
    measure_latency: bool = True,
    progress: ProgressCallback | None = None,
    say: workflow.Say = lambda text: None,
) -> TuneResult:
    """Tune a model for a target on a device, and write a verified bundle.

    Args:
        model: path, bytes or ``onnx.ModelProto``.
        target: ``local``, a name from targets/, or the path of a TOML file.
        device: where candidates are measured; this machine by default.
        trials: budget in measured candidates, those already in the logs among them.
        time: budget in seconds, or as ``"10m"``. With neither budget, tuning goes on until every task has
            stopped improving.
        shapes: input name -> sizes, for inputs with open dimensions.
        freeze: input name -> value, for inputs that are settings.
        out: directory of the bundle; default ``edgetune-out/MODEL-TARGET``.
        logs: path or URL of the tuning logs; the user's by default.
        threads: to compile and run for; the target's by default.
        seed: of every random choice.
        archive: write one ``.tar`` in place of a directory.
        lean: leave the ONNX model and the reference outputs out of the bundle.
        measure_latency: time the result beside ONNX Runtime at the end.
        progress: called with a snapshot after each measured candidate.
        say: called with a line about each stage.

    Raises:
        EdgetuneError: a child says what went wrong.
    """
    for name, value in (("trials", trials), ("threads", threads)):
        if value is not None and value < (name == "threads"):
            raise UsageError(f"{name}={value} is too few; give {int(name == 'threads')} or more")
    request = workflow.Request(
        model, shapes, freeze, target, threads, None if out is None else Path(out), logs, archive, lean
    )
    budget = Budget(trials, None if time is None else parse_duration(time))
    options = TuningOptions(seed=seed)
    return workflow.tune(request, budget, device, options, progress, say, measure_latency)


def compile(  # noqa: A001 - the command's name
    model: Model,
    target: str = "local",
    shapes: Mapping[str, Sequence[int]] | None = None,
    freeze: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    logs: str | Path | None = None,
    *,
    threads: int | None = None,
    archive: bool = False,
    lean: bool = False,
    say: workflow.Say = lambda text: None,
) -> CompileResult:
    """Compile a model from the tuning logs alone; arguments as of :func:`tune`.

    Raises:
        EdgetuneError: a child says what went wrong.
    """
    request = workflow.Request(
        model, shapes, freeze, target, threads, None if out is None else Path(out), logs, archive, lean
    )
    return workflow.compile_from_logs(request, say)
