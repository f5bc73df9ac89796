"""``edgetune tune``: the whole flow, from an ONNX file to a tuned and verified bundle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from edgetune.cli import options
from edgetune.cli.command import command
from edgetune.cli.options import option
from edgetune.cli.output import INTERRUPTED, VERBOSE, Output, counted
from edgetune.errors import BudgetError, DeviceError

if TYPE_CHECKING:
    from rich.console import Console

    from edgetune.results import TuneResult

app = typer.Typer(rich_markup_mode=None)

ROWS = 15
"""Kernels listed without -v: those that an inference spends most of its time in."""


@command(app)
def tune(
    out_: Output,
    model: options.ModelArgument,
    target: options.TargetOption = None,
    device: options.DevicesOption = None,
    trials: Annotated[
        int | None,
        option("--trials -n", "N", "Budget in measured candidates; those already in the logs count.", min=0),
    ] = None,
    time: Annotated[str | None, option("--time", "TIME", "Budget in time, as 90s, 10m or 1h30m.")] = None,
    goal: Annotated[
        float | None,
        option(
            "--goal",
            "MS",
            "Median latency to reach, in milliseconds; exit code 5 when the budget ends before.",
            min=0.0,
        ),
    ] = None,
    out: options.OutOption = None,
    shape: options.ShapeOption = None,
    freeze: options.FreezeOption = None,
    cut: options.CutOption = None,
    save_rest: options.SaveRestOption = None,
    logs: options.LogsOption = None,
    threads: options.ThreadsOption = None,
    search_threads: Annotated[
        bool,
        typer.Option(
            "--search-threads",
            help="Time the untuned model on 1, 2, 4... threads first, and tune for the fastest number.",
        ),
    ] = False,
    cluster: options.ClusterOption = None,
    fix_clocks: options.FixClocksOption = False,
    seed: Annotated[int | None, option("--seed", "N", "Seed of every random choice.")] = None,
    rtol: options.RtolOption = None,
    atol: options.AtolOption = None,
    archive: options.ArchiveOption = False,
    lean: options.LeanOption = False,
    standalone: options.StandaloneOption = None,
    weights: options.WeightsOption = "file",
) -> None:
    """Tune a model for a target and write a verified bundle.

    Candidates for every kernel are built here and measured on the device over TVM RPC; each one goes
    into the logs as soon as it is measured, so the same command goes on where it was stopped. Ctrl-C
    ends the search and still writes the best found so far (exit code 130). Without --trials and --time,
    tuning goes on until no kernel improves any more. Exit code 3, and no bundle, when outputs differ
    from ONNX Runtime's; 4 when the last device was lost, with a bundle of the best so far; 5 when the
    budget ends before --goal is reached. With a dimension that varies
    (--shape x:1..8x3x224x224) the budget is shared by the kernels of all its sizes, and the latency is
    that of the largest.
    """
    from edgetune.api import tune as stage
    from edgetune.cli.progress import TuningProgress
    from edgetune.config import load_settings

    given = {"target": target, "device": device, "trials": trials, "time": time, "logs": logs}
    settings = load_settings({**given, "threads": threads, "cluster": cluster, "out": out}).settings
    with TuningProgress(out_) as progress:
        result = stage(
            model,
            settings.target,
            settings.device,
            settings.trials,
            settings.time,
            options.parse_shapes(shape),
            options.parse_freeze(freeze),
            settings.out,
            settings.logs,
            threads=settings.threads,
            seed=seed,
            rtol=rtol,
            atol=atol,
            archive=archive,
            lean=lean,
            cut=cut or (),
            save_rest=save_rest,
            standalone=standalone,
            weights=weights,
            cluster=settings.cluster,
            fix_clocks=fix_clocks,
            search_threads=search_threads,
            watcher=progress,
        )
    rows = ROWS if out_.verbosity < VERBOSE else len(result.tasks)
    out_.result(result.to_json(), lambda console: _print(console, result, rows))
    if result.interrupted:
        raise typer.Exit(INTERRUPTED)
    if result.lost:
        raise DeviceError(
            f"{result.lost} The bundle in {result.bundle} holds the best of what was measured until then; run the same "
            "command again to go on from there"
        )
    reached = result.latency_ms.edgetune
    if goal is not None and (reached is None or reached > goal):
        raise BudgetError(
            f"the goal of {goal:g} ms was not reached: the bundle in {result.bundle} takes "
            f"{'an unknown time' if reached is None else f'{reached:.3f} ms'}; "
            "give more --time or --trials to go on from there"
        )


def _print(console: Console, result: TuneResult, rows: int) -> None:
    from rich.table import Table

    table = Table("kernel", "calls", "trials", "best us", "GFLOP/s", "schedule", box=None)
    for task in sorted(result.tasks, key=lambda t: -(t.best_us or 0) * t.weight)[:rows]:
        table.add_row(
            task.name,
            str(task.weight),
            str(task.trials),
            "-" if task.best_us is None else f"{task.best_us:.1f}",
            "-" if task.gflops is None else f"{task.gflops:.1f}",
            task.problem or str(task.source),
        )
    console.print(table)
    if len(result.tasks) > rows:
        console.print(f" and {len(result.tasks) - rows} cheaper ones, which -v shows")
    for note in result.notes:
        console.print(f"note: {note}")
    spent = f"{counted(result.trials_spent, 'trial')} measured, {result.trials_reused} reused, {result.wall_s:.0f} s"
    console.print(f"{result.model} for {result.target}: {spent}")
    failures = ", ".join(f"{count} {kind}" for kind, count in sorted(result.failures.items()))
    if failures:
        console.print(f"failed candidates: {failures}")
    if result.verified is not None:
        console.print(
            f"verified against ONNX Runtime: largest error {result.verified.max_abs_error:.2g} absolute, "
            f"{result.verified.max_rel_error:.2g} relative"
        )
    times = result.latency_ms
    parts = (("edgetune", times.edgetune), ("ONNX Runtime", times.onnxruntime), ("untuned", times.untuned))
    known = [f"{name} {ms:.3f} ms" for name, ms in parts if ms is not None]
    if known:
        console.print("latency: " + ", ".join(known))
    if result.agreement is not None:
        console.print(str(result.agreement["explanation"]))
    if result.speedup_vs_onnxruntime is not None:
        console.print(f"{result.speedup_vs_onnxruntime:.2f} times as fast as ONNX Runtime")
    console.print(f"bundle: {result.bundle}", soft_wrap=True)
