"""Element types that NumPy lacks and ``ml_dtypes`` has: bfloat16, floats of 8 and 4 bits, integers of 4 and 2.

A compiled library takes and gives bfloat16 as such, and the narrower types in bytes: a float by its code, an
integer by its value. NumPy's files and DLPack know neither, so that such arrays cross both as plain bits.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

BFLOAT16: Final = "bfloat16"
BY_ONNX_NAME: Final = {
    "BFLOAT16": BFLOAT16,
    "FLOAT8E4M3FN": "float8_e4m3fn",
    "FLOAT8E4M3FNUZ": "float8_e4m3fnuz",
    "FLOAT8E5M2": "float8_e5m2",
    "FLOAT8E5M2FNUZ": "float8_e5m2fnuz",
    "FLOAT8E8M0": "float8_e8m0fnu",
    "FLOAT4E2M1": "float4_e2m1fn",
    "INT4": "int4",
    "UINT4": "uint4",
    "INT2": "int2",
    "UINT2": "uint2",
}
"""All these types: what ONNX calls each -> what ``ml_dtypes`` and TVM call it."""
EXTENDED: Final = frozenset(BY_ONNX_NAME.values())
CODES: Final = frozenset(name for name in EXTENDED if "float" in name) - {BFLOAT16}
"""Floats that a library holds by their code, a byte."""
SMALL_INTEGERS: Final = {"int4": "int8", "uint4": "uint8", "int2": "int8", "uint2": "uint8"}
"""Integers that a library holds in a wider type."""


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


def container(name: str) -> str:
    """The type that a library holds values of type ``name`` in."""
    return "uint8" if name in CODES else SMALL_INTEGERS.get(name, name)


def wider(name: str) -> str:
    """The type that NumPy has and that holds every value of type ``name``, which may be that type itself."""
    if name not in EXTENDED:
        return name
    return "float32" if is_float(name) else SMALL_INTEGERS[name]


def held(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array that a library holds in place of ``array``: bytes for the narrow types, else the same one."""
    name = array.dtype.name
    if name in CODES:
        return array.view(np.uint8)
    return array.astype(container(name)) if name in SMALL_INTEGERS else array


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
    return array.astype(wider(name)) if name in EXTENDED else array
