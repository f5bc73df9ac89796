"""``edgetune check``: can a model be compiled, and why not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from edgetune.cli import options
from edgetune.cli.command import command
from edgetune.cli.output import Output, counted

if TYPE_CHECKING:
    from rich.console import Console

    from edgetune.checking import CheckResult

app = typer.Typer(rich_markup_mode=None)


@command(app)
def check(
    out: Output,
    model: options.ModelArgument,
    shape: options.ShapeOption = None,
    freeze: options.FreezeOption = None,
    cut: options.CutOption = None,
    save_rest: options.SaveRestOption = None,
    target: options.TargetOption = None,
) -> None:
    """Say whether a model can be compiled, and why not.

    Lists inputs and outputs, the dimensions still to fix, every node that cannot be compiled with
    its reason, parameters, floating-point operations and the number of tuning tasks. Takes seconds
    and spends no trials. Exit code 1 when the model cannot be compiled.
    """
    from edgetune.api import check as stage
    from edgetune.config import load_settings

    settings = load_settings({"target": target}).settings
    result = stage(
        model,
        options.parse_shapes(shape),
        options.parse_freeze(freeze),
        target=settings.target,
        cut=cut or (),
        save_rest=save_rest,
    )
    out.result(result.to_json(), lambda console: _print(console, result))
    if not result.supported:
        raise typer.Exit(1)


def _print(console: Console, result: CheckResult) -> None:
    from rich.table import Table

    console.print(f"{result.model}: {'can be compiled' if result.supported else 'cannot be compiled'}")
    facts = [f"{_scaled(result.params)} parameters"]
    if result.flops is not None:
        facts.append(f"{_scaled(result.flops)} floating-point operations")
    if result.tasks is not None:
        facts.append(counted(result.tasks, "tuning task"))
    console.print("  " + ", ".join(facts))
    for title, values in (("input", result.inputs), ("output", result.outputs)):
        for value in values:
            console.print(f"  {title} {value.name}: {value.dtype} {value.shape_text()}")
    for note in result.notes:
        console.print(f"  note: {note}")
    if result.unsupported:
        rows = Table("node", "operator", "why it cannot be compiled", box=None)
        for node in result.unsupported:
            rows.add_row(node.node, node.op, node.reason)
        console.print(rows)
    if result.message:
        console.print(result.message, soft_wrap=True)


def _scaled(number: int) -> str:
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return str(number)
