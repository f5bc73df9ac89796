"""A bundle's library under a name of its own, its weights in memory, and what to do where the system refuses."""

from __future__ import annotations

import itertools
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np

from edgetune.bundle.manifest import LIBRARY, WEIGHTS
from edgetune.bundle.reader import Bundle
from edgetune.errors import BundleError, first_line

_ADVICE = (
    ("allocate memory", "free some memory, or raise this process's limit"),
    ("failed to map segment", "its file system runs no programs (noexec); copy the bundle to another"),
    ("", "build the bundle again"),
)
"""What to do, by what the system's loader says (glibc's words)."""


_spellings = itertools.count(1)


@contextmanager
def library_file(bundle: Bundle, *, copied: bool) -> Iterator[str]:
    """The path of a bundle's library while it is being loaded, which needs no name any more afterwards.

    The system gives a library that it has loaded under the same name before, even where the file was replaced by
    another since: no two paths are spelled alike.

    Args:
        bundle: an opened bundle.
        copied: not the file itself but a copy, for who must not share it with others that load it.

    Raises:
        BundleError: there is no place for temporary files, or the library cannot be loaded by the block.
    """
    extent = bundle.storage.files[LIBRARY]
    if not copied and not bundle.storage.archive:
        with _translated(bundle):
            yield _spelled_anew(extent.path)
        return
    try:
        folder = TemporaryDirectory(prefix="edgetune-", ignore_cleanup_errors=True)
        path = Path(folder.name, LIBRARY)
        path.write_bytes(extent.read())
    except OSError as error:
        raise BundleError(
            f"{bundle.path} cannot be loaded without a place for temporary files ({error.strerror or error}); set "
            "TMPDIR to a folder that can be written to"
        ) from error
    with folder, _translated(bundle):
        yield str(path)


def _spelled_anew(path: Path) -> str:
    """The same file by a path that was not used before: the digits of a number, as ``./`` and ``/`` before its name."""
    digits = f"{next(_spellings):b}".replace("1", "./").replace("0", "/")
    return f"{path.parent}/{digits}{path.name}"


@contextmanager
def _translated(bundle: Bundle) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError, AttributeError) as error:
        said = first_line(error)
        advice = next(advice for words, advice in _ADVICE if words in said.lower())
        raise BundleError(f"the library of {bundle.path} cannot be loaded ({said}); {advice}") from error


def map_weights(bundle: Bundle, mode: Literal["r", "c"]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The bytes of the weights, mapped without a copy; empty where there are none in a file.

    Args:
        bundle: an opened bundle.
        mode: ``r`` for memory that cannot be written to, ``c`` for memory whose changes stay with this process.

    Raises:
        BundleError: the system maps no more memory.
    """
    extent = bundle.storage.files[WEIGHTS]
    if extent.size == 0:
        return np.empty(0, np.uint8)
    try:
        # What np.memmap does, in a fifth of its time.
        before = extent.offset % mmap.ALLOCATIONGRANULARITY
        access = mmap.ACCESS_READ if mode == "r" else mmap.ACCESS_COPY
        with extent.path.open("rb", buffering=0) as file:
            mapped = mmap.mmap(
                file.fileno(), before + extent.size, access=access, offset=extent.offset - before
            )
        return np.frombuffer(mapped, np.uint8, extent.size, before)
    except OSError as error:
        raise BundleError(
            f"the weights of {bundle.path} cannot be mapped into memory ({error.strerror or error}); {_ADVICE[0][1]}"
        ) from error
