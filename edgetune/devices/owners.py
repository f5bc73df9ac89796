"""The names under which this user's runs hold devices, so that a run may end what a dead one left there.

The runner on a device kills the session of the same owner, and lets those of others finish. A run that was killed, or
whose connection was cut without a word, leaves a session there that holds the device until the runner sees that
nothing moves any more. Each name is a file that a living run keeps locked; the next run takes a name that is free,
that of a dead run first, and with it the right to end its session.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

from platformdirs import user_cache_path

_NAME = re.compile(r"[0-9a-f]{16}")


@contextlib.contextmanager
def owner_of(device: str) -> Iterator[str]:
    """A name that no other living process uses for a device, the one that was taken last of those that are free.

    Args:
        device: what tells it from others, as its address.
    """
    name, held = secrets.token_hex(8), None
    # A place that cannot be written to is no reason not to measure: a new name does, as it does for a first run.
    with contextlib.suppress(OSError):
        folder = user_cache_path("edgetune", appauthor=False) / "owners"
        folder /= hashlib.sha256(device.encode()).hexdigest()[:16]
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        known = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)]
        latest_first = sorted(known, key=lambda path: path.stat().st_mtime_ns, reverse=True)
        for path in (*latest_first, folder / name):
            held = _lock(path)
            if held is not None:
                name = path.name
                break
    try:
        yield name
    finally:
        if held is not None:
            os.close(held)


def _lock(path: Path) -> int | None:
    """The open file, locked and of a new date; None where another process holds it."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.utime(file)
    except BlockingIOError:
        os.close(file)
        return None
    return file
