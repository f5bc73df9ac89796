"""Element types that NumPy lacks and ``ml_dtypes`` has: bfloat16, floats of 8 and 4 bits, integers of 4 and 2.

A compiled library takes and gives bfloat16 as such, and the narrower types in bytes: a float by its code, an
integer by its value. NumPy's files and DLPack know neither, so that such arrays cross both as plain bits.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

BFLOAT16: Final = "bfloat16"
CODES: Final = frozenset(
    {
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
        "float4_e2m1fn",
    }
)
"""Floats that a library holds by their code, a byte."""
SMALL_INTEGERS: Final = {"int4": "int8", "uint4": "uint8", "int2": "int8", "uint2": "uint8"}
"""Integers that a library holds in a wider type."""
EXTENDED: Final = frozenset({BFLOAT16, *CODES, *SMALL_INTEGERS})
"""Names of all these types."""


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy type called ``name``, those of ``ml_dtypes`` included.

    Raises:
        TypeError: there is no such type.
    """
    try:
        return np.dtype(name)
    except TypeError:
        # NumPy knows the names once it is imported, which a process without such types is spared.
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name, name))


def is_float(name: str) -> bool:
    """Whether values of this type are floating-point numbers."""
    return "float" in name


def held(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array that a library holds in place of ``array``: bytes for the narrow types, else the same one."""
    name = array.dtype.name
    if name in CODES:
        return array.view(np.uint8)
    return array.astype(SMALL_INTEGERS[name]) if name in SMALL_INTEGERS else array


def unheld(array: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    """What an array of a library stands for as type ``name``; the inverse of :func:`held`."""
    if array.dtype.name == name:
        return array
    if name in CODES or name == BFLOAT16:
        return array.view(numpy_dtype(name))
    return array.astype(numpy_dtype(name)) if name in SMALL_INTEGERS else array


def plain(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The values of ``array`` in a type that NumPy has and that holds them all."""
    name = array.dtype.name
    if name not in EXTENDED:
        return array
    return array.astype(np.float32 if is_float(name) else np.int8 if name.startswith("int") else np.uint8)
