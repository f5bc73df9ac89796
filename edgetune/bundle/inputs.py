"""Which inputs to run a bundle on: given ones, the recorded ones, or random ones; always checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgetune.bundle.arrays import read_npz
from edgetune.bundle.reader import Bundle
from edgetune.errors import UsageError, did_you_mean
from edgetune.records import TensorSpec

SEED = 0


def choose_inputs(
    bundle: Bundle, given: str | Path | Mapping[str, Any] | None, seed: int | None = None
) -> dict[str, np.ndarray]:
    """Inputs for a bundle, complete and of the right dtypes and shapes.

    Args:
        bundle: what to run.
        given: a ``.npz`` file or arrays by name; None takes the inputs recorded in the bundle, on
            which the model is known to run, or random ones where it holds none.
        seed: draw random inputs with this seed, whatever is recorded.

    Raises:
        UsageError: the file is no ``.npz``, or an input is missing, unknown, or of another dtype or shape.
    """
    specs = [item.spec() for item in bundle.manifest.inputs]
    if given is not None:
        arrays = given if isinstance(given, Mapping) else read_npz(Path(given))
        return check_inputs(specs, arrays, bundle.manifest.model.name)
    recorded = bundle.reference() if seed is None else None
    if recorded is not None:
        return check_inputs(specs, recorded[0], bundle.manifest.model.name)
    return random_inputs(specs, SEED if seed is None else seed)


def random_inputs(specs: Sequence[TensorSpec], seed: int) -> dict[str, np.ndarray]:
    """Normally distributed floats; integers and booleans of 0 and 1, since they may be indices."""
    rng = np.random.default_rng(seed)
    arrays = {}
    for spec in specs:
        is_float = np.dtype(spec.dtype).kind == "f"
        values = rng.standard_normal(spec.shape) if is_float else rng.integers(0, 2, spec.shape)
        arrays[spec.name] = np.asarray(values).astype(spec.dtype)
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
            raise UsageError(f"input {spec.name!r} of {model} is missing; give {_described(spec)}")
        array = np.asarray(inputs[spec.name])
        if array.shape != spec.shape or array.dtype.name != spec.dtype:
            raise UsageError(
                f"input {spec.name!r} of {model} is {array.dtype}{list(array.shape)}, it takes "
                f"{_described(spec)}; convert it with astype or reshape, or compile the model for this shape"
            )
        arrays[spec.name] = array
    return arrays


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


def _described(spec: TensorSpec) -> str:
    return f"{spec.dtype}{list(spec.shape)}"
