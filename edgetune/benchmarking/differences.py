"""How far the outputs of one runtime are from another's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import numpy as np

from edgetune.benchmarking.results import SideResult
from edgetune.tolerances import absolute_errors, largest_value


class HasOutputs(Protocol):
    """A side that runs a model."""

    def outputs(self) -> dict[str, np.ndarray]:
        """The outputs of one run, by name."""
        ...


def with_errors(results: Mapping[str, SideResult], sides: Mapping[str, HasOutputs]) -> dict[str, SideResult]:
    """The results with every side's difference from ONNX Runtime's outputs, where that ran."""
    if "onnxruntime" not in sides:
        return dict(results)
    expected = sides["onnxruntime"].outputs()
    return {
        name: replace(result, error=largest_error(expected, sides[name].outputs()))
        for name, result in results.items()
    }


def largest_error(expected: Mapping[str, np.ndarray], actual: Mapping[str, np.ndarray]) -> float:
    """The largest difference of any output, as a part of that output's largest absolute value.

    Args:
        expected: the outputs of the reference, by name.
        actual: those of another runtime, in the same or another shape of as many values: some leave out
            dimensions of size one. Infinite where one is missing, or holds NaN where the reference does not.
    """
    worst = 0.0
    for name, values in expected.items():
        other = actual.get(name)
        if other is None or other.size != values.size:
            return math.inf
        error = float(absolute_errors(values, other.reshape(values.shape)).max(initial=0.0))
        scale = largest_value(values)
        worst = max(worst, error / scale if scale else error)
    return worst
