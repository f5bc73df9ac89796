"""Arrays by name in ``.npz`` files: NumPy's own format, with any name and always the same bytes.

``numpy.savez`` takes names as keyword arguments, so that an array cannot be called ``file``, and
writes the time of day into the file.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import numpy as np

from edgetune.errors import UsageError


def write_npz(file: Path | IO[bytes], arrays: Mapping[str, np.ndarray]) -> None:
    """Write ``arrays`` uncompressed; ``numpy.load`` reads them back.

    Raises:
        OSError: the file cannot be written.
    """
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            # A ZipInfo made by hand has a fixed date. force_zip64: the size is not known beforehand.
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of a user's ``.npz`` file.

    Raises:
        UsageError: it is not there, or is no ``.npz``.
    """
    try:
        with np.load(path.expanduser(), allow_pickle=False) as file:
            if not hasattr(file, "files"):
                raise ValueError("it holds a single array without a name")
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"{path} is not a readable .npz file ({reason}); write one with numpy.savez({path.name!r}, "
            "INPUT=array)"
        ) from error
