"""``edgetune runner``: serves this machine as a device."""

from __future__ import annotations

from typing import Annotated

import typer

from edgetune.cli import options
from edgetune.cli.options import option

app = typer.Typer(rich_markup_mode=None)


@app.command()
def runner(
    tracker: Annotated[str, option("--tracker", "HOST:PORT", "The tracker to register with.")],
    key: Annotated[str, option("--key", "KEY", "The name under which clients ask for this device.")],
    host: options.HostOption = "127.0.0.1",
    port: options.PortOption = 0,
    threads: options.ThreadsOption = None,
) -> None:
    """Start a runner on this machine and register it with a tracker.

    It runs until Ctrl-C, prints one JSON object with its port when it listens, and serves one client at a
    time. TVM's RPC has no password and no encryption, so it listens on this machine alone unless --host says
    otherwise. rpc/README.md describes running it on a device without edgetune.
    """
    import os
    import sys

    from edgetune.errors import UsageError
    from edgetune.resources import data_path

    name, _, number = tracker.rpartition(":")
    if not name or not number.isdigit():
        raise UsageError(f"--tracker {tracker!r} is not HOST:PORT; write it as 127.0.0.1:9190")
    if threads is None:
        from edgetune.targets import detect_local

        threads = detect_local().threads
    script = str(data_path("rpc") / "runner.py")
    arguments = ["--tracker", tracker, "--key", key, "--threads", str(threads), "--host", host]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    # The same process from here on: signals reach the runner itself.
    os.execve(sys.executable, [sys.executable, script, *arguments, "--port", str(port)], environment)
