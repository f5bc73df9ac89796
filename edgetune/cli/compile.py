"""``edgetune compile``: a bundle from the tuning logs alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from edgetune.cli import options
from edgetune.cli.command import command
from edgetune.cli.output import Output

if TYPE_CHECKING:
    from rich.console import Console

    from edgetune.results import CompileResult

app = typer.Typer(rich_markup_mode=None)


@command(app)
def compile(
    out_: Output,
    model: options.ModelArgument,
    target: options.TargetOption = None,
    out: options.OutOption = None,
    shape: options.ShapeOption = None,
    freeze: options.FreezeOption = None,
    cut: options.CutOption = None,
    save_rest: options.SaveRestOption = None,
    logs: options.LogsOption = None,
    threads: options.ThreadsOption = None,
    rtol: options.RtolOption = None,
    atol: options.AtolOption = None,
    archive: options.ArchiveOption = False,
    lean: options.LeanOption = False,
    standalone: options.StandaloneOption = None,
    weights: options.WeightsOption = "file",
) -> None:
    """Compile a model from the tuning logs alone: no device, no trials.

    Each kernel gets the best record of exactly this target (yours before a shipped one), else one of a
    similar target, else the default schedule made for the target; the table says which. The bundle is
    verified where this machine can run it: exit code 3, and no bundle, when outputs differ from ONNX
    Runtime's.
    """
    from edgetune.api import compile as stage
    from edgetune.cli.progress import TuningProgress
    from edgetune.config import load_settings

    settings = load_settings({"target": target, "logs": logs, "threads": threads, "out": out}).settings
    with TuningProgress(out_) as progress:
        result = stage(
            model,
            settings.target,
            options.parse_shapes(shape),
            options.parse_freeze(freeze),
            settings.out,
            settings.logs,
            threads=settings.threads,
            rtol=rtol,
            atol=atol,
            archive=archive,
            lean=lean,
            cut=cut or (),
            save_rest=save_rest,
            standalone=standalone,
            weights=weights,
            watcher=progress,
        )
    out_.result(result.to_json(), lambda console: _print(console, result))


def _print(console: Console, result: CompileResult) -> None:
    from collections import Counter

    from rich.table import Table

    table = Table("kernel", "calls", "schedule", "recorded us", box=None)
    for kernel in result.kernels:
        best = "-" if kernel.best_us is None else f"{kernel.best_us:.1f}"
        table.add_row(kernel.name, str(kernel.weight), str(kernel.source), best)
    console.print(table)
    for note in result.notes:
        console.print(f"note: {note}")
    counts = Counter(str(kernel.source) for kernel in result.kernels)
    console.print("schedules: " + ", ".join(f"{count} {source}" for source, count in counts.items()))
    if result.verified is not None:
        console.print(
            f"verified against ONNX Runtime: largest error {result.verified.max_abs_error:.2g} absolute"
        )
    console.print(f"bundle: {result.bundle}", soft_wrap=True)
