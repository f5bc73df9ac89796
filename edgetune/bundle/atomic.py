"""Put a finished directory or file in the place of an older one, so that no reader sees half of it.

What is to appear at ``out`` is first made beside it, under ``.NAME.tmp-PID-XXXX``, and forced to the
disk; then both names are exchanged in one step where the system can do that (Linux), else in two.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edgetune.errors import OutputError

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


@contextmanager
def staging(out: Path, what: str = "the bundle", option: str = "--out") -> Iterator[Path]:
    """A fresh directory beside ``out``, removed at the end with whatever is left in it.

    Args:
        out: where what is made in it is to appear.
        what, option: see :func:`writing`.

    Raises:
        OutputError: it cannot be made.
    """
    with writing(out, what, option):
        out.parent.mkdir(parents=True, exist_ok=True)
        _sweep(out)
        work = out.parent / f".{out.name}.tmp-{os.getpid()}-{secrets.token_hex(4)}"
        work.mkdir()
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextmanager
def writing(out: Path, what: str = "the bundle", option: str = "--out") -> Iterator[None]:
    """Say in the words of an :class:`OutputError` why ``out`` could not be written.

    Args:
        out: the place.
        what: is to be written there.
        option: the option that names the place.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            reason = "no space is left on the disk; free some"
        elif error.errno in (errno.EEXIST, errno.ENOTDIR):
            reason = "a part of the path is a file; correct it"
        else:
            reason = f"{error.strerror or error}; change its permissions"
        raise OutputError(
            f"cannot write {what} {out}: {reason}, or choose another place with {option}"
        ) from error


def publish(finished: Path, out: Path) -> None:
    """Move ``finished``, made in :func:`staging`, to ``out``; what was at ``out`` goes with the staging.

    Raises:
        OSError: the paths cannot be exchanged; ``out`` is as it was before.
    """
    _sync_tree(finished)
    if not os.path.lexists(out):
        os.rename(finished, out)
    elif not _exchange(finished, out):
        old = finished.with_name(finished.name + ".old")
        os.rename(out, old)
        try:
            os.rename(finished, out)
        except OSError:
            os.rename(old, out)
            raise
    _sync(out.parent)


def _exchange(first: Path, second: Path) -> bool:
    """Swap two paths in one step; False where the system or the file system cannot."""
    if sys.platform != "linux":
        return False
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    failed = renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE)
    if not failed:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(second))


def _sweep(out: Path) -> None:
    """Remove what killed processes left of earlier attempts at the same ``out``."""
    for entry in out.parent.glob(f".{out.name}.tmp-*"):
        match = re.fullmatch(re.escape(f".{out.name}.tmp-") + r"(\d+)-[0-9a-f]{8}", entry.name)
        if match and not _alive(int(match[1])):
            shutil.rmtree(entry, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _sync_tree(path: Path) -> None:
    if path.is_dir():
        for entry in path.iterdir():
            _sync(entry)
    _sync(path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
