"""Puts a finished file or directory in the place of an older one, so that no reader sees half of it.

What is to appear is first made beside its place, under ``.NAME.tmp-PID-XXXX``, and forced to the disk. A file
then takes the older one's name (:func:`replacing`). A directory and what is under its name are exchanged in one
step where the system can do that (Linux), else in two (:func:`staging`, :func:`publish`).
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from edgetune.errors import OutputError

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


@contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """A new file that takes the place of ``path`` when it is complete; nothing is left of it otherwise.

    Through a link, the file that it leads to is replaced, not the link. What is no plain file, a pipe or
    ``/dev/stdout``, is written to as it is.

    Args:
        path: where the file is to appear, in a folder that exists.
        mode: its permissions, from which the process's umask takes away.

    Raises:
        OSError: it cannot be written; what was there before still is.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    path = path.resolve()
    temporary = _beside(path)
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def filling(folder: Path) -> Iterator[Path]:
    """A new folder that becomes ``folder`` when it is complete, unless another process was quicker: for caches.

    Raises:
        OSError: it cannot be made.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".new-") as work:
        made = Path(work, folder.name)
        made.mkdir()
        yield made
        with suppress(OSError):
            made.rename(folder)


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
        work = _beside(out)
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
        elif error.errno == errno.ENOENT:
            reason = "there is no such folder; make it"
        elif error.errno in (errno.EEXIST, errno.ENOTDIR):
            reason = "a part of the path is a file; correct it"
        elif error.errno == errno.EISDIR:
            reason = "it is a folder; name a file in it"
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


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.tmp-{os.getpid()}-{secrets.token_hex(4)}")


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
