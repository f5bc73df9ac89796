"""``edgetune benchmark``: a bundle's run times beside another runtime's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgetune.cli import options
from edgetune.cli.command import command
from edgetune.cli.options import option
from edgetune.cli.output import Output

if TYPE_CHECKING:
    from rich.console import Console

    from edgetune.benchmarking.results import BenchmarkResult, SideResult

app = typer.Typer(rich_markup_mode=None)

_NOTABLE_DRIFT = 0.1


@command(app)
def benchmark(
    out: Output,
    bundle: options.BundleArgument,
    against: Annotated[
        str,
        typer.Option(
            "--against",
            "-a",
            metavar="SIDE",
            help="What to run beside it: 'onnxruntime', 'none', or the path of a .py file with a side.",
        ),
    ] = "onnxruntime",
    threads: options.RunThreadsOption = None,
    model: Annotated[
        Path | None,
        option("--model -m", "MODEL", "The ONNX file for the other side.  [default: the one in the bundle]"),
    ] = None,
    shape: options.RunShapeOption = None,
    rounds: Annotated[
        int, typer.Option("--rounds", min=1, metavar="N", help="How often the sides take turns.")
    ] = 5,
    runs: Annotated[
        int | None,
        option("--runs", "N", "Timed runs of each side in a round.  [default: half a second's worth]", min=1),
    ] = None,
    device: options.DeviceOption = None,
) -> None:
    """Time a bundle, and ONNX Runtime beside it.

    Each side runs in a process of its own, on the same inputs and as many threads; they take turns,
    and one starts only when the other's threads are at rest. Times are of single runs, from arrays to
    arrays. Speedup is the other side's median divided by the bundle's: above 1, the bundle is faster.
    """
    from edgetune.benchmarking.rounds import benchmark as stage
    from edgetune.config import load_settings

    settings = load_settings({"device": device, "threads": threads}).settings
    result = stage(
        bundle,
        None if against == "none" else against,
        settings.threads,
        settings.device,
        model=model,
        shapes=options.parse_fixed_shapes(shape),
        rounds=rounds,
        runs=runs,
        progress=lambda done, total: out.detail(f"round {done} of {total}"),
    )
    if against != "none" and result.other is None:
        out.note(
            f"note: the bundle ran alone: {against} does not run on device '{settings.device}', and what runs "
            "here cannot be compared with it"
        )
    if result.drift > _NOTABLE_DRIFT:
        out.note(
            f"note: the machine's own speed changed by {result.drift:.0%} between rounds; stop other "
            "programs and repeat for numbers to rely on"
        )
    out.result(result.to_json(), lambda console: _print(console, result))


def _print(console: Console, result: BenchmarkResult) -> None:
    from rich.table import Table

    console.print(
        f"{result.bundle}: {result.threads} threads, {result.rounds} rounds, {result.runs} runs of each side",
        markup=False,
    )
    columns = ("median ms", "p90", "p99", "min", "round medians", "peak memory", "load s")
    table = Table("", *columns, box=None)
    for side in filter(None, (result.edgetune, result.other)):
        table.add_row(side.version, *_cells(side))
    console.print(table)
    if result.speedup is not None:
        low, high = min(result.round_speedups), max(result.round_speedups)
        console.print(f"speedup {result.speedup:.2f} (by round {low:.2f} to {high:.2f})")


def _cells(side: SideResult) -> tuple[str, ...]:
    times = (side.median_ms, side.p90_ms, side.p99_ms, side.min_ms)
    spread = f"{min(side.round_medians_ms):.3f} to {max(side.round_medians_ms):.3f}"
    memory = f"{side.peak_memory_bytes / 2**20:.0f} MiB"
    return (*(f"{time_ms:.3f}" for time_ms in times), spread, memory, f"{side.load_s:.2f}")
