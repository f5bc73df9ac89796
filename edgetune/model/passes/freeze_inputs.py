"""Turns inputs that are really settings into constants.

Before: an input ``sr`` of type int64. After, with ``{"sr": 16000}``: an initializer ``sr`` that
holds 16000, and one input less.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from onnx import ModelProto, numpy_helper

from edgetune.errors import UsageError, did_you_mean
from edgetune.model import graphs, interface
from edgetune.model.pipeline import PassResult, unchanged


def freeze_inputs(model: ModelProto, values: Mapping[str, Any]) -> PassResult:
    """Make each input named in ``values`` an initializer of that value.

    Raises:
        UsageError: no such input, or a value that its type or shape cannot hold.
    """
    if not values:
        return unchanged(model)
    declared = {value.name: value for value in interface.inputs(model)}
    arrays = frozen_arrays(declared.values(), values)
    model = graphs.copy(model)
    kept = [value for value in model.graph.input if value.name not in arrays]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    for name, array in arrays.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return PassResult(model, True)


def frozen_arrays(
    declared: Iterable[interface.Value], values: Mapping[str, Any]
) -> dict[str, np.ndarray[Any, Any]]:
    """The user's ``values`` as arrays of the declared inputs' types and shapes.

    Raises:
        UsageError: no such input, or a value that its type or shape cannot hold.
    """
    by_name = {value.name: value for value in declared}
    return {name: _array(require_input(name, by_name, "--freeze"), given) for name, given in values.items()}


def require_input(name: str, declared: Mapping[str, interface.Value], option: str) -> interface.Value:
    """The input called ``name``.

    Raises:
        UsageError: there is none; the message has the nearest names.
    """
    if name in declared:
        return declared[name]
    if not declared:
        raise UsageError(f"{option} names {name!r}, but the model has no inputs left to set")
    raise UsageError(
        f"{option} names {name!r}, which is no input of the model; {did_you_mean(name, declared)}"
    )


def _array(value: interface.Value, given: Any) -> np.ndarray[Any, Any]:
    try:
        raw = np.asarray(given)
        array = raw.astype(value.dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise _refused(value, given, "it is no number or list of numbers") from error
    if raw.dtype.kind not in "biuf" and raw.dtype.name != value.dtype:
        raise _refused(value, given, "it is no number or list of numbers")
    if array.dtype.kind in "biu" and not np.array_equal(array, raw):
        raise _refused(value, given, f"{value.dtype} cannot hold it exactly")
    if value.dims is None:
        return array
    if array.size == 1 and array.ndim < len(value.dims):
        array = array.reshape((1,) * len(value.dims))
    fits = array.ndim == len(value.dims) and all(
        not isinstance(dim, int) or dim == size for dim, size in zip(value.dims, array.shape, strict=True)
    )
    if not fits:
        raise _refused(value, given, f"its shape is {list(array.shape)}, the input's is {value.shape_text()}")
    return array


def _refused(value: interface.Value, given: Any, reason: str) -> UsageError:
    return UsageError(
        f"--freeze {value.name}={given!r} does not fit: {reason}; "
        f"give a value for {value.dtype} {value.shape_text()}"
    )
