"""What a pass must never do: change a value."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime as ort
import pytest


def _run(model: onnx.ModelProto, feeds: dict) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {name: np.asarray(value) for name, value in feeds.items()})


@pytest.fixture(scope="session")
def same_values() -> Callable[..., None]:
    """Asserts that two models are valid and compute the same in ONNX Runtime."""

    def check(before: onnx.ModelProto, after: onnx.ModelProto, feeds: dict, **tolerance: float) -> None:
        onnx.checker.check_model(after, full_check=True)
        tolerance = tolerance or {"rtol": 0, "atol": 0}
        assert [v.name for v in after.graph.output] == [v.name for v in before.graph.output]
        for want, got in zip(_run(before, feeds), _run(after, feeds), strict=True):
            assert got.dtype == want.dtype
            assert got.shape == want.shape
            np.testing.assert_allclose(got, want, **tolerance)

    return check
