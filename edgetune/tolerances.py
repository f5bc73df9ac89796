"""When two arrays are equal enough: how errors are measured, and how large one may be for which reason.

Three comparisons are made, and the more lies between the two sides, the more is allowed:

* ``rewrite``  a model before and after a pass, both in ONNX Runtime: the same operators, arithmetic reordered
* ``kernel``   a candidate and the unscheduled loops of its kernel: another order of the same sum
* ``model``    a bundle and ONNX Runtime: whole networks, other kernels, other polynomials
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from edgetune.dtypes import plain

Array = np.ndarray[Any, Any]


class Tolerance(NamedTuple):
    """What is allowed for values of one type; zero is equality.

    Attributes:
        rewrite: absolute error, as a part of the tensor's largest value.
        kernel: absolute error, as a part of the value itself plus the root mean square of the result, which is its
            typical size where large terms cancel.
        rtol, atol_part: relative error, and absolute error as a part of the output's largest value; a value of a
            model's output fails when it is beyond both.
    """

    rewrite: float = 0.0
    kernel: float = 0.0
    rtol: float = 0.0
    atol_part: float = 0.0


TOLERANCES: Mapping[str, Tolerance] = {
    "float64": Tolerance(2e-4, 1e-9, 1e-3, 1e-4),
    "float32": Tolerance(2e-4, 1e-4, 1e-3, 1e-4),
    "float16": Tolerance(1e-2, 2e-2, 1e-2, 5e-3),
    "bfloat16": Tolerance(1e-2, 1e-1, 4e-2, 2e-2),
    **dict.fromkeys(("float8_e4m3fn", "float8_e4m3fnuz"), Tolerance(1e-2, 0.0, 0.13, 2e-2)),
    **dict.fromkeys(("float8_e5m2", "float8_e5m2fnuz"), Tolerance(1e-2, 0.0, 0.26, 2e-2)),
}
"""By dtype of the reference; what is not here must be equal, but for quantised outputs of a model.

Of a kernel: with n addends of similar size the error grows like sqrt(n) units in the last place; these bounds leave
room for sums of a million.

Of a model: a part of the largest value, because a fixed ``atol`` would let every value of a softmax over thousands of
classes pass, and fail results of a million for their rounding. float32: summing in another order, as every schedule
does, moves results of deep networks by some 1e-5 of their scale, polynomials for exp and tanh by as much; a wrong
kernel is off by far more. float64 is no tighter because models mix it with float32. float16 has 11 bits: 5e-4 for one
rounding; bfloat16 8: 4e-3. 8-bit floats of 4 or 3 bits may be a step, an eighth or a quarter, from a value on the
edge; those of 4 bits must be equal. Kernels hold 8-bit floats as bytes.
"""
EXACT = Tolerance()

_LEAST_REWRITE = 1e-7
"""One unit in the last place of 1.0 in float32: for tensors whose values are all but zero."""
_LEAST_ATOL = 5e-7
"""Four units in the last place of 1.0 in float32: what a sigmoid's or softmax's small values are worth in ONNX
Runtime itself, whose logistic function is a rational approximation of about that absolute error."""
_QUANTISED = frozenset({"int8", "uint8"})


def tolerance(dtype: str) -> Tolerance:
    """What is allowed for values of the type called ``dtype``."""
    return TOLERANCES.get(dtype, EXACT)


def absolute_errors(expected: Array, actual: Array) -> Array:
    """|actual - expected| for each value, in float64; infinite where only one of the two is NaN or an infinity.

    Equal values have no error whatever they are: NaN equals NaN, infinity equals infinity of the same sign. Different
    integers are at least 1 apart: as float64, neighbouring 64-bit integers may be the same.
    """
    expected, actual = plain(expected), plain(actual)
    with np.errstate(all="ignore"):
        equal = (expected == actual) | ((expected != expected) & (actual != actual))
        if equal.all():
            return np.zeros(equal.shape)
        errors = np.abs(actual.astype(np.float64) - expected.astype(np.float64))
    if expected.dtype.kind != "f":
        errors = np.maximum(errors, 1.0)
    return np.where(equal, 0.0, np.nan_to_num(errors, nan=np.inf, posinf=np.inf))


def largest_value(array: Array) -> float:
    """The largest absolute value that is finite; zero where there is none."""
    values = array.astype(np.float64)
    return float(np.abs(values[np.isfinite(values)]).max(initial=0.0))


def rewrite_bound(expected: Array) -> float:
    """The absolute error that a pass over the model may cause in a tensor."""
    return tolerance(expected.dtype.name).rewrite * largest_value(expected) + _LEAST_REWRITE


def kernel_bounds(expected: Array) -> Array:
    """The absolute error that a schedule may cause in each value of a kernel's result."""
    allowed = tolerance(expected.dtype.name).kernel
    if not allowed:
        return np.zeros(())
    values = expected.astype(np.float64)
    is_finite = np.isfinite(values)
    rms = float(np.sqrt(np.mean(np.square(values[is_finite])))) if is_finite.any() else 0.0
    # An error is infinite where a value that is not finite differs: beyond every bound.
    return np.asarray(allowed * (np.where(is_finite, np.abs(values), 0.0) + rms))


def model_tolerances(expected: Array) -> tuple[float, float]:
    """``rtol`` and ``atol`` for one output of a model.

    8-bit integers are mostly quantised, and a value on the edge may round to the neighbouring step: their ``atol``
    is 1.
    """
    name = expected.dtype.name
    if name in _QUANTISED:
        return 0.0, 1.0
    if name not in TOLERANCES:
        return 0.0, 0.0
    allowed = TOLERANCES[name]
    return allowed.rtol, max(_LEAST_ATOL, allowed.atol_part * largest_value(expected))


def mismatch(expected: Array, actual: Array) -> str:
    """Why two arrays cannot be compared value by value, as in "output 'y' has ..."; empty where they can."""
    if expected.shape != actual.shape:
        return f"has shape {list(actual.shape)} in place of {list(expected.shape)}"
    if expected.dtype != actual.dtype:
        return f"has dtype {actual.dtype} in place of {expected.dtype}"
    return ""
