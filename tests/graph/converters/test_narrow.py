"""Casts from and to 8- and 4-bit floats and narrow integers, for every code and every float16 number."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edgetune.dtypes import held, unheld
from edgetune.errors import UnsupportedModelError

FLOATS = ["FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ", "FLOAT4E2M1"]
HALVES = np.arange(2**16, dtype=np.uint32).astype(np.uint16).view(np.float16).astype(np.float32)
"""Every number of float16: among them all halves between two numbers of the narrower types."""


def cast(checker: Any, x: np.ndarray, target: int, **attributes: Any) -> np.ndarray:
    """``x`` after a Cast, compiled."""
    node = helper.make_node("Cast", ["x"], ["y"], to=target, **attributes)
    source = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        [node],
        "cast",
        [helper.make_tensor_value_info("x", source, x.shape)],
        [helper.make_tensor_value_info("y", target, x.shape)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    kind = helper.tensor_dtype_to_np_dtype(target)
    got = checker.compiled(model, {"y": np.zeros(x.shape, kind)})({"x": held(x)})[0]
    return unheld(got, kind.name)


@pytest.mark.parametrize("saturate", [1, 0])
@pytest.mark.parametrize("name", FLOATS)
def test_encoding(name: str, saturate: int, matches_onnxruntime: Any) -> None:
    target = getattr(TensorProto, name)
    got = cast(matches_onnxruntime, HALVES, target, saturate=saturate).astype(np.float32)
    kind = helper.tensor_dtype_to_np_dtype(target)
    with np.errstate(all="ignore"):
        want = onnx.numpy_helper.saturate_cast(HALVES, kind) if saturate else HALVES.astype(kind)
    want = want.astype(np.float32)
    if name == "FLOAT4E2M1":  # it has no NaN, and the standard no number for it
        got, want = got[~np.isnan(HALVES)], want[~np.isnan(HALVES)]
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got)[got == 0], np.signbit(want)[want == 0])


@pytest.mark.parametrize("name", [*FLOATS, "FLOAT8E8M0"])
def test_decoding(name: str, matches_onnxruntime: Any) -> None:
    kind = helper.tensor_dtype_to_np_dtype(getattr(TensorProto, name))
    codes = np.arange(16 if name == "FLOAT4E2M1" else 256, dtype=np.uint8).view(kind)
    got = cast(matches_onnxruntime, codes, TensorProto.FLOAT)
    np.testing.assert_array_equal(got, codes.astype(np.float32))


@pytest.mark.parametrize("rounding", ["up", "down", "nearest"])
def test_scales(rounding: str, matches_onnxruntime: Any) -> None:
    x = np.abs(HALVES)
    got = cast(matches_onnxruntime, x, TensorProto.FLOAT8E8M0, round_mode=rounding)
    want = onnx.numpy_helper.to_float8e8m0(x, True, rounding)
    np.testing.assert_array_equal(got.view(np.uint8), want.view(np.uint8))


@pytest.mark.parametrize("name", ["INT4", "UINT4", "INT2", "UINT2"])
def test_narrow_integers(name: str, matches_onnxruntime: Any) -> None:
    target = getattr(TensorProto, name)
    kind = helper.tensor_dtype_to_np_dtype(target)
    limits = ml_dtypes.iinfo(kind)
    x = np.arange(int(limits.min), int(limits.max) + 1).astype(np.float32)
    narrow = cast(matches_onnxruntime, x, target)
    np.testing.assert_array_equal(narrow.astype(np.float32), x)
    np.testing.assert_array_equal(cast(matches_onnxruntime, narrow, TensorProto.FLOAT), x)


def test_arithmetic_is_refused(matches_onnxruntime: Any) -> None:
    x = np.zeros(3, ml_dtypes.float8_e4m3fn)
    model = matches_onnxruntime.model([helper.make_node("Neg", ["x"], ["y"])], {"x": x}, {}, 21)
    with pytest.raises(UnsupportedModelError, match="Neg is not implemented for float8e4m3fn"):
        matches_onnxruntime.compiled(model, {"y": x})
