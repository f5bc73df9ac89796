"""``edgetune benchmark``: a bundle's run times beside other runtimes'."""

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
        list[str] | None,
        typer.Option(
            "--against",
            "-a",
            metavar="SIDE",
            help="What to run beside it (repeatable): 'onnxruntime', 'openvino', 'mnn', 'ncnn', 'litert', 'iree', "
            "'none', or the path of a .py file with a side.  [default: onnxruntime]",
            show_default=False,
        ),
    ] = None,
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
    cluster: options.ClusterOption = None,
    fix_clocks: options.FixClocksOption = False,
) -> None:
    """Time a bundle, and ONNX Runtime or others beside it.

    Each side runs in a process of its own, on the same inputs and as many threads; they take turns,
    and one starts only when the other's threads are at rest. Times are of single runs, from arrays to
    arrays. Where the device has sensors of power, each side runs for a second and a half more for the
    energy of one run. Speedup is the other side's median divided by the bundle's: above 1, the bundle is faster.
    Other runtimes than ONNX Runtime come with "pip install 'edgetune[peers]'"; of several sides, one
    that is missing or cannot take the model is left out, with its reason. With --device, ONNX Runtime runs there
    too, where the device's Python has it (see --python of 'edgetune devices add'); else the bundle runs alone.
    """
    from edgetune.benchmarking.rounds import benchmark as stage
    from edgetune.config import load_settings

    settings = load_settings({"device": device, "threads": threads, "cluster": cluster}).settings
    names = against or ["onnxruntime"]
    alone = names == ["none"]
    result = stage(
        bundle,
        None if alone else names[0] if len(names) == 1 else names,
        settings.threads,
        settings.device,
        model=model,
        shapes=options.parse_fixed_shapes(shape),
        rounds=rounds,
        runs=runs,
        progress=lambda done, total: out.detail(f"round {done} of {total}"),
        cluster=settings.cluster,
        fix_clocks=fix_clocks,
    )
    for note in result.notes:
        out.note(f"note: {note}")
    for name, reason in result.refused.items():
        out.note(f"note: {name} did not run: {reason}")
    if result.drift > _NOTABLE_DRIFT:
        out.note(
            f"note: the machine's own speed changed by {result.drift:.0%} between rounds; stop other "
            "programs and repeat for numbers to rely on"
        )
    out.result(result.to_json(), lambda console: _print(console, result))


def _print(console: Console, result: BenchmarkResult) -> None:
    from rich.table import Table

    whose = "the bundle" if len(result.others) > 1 else "each side"
    console.print(
        f"{result.bundle}: {result.threads} threads, {result.rounds} rounds, {result.runs} runs of {whose}",
    )
    columns = ("median ms", "p90", "p99", "min", "round medians", "peak memory", "load s", "error")
    sides = (result.edgetune, *result.others.values())
    told = any(side.energy_mj is not None for side in sides)
    table = Table("", *columns, *(["mJ a run", "W"] if told else []), box=None)
    for side in sides:
        table.add_row(side.version, *_cells(side), *(_energy_cells(side) if told else ()))
    console.print(table)
    if len(result.others) > 1:
        speedups = ", ".join(f"{name} {value:.2f}" for name, value in result.speedups.items())
        console.print(f"speedup against {speedups}")
    elif result.speedup is not None:
        low, high = min(result.round_speedups), max(result.round_speedups)
        console.print(f"speedup {result.speedup:.2f} (by round {low:.2f} to {high:.2f})")


def _energy_cells(side: SideResult) -> tuple[str, ...]:
    if side.energy_mj is None or side.power_w is None:
        return "-", "-"
    return f"{side.energy_mj:.2f}", f"{side.power_w:.2f}"


def _cells(side: SideResult) -> tuple[str, ...]:
    times = (side.median_ms, side.p90_ms, side.p99_ms, side.min_ms)
    spread = f"{min(side.round_medians_ms):.3f} to {max(side.round_medians_ms):.3f}"
    memory = f"{side.peak_memory_bytes / 2**20:.0f} MiB"
    error = "-" if side.error is None else f"{side.error:.1e}"
    return (*(f"{time_ms:.3f}" for time_ms in times), spread, memory, f"{side.load_s:.2f}", error)
