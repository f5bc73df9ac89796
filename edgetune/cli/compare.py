"""``edgetune compare``: a bundle's outputs against ONNX Runtime's."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgetune.cli import options
from edgetune.cli.command import command
from edgetune.cli.options import option
from edgetune.cli.output import Output

if TYPE_CHECKING:
    from rich.console import Console

    from edgetune.records import CompareResult

app = typer.Typer(rich_markup_mode=None)


@command(app)
def compare(
    out: Output,
    bundle: options.BundleArgument,
    model: Annotated[
        Path | None,
        option(
            "--model -m",
            "MODEL",
            "Run ONNX Runtime on this ONNX file.  [default: its outputs recorded in the bundle]",
        ),
    ] = None,
    rtol: options.RtolOption = None,
    atol: options.AtolOption = None,
    inputs: Annotated[
        Path | None,
        option(
            "--inputs -i",
            "FILE.npz",
            "Inputs by name; ONNX Runtime is run on them too.  [default: those recorded in the bundle]",
        ),
    ] = None,
    device: options.DeviceOption = None,
) -> None:
    """Compare a bundle's outputs with ONNX Runtime's.

    A value fails when its absolute error exceeds --atol and its relative error exceeds --rtol. The
    tolerances that would pass are printed for each output. A bundle of several sizes is compared at each
    of them, and at one in between where it pads. Exit code 3 when a value fails.
    """
    from edgetune.api import compare as stage
    from edgetune.config import load_settings

    settings = load_settings({"device": device}).settings
    result = stage(bundle, model, rtol, atol, inputs, settings.device)
    for note in result.notes:
        out.note(f"note: {note}")
    out.result(result.to_json(), lambda console: _print(console, result))
    failure = result.first_failure
    if failure is not None:
        out.stderr.print(f"error: {failure.describe()}")
    if not result.passed:
        raise typer.Exit(3)


def _print(console: Console, result: CompareResult) -> None:
    from rich.table import Table
    from rich.text import Text

    console.print(f"against {result.reference}: {'passed' if result.passed else 'failed'}")
    sizes = ["sizes"] if any(output.sizes for output in result.outputs) else []
    table = Table(
        "output", *sizes, "values", "failed", "max abs error", "max rel error", "would pass with", box=None
    )
    for output in result.outputs:
        table.add_row(
            Text(output.name),
            *([output.sizes] if sizes else []),
            str(output.size),
            str(output.failed),
            f"{output.max_abs_error:.3g}",
            f"{output.max_rel_error:.3g}",
            _would_pass(output.passing_atol, output.passing_rtol),
        )
    console.print(table)


def _would_pass(atol: float, rtol: float) -> str:
    """Either tolerance alone is enough, the other one left as it is."""
    options_ = [
        f"{name} {_rounded_up(value):g}" for name, value in (("--atol", atol), ("--rtol", rtol))
        if math.isfinite(value)
    ]  # fmt: skip
    return " or ".join(options_) or "no tolerance"


def _rounded_up(value: float) -> float:
    """``value`` to two significant digits, never less than it."""
    if value == 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    # Division and multiplication round: one step more where the product fell short.
    steps = math.ceil(value / unit)
    return steps * unit if steps * unit >= value else (steps + 1) * unit
