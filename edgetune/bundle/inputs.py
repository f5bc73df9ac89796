"""Which inputs to run a bundle on: given ones, the recorded ones, or random ones; always checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from edgetune.bundle.arrays import read_npz
from edgetune.bundle.reader import Bundle
from edgetune.dtypes import EXTENDED, is_float, numpy_dtype
from edgetune.errors import UsageError, did_you_mean
from edgetune.records import TensorSpec

SEED = 0


def choose_inputs(
    bundle: Bundle,
    given: str | Path | Mapping[str, Any] | None,
    seed: int | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, np.ndarray]:
    """Inputs for a bundle, complete and of the right dtypes and shapes.

    Args:
        bundle: what to run.
        given: a ``.npz`` file or arrays by name; None takes the inputs recorded in the bundle, on
            which the model is known to run, or random ones where it holds none.
        seed: draw random inputs with this seed, whatever is recorded.
        shapes: of recorded or random inputs, for a bundle of several sizes; its largest by default.

    Raises:
        UsageError: the file is no ``.npz``, or an input is missing, unknown, or of another dtype or shape.
    """
    specs = bundle.manifest.input_specs()
    model = bundle.manifest.model.name
    if given is not None:
        arrays = given if isinstance(given, Mapping) else read_npz(Path(given))
        return check_inputs(specs, arrays, model)
    wanted = sized(bundle, shapes or {})
    for run in bundle.reference_runs() if seed is None else ():
        if all(name in run.inputs and run.inputs[name].shape == spec.shape for name, spec in wanted.items()):
            return check_inputs(specs, run.inputs, model)
    return random_inputs(tuple(wanted.values()), SEED if seed is None else seed)


def sized(bundle: Bundle, shapes: Mapping[str, Sequence[int]]) -> dict[str, TensorSpec]:
    """The inputs by name, at the sizes that ``shapes`` gives and the largest ones otherwise.

    Raises:
        UsageError: there is no such input, or the bundle does not serve the shape.
    """
    specs = {spec.name: spec for spec in bundle.manifest.input_specs()}
    sizes = {}
    for name, shape in shapes.items():
        if name not in specs:
            raise UsageError(
                f"{bundle.manifest.model.name} has no input {name!r}; {did_you_mean(name, specs)}"
            )
        if not specs[name].takes(tuple(shape)):
            raise UsageError(
                f"the bundle of {bundle.manifest.model.name} serves {name!r} as {specs[name]}, not in the shape "
                f"{list(shape)}; choose one of its sizes, or compile the model for this one"
            )
        for dimension in (entry.dimension() for entry in bundle.manifest.dimensions):
            for place, axis in dimension.inputs:
                if place == name:
                    sizes[dimension.name] = shape[axis]
    placed = {
        place: sizes[entry.name]
        for entry in bundle.manifest.dimensions
        if entry.name in sizes
        for place in entry.inputs
    }
    return {
        name: replace(
            spec,
            shape=tuple(placed.get((name, axis), size) for axis, size in enumerate(spec.shape)),
            varying=(),
        )
        for name, spec in specs.items()
    }


def random_inputs(specs: Sequence[TensorSpec], seed: int) -> dict[str, np.ndarray]:
    """Normally distributed floats; integers and booleans of 0 and 1, since they may be indices."""
    rng = np.random.default_rng(seed)
    arrays = {}
    for spec in specs:
        values = rng.standard_normal(spec.shape) if is_float(spec.dtype) else rng.integers(0, 2, spec.shape)
        arrays[spec.name] = np.asarray(values).astype(numpy_dtype(spec.dtype))
    return arrays


def check_inputs(specs: Sequence[TensorSpec], inputs: Mapping[str, Any], model: str) -> dict[str, np.ndarray]:
    """``inputs`` as arrays, in the order of ``specs``; nothing is converted silently.

    Args:
        specs: what the model takes.
        inputs: arrays by name.
        model: the model's name, for messages.

    Raises:
        UsageError: an input is missing, unknown, or of another dtype or shape.
    """
    known = [spec.name for spec in specs]
    if not isinstance(inputs, Mapping):
        raise UsageError(
            f"the inputs of {model} are a {type(inputs).__name__}; give a dictionary of arrays by name "
            f"({', '.join(known)})"
        )
    for name in inputs:
        if name not in known:
            raise UsageError(f"{model} has no input {name!r}; {did_you_mean(str(name), known)}")
    arrays = {}
    for spec in specs:
        if spec.name not in inputs:
            raise UsageError(f"input {spec.name!r} of {model} is missing; give {spec}")
        array = _as_bits_of(np.asarray(inputs[spec.name]), spec.dtype)
        if not spec.takes(array.shape) or array.dtype.name != spec.dtype:
            raise UsageError(
                f"input {spec.name!r} of {model} is {array.dtype}{list(array.shape)}, it takes "
                f"{spec}; convert it with astype or reshape, or compile the model for this shape"
            )
        arrays[spec.name] = array
    return arrays


def _as_bits_of(array: np.ndarray, dtype: str) -> np.ndarray:
    """Bare bits, which is what ``.npz`` files hold of types that NumPy lacks, as ``dtype``; else the same array."""
    bare = array.dtype.type is np.void and array.dtype.names is None
    if dtype in EXTENDED and bare and array.dtype.itemsize == numpy_dtype(dtype).itemsize:
        return array.view(numpy_dtype(dtype))
    return array


def plainly_right(buffers: Mapping[str, np.ndarray], inputs: Any) -> bool:
    """Whether ``inputs`` need no closer look: a dict of arrays exactly like ``buffers``.

    A quick look: :func:`check_inputs` takes as long as a small model.
    """
    if type(inputs) is not dict or len(inputs) != len(buffers):
        return False
    for name, buffer in buffers.items():
        array = inputs.get(name)
        if type(array) is not np.ndarray or array.dtype != buffer.dtype or array.shape != buffer.shape:
            return False
    return True
