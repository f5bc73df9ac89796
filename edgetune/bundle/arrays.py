"""Arrays by name in ``.npz`` files: NumPy's own format, with any name and always the same bytes.

``numpy.savez`` takes names as keyword arguments, so that an array cannot be called ``file``, and
writes the time of day into the file. Of types that NumPy lacks (bfloat16, 8-bit floats) it keeps the bits alone:
here the member's comment says the type, which :func:`read_npz` restores. ``numpy.load`` gives the bits, to be had
with ``.view(ml_dtypes.bfloat16)``.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from edgetune.dtypes import EXTENDED, numpy_dtype
from edgetune.errors import UsageError

UNREADABLE = (OSError, ValueError, TypeError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""What reading raises where a file is no ``.npz`` or is damaged. RuntimeError: encrypted, or of an unknown method."""


def write_npz(file: Path | IO[bytes], arrays: Mapping[str, np.ndarray]) -> None:
    """Write ``arrays`` uncompressed; ``numpy.load`` reads them back.

    Raises:
        OSError: the file cannot be written.
    """
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            # A ZipInfo made by hand has a fixed date. force_zip64: the size is not known beforehand.
            info = zipfile.ZipInfo(f"{name}.npy")
            array = np.asanyarray(array)
            if array.dtype.name in EXTENDED:
                info.comment = array.dtype.name.encode()
                array = array.view(f"V{array.dtype.itemsize}")
            with archive.open(info, "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of a user's ``.npz`` file.

    Raises:
        UsageError: it is not there, or is no ``.npz``.
    """
    try:
        return load_npz(path.expanduser())
    except UNREADABLE as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"{path} is not a readable .npz file ({reason}); write one with numpy.savez({path.name!r}, "
            "INPUT=array)"
        ) from error


def load_npz(file: Path | IO[bytes]) -> dict[str, np.ndarray]:
    """The arrays of an ``.npz``, of the types that they were written in.

    Raises:
        UNREADABLE: it is no ``.npz``, or is damaged.
    """
    opened = np.load(file, allow_pickle=False)
    if isinstance(opened, np.ndarray):
        raise ValueError("it holds a single array without a name")
    with opened as loaded:
        types = {info.filename: info.comment.decode() for info in loaded.zip.infolist() if info.comment}
        return {name: _typed(loaded[name], types.get(f"{name}.npy", "")) for name in loaded.files}


def _typed(array: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    """An array of bits as what it was written from."""
    return array.view(numpy_dtype(name)) if name in EXTENDED and array.dtype.kind == "V" else array
