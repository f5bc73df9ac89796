"""Seeded random inputs, and what ONNX Runtime makes of them."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np

from edgetune.errors import ModelError
from edgetune.model.session import Arrays, Session, StoppedError
from edgetune.records import TensorSpec
from edgetune.tolerances import absolute_errors, largest_value, mismatch, rewrite_bound


class Ranges(Enum):
    """From where random inputs are drawn, wide to narrow.

    A model may gather with its integers, divide by them or take logarithms: where the wide range
    fails, or gives NaN or infinity, the next one is tried.
    """

    WIDE = "float: normal; integers: 0 to 9, 8-bit: all values"
    NARROW = "float: 0 to 1; integers: 0 or 1"
    POSITIVE = "float: 1 to 2; integers: 1 to 3"
    ZERO = "float: 0 to 1; integers: 0"


def random_inputs(specs: Iterable[TensorSpec], seed: int = 0, ranges: Ranges = Ranges.WIDE) -> Arrays:
    """Random values for ``specs``: the same for the same seed, whatever the other inputs are."""
    return {spec.name: _draw(spec, seed, ranges) for spec in specs}


def _draw(spec: TensorSpec, seed: int, ranges: Ranges) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng([seed, zlib.crc32(spec.name.encode())])
    dtype = np.dtype(spec.dtype)
    if dtype.kind == "b":
        return np.asarray(rng.integers(0, 2, spec.shape)).astype(bool)
    if dtype.kind in "iu":
        low, high = {Ranges.WIDE: (0, 10), Ranges.NARROW: (0, 2), Ranges.POSITIVE: (1, 4)}.get(ranges, (0, 1))
        if ranges is Ranges.WIDE and dtype.itemsize == 1 and dtype.name in ("int8", "uint8"):
            low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max) + 1
        return np.asarray(rng.integers(low, high, spec.shape)).astype(dtype)
    # Everything else is floating point, types of ml_dtypes (kind "V") included.
    values = rng.standard_normal(spec.shape) if ranges is Ranges.WIDE else rng.random(spec.shape)
    values += ranges is Ranges.POSITIVE
    return np.asarray(values, np.float32).astype(dtype)


def reference_run(
    session: Session, specs: Sequence[TensorSpec], frozen: Mapping[str, np.ndarray[Any, Any]], seed: int = 0
) -> tuple[Arrays, Arrays, Ranges]:
    """Inputs on which the model runs, its outputs for them, and the ranges they came from.

    Args:
        session: the original model.
        specs: its inputs, without the frozen ones.
        frozen: values of the inputs that the user fixed.
        seed: of the random inputs.

    Raises:
        ModelError: it runs on none of the ranges; the error is that of the first.
    """
    first_error: ModelError | None = None
    fallback: tuple[Arrays, Arrays, Ranges] | None = None
    for ranges in Ranges:
        inputs = random_inputs(specs, seed, ranges)
        try:
            outputs = session.run({**inputs, **frozen})
        except StoppedError:
            raise
        except ModelError as error:
            first_error = first_error or error
            continue
        if all(_finite(output) for output in outputs.values()):
            return inputs, outputs, ranges
        fallback = fallback or (inputs, outputs, ranges)
    if fallback is not None:
        return fallback
    assert first_error is not None
    raise first_error


def _finite(array: np.ndarray[Any, Any]) -> bool:
    return array.dtype.kind not in "fc" or bool(np.isfinite(array).all())


def difference(expected: Arrays, actual: Arrays) -> str | None:
    """How ``actual`` differs from ``expected`` by more than a rewrite may cause, or None."""
    for name, want in expected.items():
        got = actual[name]
        if problem := mismatch(want, got):
            return f"output {name!r} {problem}"
        if want.dtype.kind in "SUO":
            if not np.array_equal(want, got):
                return f"output {name!r} differs"
            continue
        error = float(absolute_errors(want, got).max(initial=0.0))
        if error > rewrite_bound(want):
            return (
                f"output {name!r} differs by {error:.3g} where its largest value is {largest_value(want):.3g}"
            )
    return None
