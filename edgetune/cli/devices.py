"""``edgetune devices``: what kernels are measured on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgetune.cli.command import command
from edgetune.cli.options import argument, option
from edgetune.cli.output import Output, byte_size

if TYPE_CHECKING:
    from rich.console import Console

    from edgetune.devices.probe import Probe

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)

NameArgument = Annotated[str, argument("NAME", "The device's name.")]


@app.callback()
def devices() -> None:
    """Add, list, probe, test and remove devices: what kernels are measured on and bundles run on.

    'local' is this machine. Others are reached by SSH or adb; nothing has to be installed on them.
    """


@command(app)
def add(
    out: Output,
    name: NameArgument,
    url: Annotated[str, argument("URL", "ssh://user@host[:port] or adb://SERIAL.")],
    jump: Annotated[str | None, option("--jump -J", "HOSTS", "Machines to go through, as of ssh -J.")] = None,
    identity: Annotated[
        Path | None,
        option("--identity -i", "FILE", "A private key.  [default: the agent's and those in ~/.ssh]"),
    ] = None,
    known_hosts: Annotated[
        Path | None,
        option("--known-hosts", "FILE", "The known host keys.  [default: ~/.ssh/known_hosts]"),
    ] = None,
    host_key: Annotated[
        str | None,
        option(
            "--host-key",
            "SHA256:...",
            "Accept an unknown host key with this fingerprint, which you have compared on the device.",
        ),
    ] = None,
    python: Annotated[
        str | None,
        option(
            "--python",
            "PATH",
            "The device's Python that has ONNX Runtime, for 'benchmark' to run it there.  [default: python3]",
        ),
    ] = None,
) -> None:
    """Add a device: connect, see what it is, and put the runner onto it.

    The host key must be a known one. A password is asked for where no key is accepted, and never
    stored. The runner is one folder below the user's cache folder on the device; 'devices remove'
    takes it away. For a device of another architecture, pip fetches TVM's wheel for it once.
    """
    from edgetune.devices.address import parse_address
    from edgetune.devices.inventory import ask_user
    from edgetune.devices.manage import add_device

    address = parse_address(url, jump, identity, known_hosts)
    out.note(f"connecting to {address}, and putting the runner onto it unless it is there")
    found = add_device(name, address, ask_user(), host_key, python)
    for note in found.notes:
        out.note(f"note: {note}")
    payload = {"name": name, "url": str(address), **_fields(found)}
    out.result(payload, f"added {name}: {found.summary()}; use it with --device {name}")


@command(app, "list")
def list_(out: Output) -> None:
    """List the devices."""
    from edgetune.devices.registry import load_registry

    entries = load_registry().devices
    rows = [{"name": "local", "url": "", "arch": "", "description": "this machine"}]
    for name, entry in entries.items():
        url = str(entry.address)
        rows.append({"name": name, "url": url, "arch": entry.arch, "description": entry.description})

    def table(console: Console) -> None:
        from rich.table import Table

        shown = Table("name", "url", "description", box=None)
        for row in rows:
            shown.add_row(row["name"], row["url"], row["description"])
        console.print(shown)

    out.result({"devices": rows}, table)


@command(app)
def remove(
    out: Output,
    name: NameArgument,
    offline: Annotated[
        bool, typer.Option("--offline", help="Forget it without connecting: its files stay where they are.")
    ] = False,
) -> None:
    """Remove a device, and everything that edgetune has put onto it."""
    from edgetune.devices.inventory import ask_user
    from edgetune.devices.manage import remove_device

    remove_device(name, ask_user(), offline)
    out.result({"removed": name}, f"removed {name}")


@command(app)
def probe(
    out: Output,
    name: NameArgument,
) -> None:
    """Show what a device is: CPU, features, cores, caches, memory, clocks, temperature.

    'edgetune targets detect --device NAME' writes it as a target file.
    """
    from edgetune.devices.inventory import open_device

    found = open_device(name, threads=1).probe()
    out.result({"name": name, **_fields(found)}, lambda console: _print(console, found))


@command(app)
def doctor(
    out: Output,
    name: NameArgument,
) -> None:
    """Test every hop to a device and back: name, route, login, runner, tracker, data, a kernel.

    Stops at the first that fails, says how to mend it, and ends with exit code 4.
    """
    from edgetune.doctor import examine

    checks = []
    for check in examine(name):
        checks.append(check)
        out.note(
            f"{'ok    ' if check.passed else 'FAILED'} {check.name} ({check.seconds:.1f} s): {check.detail}"
        )
    healthy = all(check.passed for check in checks)
    payload = {"name": name, "healthy": healthy, "checks": [check.to_json() for check in checks]}
    out.result(payload, f"{name} works" if healthy else f"{name} does not work: {checks[-1].detail}")
    if not healthy:
        raise typer.Exit(4)


def _fields(found: Probe) -> dict[str, Any]:
    clusters = [{**kind.model_dump(), "cpus": len(kind.cpus), "numbers": kind.cpus} for kind in found.kinds]
    return {**found.model_dump(mode="json"), "clusters": clusters, "governors": list(found.governors)}


def _print(console: Console, found: Probe) -> None:
    from rich.table import Table
    from rich.text import Text

    rows = {
        "model": found.model,
        "system": f"{found.system}, {found.libc or 'unknown C library'}",
        "architecture": f"{found.arch} {found.isa_level and f'({found.isa_level})'}".strip(),
        "features": " ".join(found.features),
        "cores": f"{found.cores}, on {len(found.cpus)} CPUs",
        "clusters": ", ".join(
            f"{len(kind.cpus)} x {kind.part or 'CPU'} {_clock(kind.max_khz)}".strip() for kind in found.kinds
        ),
        "caches": " / ".join(_size(size) for size in (found.l1d_bytes, found.l2_bytes, found.l3_bytes)),
        "memory": f"{_size(found.memory_bytes)}, pages of {_size(found.page_bytes)}",
        "governor": ", ".join(found.governors) or "not told",
        "temperature": ", ".join(f"{name} {c:.0f} °C" for name, c in found.temperatures_c.items())
        or "not told",
        "throttled": "; ".join(found.state.throttled) or found.throttled or "not now, or not told",
        "power sensors": ", ".join(found.state.power_sensors) or "none",
        **({"power mode": found.state.power_mode} if found.state.power_mode else {}),
        "gpu": found.gpu or found.other_gpu or "none",
    }
    table = Table("", "", box=None, show_header=False)
    for key, value in rows.items():
        table.add_row(key, Text(value))
    for note in found.notes:
        table.add_row("note", Text(note))
    console.print(table)


def _clock(khz: int) -> str:
    return f"{khz / 1e6:.2f} GHz" if khz else ""


def _size(size: int) -> str:
    return byte_size(size) if size else "?"
