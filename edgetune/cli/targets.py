"""``edgetune targets``: what kernels can be compiled for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgetune.cli import options
from edgetune.cli.command import command
from edgetune.cli.options import argument, option
from edgetune.cli.output import Output

if TYPE_CHECKING:
    from rich.console import Console

    from edgetune.targets import Target

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)


@app.callback()
def targets() -> None:
    """List, show and detect targets: what kernels are compiled for.

    A target is 'local' (this machine), the name of a shipped one, or a path to a TOML file;
    'edgetune targets show NAME > mine.toml' is the start of a file of your own.
    """


@command(app, "list")
def list_(out: Output) -> None:
    """List the shipped targets."""
    from edgetune.targets import list_targets

    known = list_targets()

    def table(console: Console) -> None:
        from rich.table import Table

        rows = Table("name", "kind", "cpu or gpu", "threads", "vector", "description", box=None)
        for target in known:
            unit = target.gpu.arch if target.gpu else target.mcpu
            vector = f"{target.vector_bits} x {target.vector_registers}"
            rows.add_row(target.name, target.kind, unit, str(target.threads), vector, target.description)
        console.print(rows)

    out.result({"targets": [_fields(target) for target in known]}, table)


@command(app)
def show(
    out: Output,
    name: Annotated[str, argument("TARGET", "'local', a name, or a path to a TOML file.")],
) -> None:
    """Show one target, in the form of a target file."""
    from edgetune.targets import load_target

    target = load_target(name)
    out.result(_fields(target), _text(target))


@command(app)
def detect(
    out: Output,
    out_file: Annotated[
        Path | None, option("--out -o", "FILE", "Write the target file there.  [default: stdout]")
    ] = None,
    threads: options.ThreadsOption = None,
    device: Annotated[
        str | None,
        option("--device -d", "NAME", "Describe this device's CPU.  [default: this machine's]"),
    ] = None,
    cluster: options.ClusterOption = None,
) -> None:
    """Describe this machine's CPU, or that of a device, as a target file.

    The features are those the kernel reports, whatever the CPU's name implies; the cores are those
    this process may use by its affinity mask and the CPU quota of its cgroups.
    """
    from edgetune.targets import detect_local, write_target

    here = device in (None, "local") and cluster is None
    target = detect_local(threads) if here else _detect_on(device, threads, cluster)
    if out_file is None:
        out.result(_fields(target), _text(target))
        return
    write_target(target, out_file)
    written = f"wrote {out_file}; use it with --target {out_file}"
    out.result(_fields(target) | {"file": str(out_file)}, written)


def _detect_on(device: str | None, threads: int | None, cluster: str | None) -> Target:
    from edgetune.devices.clusters import choose_cpus
    from edgetune.devices.inventory import open_device
    from edgetune.devices.manage import device_target

    found = open_device(device, threads=1).probe()
    if cluster is not None:
        found = found.only(choose_cpus(found, cluster))
    return device_target(device or "local", found, threads)


def _fields(target: Target) -> dict[str, Any]:
    return target.model_dump(mode="json", exclude_none=True) | {"fingerprint": target.fingerprint}


def _text(target: Target) -> str:
    from edgetune.targets import to_toml

    return f"# {target.name}, fingerprint {target.fingerprint}\n{to_toml(target)}".rstrip("\n")
