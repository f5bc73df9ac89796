"""``edgetune profile``: time of each kernel of a bundle, and its distance from the roofline."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import typer

from edgetune.cli import options
from edgetune.cli.command import command
from edgetune.cli.output import Output, byte_size

if TYPE_CHECKING:
    from rich.console import Console

    from edgetune.benchmarking.profile import ProfileResult

app = typer.Typer(rich_markup_mode=None)


@command(app)
def profile(
    out: Output,
    bundle: options.BundleArgument,
    threads: options.RunThreadsOption = None,
    shape: options.RunShapeOption = None,
    runs: Annotated[int, typer.Option("--runs", min=1, metavar="N", help="Observed runs.")] = 20,
    device: options.DeviceOption = None,
) -> None:
    """Show where a bundle spends its time, kernel by kernel.

    For each kernel: its calls, time, share, 10^9 operations a second, and "of roofline": the least
    time this machine could take for its operations and bytes, divided by the measured time. The
    machine's limits are measured too (multiply-adds, and copying arrays of several sizes), on a device by
    itself. Where the kernels' times do not add up to the latency within 10%, the difference is explained.
    """
    from edgetune.benchmarking.profile import profile as stage
    from edgetune.config import load_settings

    settings = load_settings({"device": device, "threads": threads}).settings
    result = stage(
        bundle, settings.threads, settings.device, shapes=options.parse_fixed_shapes(shape), runs=runs
    )
    out.result(result.to_json(), lambda console: _print(console, result))


def _print(console: Console, result: ProfileResult) -> None:
    from rich.table import Table
    from rich.text import Text

    machine, where = result.machine, "this machine" if result.device == "local" else result.device
    fastest, slowest = machine.bandwidth_gbps[0], machine.bandwidth_gbps[-1]
    limits = (
        "limits unknown"
        if math.isinf(machine.peak_gflops)
        else f"{machine.peak_gflops:.0f} GFLOP/s, {fastest[1]:.0f} GB/s within {byte_size(fastest[0])}, "
        f"{slowest[1]:.0f} GB/s at {byte_size(slowest[0])}"
    )
    console.print(
        f"{result.bundle}: {result.latency_ms:.3f} ms on {result.threads} threads "
        f"({result.kernels_ms:.3f} ms while observed)\n"
        f"{result.agreement.describe()}\n"
        f"{where}: {limits}",
    )
    columns = ("kernel", "calls", "us", "share", "GFLOP/s", "moved", "of roofline", "bound", "schedule")
    table = Table(*columns, box=None)
    for kernel in result.kernels:
        table.add_row(
            Text(kernel.name),
            str(kernel.calls),
            f"{kernel.time_us:.1f}",
            f"{kernel.share:.1%}",
            f"{kernel.gflops:.1f}" if kernel.flops else "-",
            byte_size(kernel.bytes) if kernel.bytes else "-",
            f"{kernel.roofline:.0%}" if kernel.roofline else "-",
            kernel.bound or "-",
            kernel.source or "-",
        )
    console.print(table)
