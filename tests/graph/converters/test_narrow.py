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
from edgetune.model.session import Session

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


@pytest.mark.parametrize("saturate", [1, 0])
@pytest.mark.parametrize("rounding", ["up", "down", "nearest"])
def test_scales(rounding: str, saturate: int, matches_onnxruntime: Any) -> None:
    """Of any number, negative ones, zeros and the smallest included: as ONNX Runtime casts them."""
    least = 2.0**-127
    few = np.array(
        [1.5 * least, 1.4 * least, least, 0.9 * least, 1e-45, 3e38, 2.0**127, 2.0**127 * 1.1, 1.1 * least * 2]
    )
    few = few.astype(np.float32)
    x = np.concatenate([HALVES, few, -few])
    target = {"to": TensorProto.FLOAT8E8M0, "round_mode": rounding, "saturate": saturate}
    got = cast(matches_onnxruntime, x, target.pop("to"), **target).astype(np.float32)
    nodes = [
        helper.make_node("Cast", ["x"], ["n"], to=TensorProto.FLOAT8E8M0, **target),
        helper.make_node("Cast", ["n"], ["y"], to=TensorProto.FLOAT),
    ]
    model = matches_onnxruntime.model(nodes, {"x": x}, {}, 25)
    np.testing.assert_array_equal(got, Session(model).run({"x": x})["y"])
    usual = (x > 1e-30) & np.isfinite(x)
    want = onnx.numpy_helper.to_float8e8m0(x[usual], bool(saturate), rounding).astype(np.float32)
    np.testing.assert_array_equal(got[usual & (x < 1e38)], want[x[usual] < 1e38])


@pytest.mark.parametrize("name", ["INT4", "UINT4", "INT2", "UINT2"])
def test_narrow_integers(name: str, matches_onnxruntime: Any) -> None:
    target = getattr(TensorProto, name)
    kind = helper.tensor_dtype_to_np_dtype(target)
    limits = ml_dtypes.iinfo(kind)
    x = np.arange(int(limits.min), int(limits.max) + 1).astype(np.float32)
    narrow = cast(matches_onnxruntime, x, target)
    np.testing.assert_array_equal(narrow.astype(np.float32), x)
    np.testing.assert_array_equal(cast(matches_onnxruntime, narrow, TensorProto.FLOAT), x)


@pytest.mark.parametrize("source", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("name", ["INT4", "UINT4", "INT2", "UINT2"])
def test_narrow_integers_of_any_number(name: str, source: type, matches_onnxruntime: Any) -> None:
    """Halves, what the type cannot hold, and what no integer can: as ONNX Runtime casts them."""
    target = getattr(TensorProto, name)
    numbers = [0.4, 0.5, 0.49999997, 1.5, 2.5, 7.5, 9, 15.5, 16.5, 100.5, 300, 1e9, 3e9, 1e20, np.inf]
    x = np.array([*numbers, *np.negative(numbers), np.nan, 0.0, -0.0])
    with np.errstate(over="ignore"):
        x = x.astype(source)
    wide = TensorProto.INT8
    nodes = [
        helper.make_node("Cast", ["x"], ["n"], to=target),
        helper.make_node("Cast", ["n"], ["y"], to=wide),
    ]
    graph = helper.make_graph(
        nodes,
        "cast",
        [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)],
        [helper.make_tensor_value_info("y", wide, x.shape)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=13)
    want = Session(model).run({"x": x})["y"]
    np.testing.assert_array_equal(cast(matches_onnxruntime, x, target).astype(np.int8), want)


@pytest.mark.parametrize("source", ["float32", "float64", "float16", "int32", "uint8"])
@pytest.mark.parametrize("operator", ["Cast", "CastLike"])
def test_bfloat16(operator: str, source: str, matches_onnxruntime: Any) -> None:
    """It rounds in a chain that ends in float32, too: halves to even, the largest numbers to infinity."""
    one = 1 + 2.0**-8
    floats = [
        one,
        -one,
        1 + 3 * 2.0**-8,
        one + 2.0**-23,
        one + 2.0**-40,
        3.3961775e38,
        3.4e38,
        1e-40,
        np.inf,
        np.nan,
    ]
    x = np.array([0, 255, 257, 259, -65281, 2**24 + 2**16 + 1])
    with np.errstate(over="ignore", invalid="ignore"):
        if "float" in source:
            x = np.concatenate([x, floats, HALVES[::7]])
        x = x.astype(source)
    inputs = {"x": x}
    if operator == "Cast":
        nodes = [helper.make_node("Cast", ["x"], ["n"], to=TensorProto.BFLOAT16)]
    else:
        inputs["like"] = np.zeros(1, ml_dtypes.bfloat16)
        nodes = [helper.make_node("CastLike", ["x", "like"], ["n"])]
    nodes += [
        helper.make_node("Cast", ["n"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Neg", ["f"], ["y"]),
    ]
    model = matches_onnxruntime.model(nodes, inputs, {}, 19)
    want = Session(model).run(inputs)["y"]
    got = matches_onnxruntime.compiled(model, {"y": want})(inputs)[0]
    np.testing.assert_array_equal(got, want)
    with np.errstate(over="ignore", invalid="ignore"):
        np.testing.assert_array_equal(
            got, -x.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)
        )


@pytest.mark.parametrize("target", ["INT64", "INT8", "FLOAT16", "DOUBLE", "BOOL"])
def test_from_bfloat16(target: str, matches_onnxruntime: Any) -> None:
    x = np.array([0, -0.0, 1, -2.75, 100.5, 0.3, -120, 2.0**-30]).astype(ml_dtypes.bfloat16)
    node = helper.make_node("Cast", ["x"], ["y"], to=getattr(TensorProto, target))
    model = matches_onnxruntime.model([node], {"x": x}, {}, 19)
    want = Session(model).run({"x": x})["y"]
    np.testing.assert_array_equal(matches_onnxruntime.compiled(model, {"y": want})({"x": x})[0], want)


@pytest.mark.parametrize("name", ["INT4", "UINT2", "FLOAT8E5M2"])
def test_a_constant(name: str, matches_onnxruntime: Any) -> None:
    kind = helper.tensor_dtype_to_np_dtype(getattr(TensorProto, name))
    values = np.array([0, 1, 3, 2]).astype(kind)
    nodes = [
        helper.make_node("Constant", [], ["c"], value=onnx.numpy_helper.from_array(values)),
        helper.make_node("Cast", ["c"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["x", "f"], ["y"]),
    ]
    x = np.ones(4, np.float32)
    model = matches_onnxruntime.model(nodes, {"x": x}, {}, 25)
    model.graph.value_info.append(helper.make_tensor_value_info("c", getattr(TensorProto, name), [4]))
    got = matches_onnxruntime.compiled(model, {"y": x})({"x": x})[0]
    np.testing.assert_array_equal(got, x + values.astype(np.float32))


def test_arithmetic_is_refused(matches_onnxruntime: Any) -> None:
    x = np.zeros(3, ml_dtypes.float8_e4m3fn)
    model = matches_onnxruntime.model([helper.make_node("Neg", ["x"], ["y"])], {"x": x}, {}, 21)
    with pytest.raises(UnsupportedModelError, match="Neg is not implemented for float8e4m3fn"):
        matches_onnxruntime.compiled(model, {"y": x})
