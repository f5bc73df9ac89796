"""``edgetune run``: a bundle's outputs for given or random inputs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgetune.cli import options
from edgetune.cli.command import command
from edgetune.cli.options import option
from edgetune.cli.output import Output

if TYPE_CHECKING:
    import numpy as np
    from rich.console import Console

app = typer.Typer(rich_markup_mode=None)


@command(app)
def run(
    out: Output,
    bundle: options.BundleArgument,
    input_: Annotated[
        Path | None, option("--input -i", "FILE.npz", "Inputs by name.  [default: random ones]")
    ] = None,
    output: Annotated[
        Path | None,
        option("--output", "FILE.npz", "Write the outputs by name.  [default: only describe them]"),
    ] = None,
    shape: options.RunShapeOption = None,
    seed: Annotated[int, typer.Option("--seed", min=0, metavar="N", help="Seed of random inputs.")] = 0,
    threads: options.RunThreadsOption = None,
    device: options.DeviceOption = None,
) -> None:
    """Run a bundle once and describe its outputs.

    Inputs come from an .npz file as numpy.savez writes it, one array for each input, of exactly its
    name and dtype and of a shape that the bundle serves; without one they are random.
    """
    from edgetune.bundle.inputs import choose_inputs
    from edgetune.config import load_settings
    from edgetune.runtime import load
    from edgetune.sides.device_side import device_side, is_remote, open_for

    settings = load_settings({"device": device, "threads": threads}).settings
    where, threads = settings.device, settings.threads
    # The files are checked once: here for another machine, else by load.
    opened = open_for(bundle, where, check_files=is_remote(where))
    shapes = options.parse_fixed_shapes(shape)
    inputs = choose_inputs(opened, input_, None if input_ else seed, shapes)
    if is_remote(where):
        with device_side(opened, inputs, where, threads or opened.manifest.threads) as side:
            outputs = side.outputs()
    else:
        outputs = load(bundle, threads=threads).run(inputs)
    if output is not None:
        _write(output, outputs)
        out.note(f"outputs written to {output}")
    rows = [_describe(name, array) for name, array in outputs.items()]
    payload = {"bundle": str(bundle), "outputs": rows, "file": str(output) if output else None}
    out.result(payload, lambda console: _print(console, rows))


def _write(path: Path, outputs: Mapping[str, np.ndarray]) -> None:
    from edgetune.atomic import replacing, writing
    from edgetune.bundle.arrays import write_npz

    path = path.expanduser()
    with writing(path, "the outputs", "--output"), replacing(path) as file:
        write_npz(file, outputs)


def _describe(name: str, array: np.ndarray) -> dict[str, Any]:
    """Dtype, shape and the spread of the values; None where there are no values."""
    import numpy as np

    values = array.astype(np.float64)
    statistics: dict[str, Any] = {"min": None, "max": None, "mean": None}
    if values.size:
        statistics = {"min": values.min(), "max": values.max(), "mean": values.mean()}
    return {
        "name": name,
        "dtype": array.dtype.name,
        "shape": list(array.shape),
        **statistics,
        "not_finite": int(values.size - np.isfinite(values).sum()),
    }


def _print(console: Console, rows: list[dict[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table("output", "dtype", "shape", "min", "max", "mean", "NaN or inf", box=None)
    for row in rows:
        numbers = ("-" if row[key] is None else f"{row[key]:.6g}" for key in ("min", "max", "mean"))
        shape = "x".join(str(size) for size in row["shape"]) or "scalar"
        table.add_row(Text(row["name"]), row["dtype"], shape, *numbers, str(row["not_finite"]))
    console.print(table)
