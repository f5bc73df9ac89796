"""Types that NumPy itself lacks pass through ONNX Runtime without rounding."""

from __future__ import annotations

import ml_dtypes  # noqa: F401  # names the types for NumPy
import numpy as np
import pytest
from onnx.parser import parse_model

from edgetune.model.session import Session

TYPES = ["bfloat16", "float8e4m3fn", "float8e5m2", "int4", "uint4"]
NUMPY = {"float8e4m3fn": "float8_e4m3fn", "float8e5m2": "float8_e5m2"}


@pytest.mark.parametrize("name", TYPES)
def test_every_value_arrives(name: str) -> None:
    dtype = np.dtype(NUMPY.get(name, name))
    if name.endswith("int4"):
        x = np.arange(16).astype(dtype) if name == "uint4" else np.arange(-8, 8).astype(dtype)
    elif name == "bfloat16":
        x = np.arange(0, 2**16, 97, dtype=np.uint16).view(dtype)
    else:
        x = np.arange(256, dtype=np.uint8).view(dtype)
    model = parse_model(
        f"""<ir_version: 10, opset_import: ["": 21]>
        g ({name}[{x.size}] x) => ({name}[{x.size}] y) {{ y = Identity(x) }}"""
    )
    y = Session(model).run({"x": x})["y"]
    assert y.dtype == dtype
    np.testing.assert_array_equal(y.astype(np.float32), x.astype(np.float32))


def test_an_input_that_is_an_output() -> None:
    model = parse_model(
        """<ir_version: 10, opset_import: ["": 21]>
        g (bfloat16[3] x) => (bfloat16[3] x, float[3] y) { y = Cast<to = 1>(x) }"""
    )
    x = np.array([1.5, -2, 3]).astype("bfloat16")
    outputs = Session(model).run({"x": x})
    np.testing.assert_array_equal(outputs["y"], x.astype(np.float32))


def test_other_models_are_left_alone() -> None:
    model = parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Relu(x) }'
    )
    np.testing.assert_array_equal(Session(model).run({"x": np.array([-1, 1], np.float32)})["y"], [0, 1])
