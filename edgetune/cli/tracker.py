"""``edgetune tracker``: an RPC tracker in the foreground."""

from __future__ import annotations

import ipaddress
import sys

import typer

from edgetune.cli import options
from edgetune.cli.command import command
from edgetune.cli.output import Output

app = typer.Typer(rich_markup_mode=None)

_EXPOSED = (
    "WARNING: listening on {host}. TVM RPC has no password and no encryption: everyone who can reach "
    "this port can run any program on this machine and on the devices. Prefer 127.0.0.1 and an SSH tunnel."
)
"""What to say before a server that others can reach is started."""


@command(app)
def tracker(
    out: Output,
    host: options.HostOption = "127.0.0.1",
    port: options.PortOption = 9190,
) -> None:
    """Start an RPC tracker: where runners register and devices are leased.

    It runs until Ctrl-C. 'edgetune tune' on this machine needs none: it starts its own. TVM's RPC has no
    password and no encryption, so the tracker listens on this machine alone unless --host says otherwise;
    reach it from elsewhere through an SSH tunnel.
    """
    from edgetune.devices.tracker_process import serve
    from edgetune.errors import DeviceError

    if not _is_loopback(host):
        # Even with -q: whoever exposes the device must have been told.
        print(_EXPOSED.format(host=host), file=sys.stderr)

    def announce(bound: int) -> None:
        out.result({"host": host, "port": bound}, f"tracker listening on {host}:{bound}")
        sys.stdout.flush()

    try:
        serve(host, port, announce)
    except OSError as error:
        raise DeviceError(
            f"Cannot listen on {host}:{port}: {error.strerror}. Choose another --port "
            "(0 for any free one) or an address of this machine."
        ) from error
    except KeyboardInterrupt:
        out.note("tracker stopped")


def _is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens on ``host``."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
