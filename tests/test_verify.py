"""Comparing outputs: the rule for one value, and whole bundles against ONNX Runtime."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgetune.errors import BundleError, DeviceError, EdgetuneError, ModelError, UsageError
from edgetune.tolerances import TOLERANCES
from edgetune.verify import compare, difference


def diff(expected, actual, **tolerances):
    return difference("y", np.asarray(expected), np.asarray(actual), **tolerances)


def f32(*values):
    return np.array(values, np.float32)


def test_equal_values_pass_whatever_they_are():
    values = f32(0.0, -0.0, 1.5, math.nan, math.inf, -math.inf)
    result = diff(values, values.copy(), rtol=0, atol=0)
    assert result.passed
    assert (result.max_abs_error, result.max_rel_error, result.failed) == (0.0, 0.0, 0)
    assert result.position is None


@pytest.mark.parametrize(
    "expected, actual",
    [
        (math.nan, 1.0),
        (1.0, math.nan),
        (math.inf, 1.0),
        (1.0, math.inf),
        (math.inf, -math.inf),
        (math.inf, math.nan),
    ],
)
def test_nan_and_infinity_must_agree(expected, actual):
    result = diff(f32(1, expected), f32(1, actual))
    assert not result.passed
    assert result.position == (1,)
    assert result.failed == 1
    assert result.max_abs_error == result.max_rel_error == math.inf
    assert result.passing_atol == result.passing_rtol == math.inf


def test_a_value_fails_only_when_both_errors_are_too_large():
    # abs 0.5 and rel 5e-4; abs 5e-5 and rel 0.5; abs 0.5 and rel 0.5.
    large, small, wrong = (1000.0, 1000.5), (1e-4, 1.5e-4), (1.0, 1.5)
    assert diff(f32(large[0], small[0]), f32(large[1], small[1]), rtol=1e-3, atol=1e-4).passed
    result = diff(f32(large[0], wrong[0], small[0]), f32(large[1], wrong[1], small[1]), rtol=1e-3, atol=1e-4)
    assert not result.passed
    assert result.failed == 1
    assert result.position == (1,)
    assert (result.value, result.expected) == (1.5, 1.0)


def test_the_first_failing_value_in_row_major_order_is_named():
    expected = np.zeros((2, 3, 4), np.float32)
    actual = expected.copy()
    actual[1, 0, 2] = 5
    actual[0, 2, 1] = 3
    result = diff(expected, actual)
    assert result.position == (0, 2, 1)
    assert (result.value, result.expected) == (3.0, 0.0)
    assert result.failed == 2
    assert result.size == 24
    assert result.describe().startswith(
        "output 'y' differs in 2 of 24 values, first at [0, 2, 1]: 3.0 instead of 0.0"
    )


def test_scalars_and_empty_tensors():
    assert diff(np.float32(1), np.float32(1)).passed
    assert diff(np.float32(1), np.float32(2)).position == ()
    assert diff(np.zeros((0, 4), np.float32), np.zeros((0, 4), np.float32)).passed


@pytest.mark.parametrize(
    "expected, actual, problem",
    [
        (np.zeros((2, 3), np.float32), np.zeros((3, 2), np.float32), "has shape [3, 2] in place of [2, 3]"),
        (np.zeros(2, np.float32), np.zeros(2, np.int64), "has dtype int64 in place of float32"),
        (None, np.zeros(2, np.float32), "is not among the outputs of the reference"),
    ],
)
def test_incomparable(expected, actual, problem):
    result = difference("y", expected, actual, rtol=1e9, atol=1e9)
    assert not result.passed
    assert result.describe() == f"output 'y' {problem}"


def test_integers_and_booleans_must_be_equal():
    assert not diff(np.array([1 << 62]), np.array([(1 << 62) + 1])).passed  # the same in float64
    assert not diff(np.array([True, False]), np.array([True, True])).passed
    assert diff(np.array([3, 4]), np.array([3, 4])).passed
    unsigned = diff(np.array([0], np.uint32), np.array([1], np.uint32))
    assert unsigned.max_abs_error == 1.0


def test_quantised_values_may_be_one_step_off():
    assert diff(np.array([10, 255], np.uint8), np.array([11, 254], np.uint8)).passed
    assert not diff(np.array([10], np.int8), np.array([12], np.int8)).passed


def test_tolerances_come_with_the_dtype_and_the_scale():
    rtol, part = TOLERANCES["float32"].rtol, TOLERANCES["float32"].atol_part
    for scale in (1e-2, 1.0, 1e6):
        result = diff(f32(scale, 0), f32(scale, 0))
        assert result.rtol == rtol
        assert result.atol == pytest.approx(part * scale)
    assert diff(np.float16([1.0]), np.float16([1.005])).passed
    assert not diff(f32(1.0), f32(1.005)).passed


def test_a_softmax_over_many_classes_cannot_be_wrong_unnoticed():
    expected = np.full(10_000, 1e-4, np.float32)
    assert not diff(expected, expected * np.float32(1.01)).passed
    assert diff(expected, expected * np.float32(1.0001)).passed


def test_rounding_of_large_values_passes():
    expected = f32(1e6, -1e6, 0.5)
    assert diff(expected, expected + f32(0.5, 0.5, 0.5)).passed


def test_noise_where_all_is_zero_passes():
    assert diff(f32(0, 0), f32(1e-8, -1e-8)).passed
    assert not diff(f32(0, 0), f32(1e-3, 0)).passed


def test_relative_error_at_zero_counts_only_where_it_matters():
    assert diff(f32(0, 2), f32(1e-6, 2)).max_rel_error == 0.0
    assert diff(f32(0, 2), f32(1, 2)).max_rel_error == math.inf


@given(
    hnp.arrays(np.float32, 12, elements=st.floats(width=32, allow_nan=True, allow_infinity=True)),
    hnp.arrays(np.float32, 12, elements=st.floats(width=32, allow_nan=True, allow_infinity=True)),
    st.sampled_from([0.0, 1e-3, 0.5]),
    st.sampled_from([0.0, 1e-3, 10.0]),
)
def test_the_rule_and_the_passing_tolerances(expected, actual, rtol, atol):
    """Against the rule written out value by value in Python."""
    result = diff(expected, actual, rtol=rtol, atol=atol)
    failed = 0
    for want, got in zip(expected.tolist(), actual.tolist(), strict=True):
        if want == got or (math.isnan(want) and math.isnan(got)):
            continue
        error = abs(got - want)
        if math.isnan(error) or math.isinf(error):
            failed += 1
            continue
        relative = error / abs(want) if want else math.inf
        failed += error > atol and relative > rtol
    assert result.failed == failed
    assert result.passed == (failed == 0)
    for other in (
        {"rtol": rtol, "atol": result.passing_atol},
        {"rtol": result.passing_rtol, "atol": atol},
    ):
        if math.isfinite(other["rtol"]) and math.isfinite(other["atol"]):
            assert diff(expected, actual, **other).passed


def test_compare_with_the_recorded_outputs(shared_bundle):
    result = compare(shared_bundle)
    assert result.passed
    assert [output.name for output in result.outputs] == ["y", "pooled"]
    assert 0 < result.max_abs_error < 1e-4
    assert result.reference == "the recorded outputs of ONNX Runtime"


def test_compare_with_onnx_runtime_live(shared_bundle, stand_in, tmp_path):
    onnx.save(stand_in.onnx_model, tmp_path / "m.onnx")
    inputs = {"x": np.full((1, 3, 16, 16), 0.5, np.float32), "scale": np.array([2.0], np.float32)}
    for model in (None, tmp_path / "m.onnx"):
        result = compare(shared_bundle, model, inputs=inputs)
        assert result.passed
        assert result.reference.startswith("ONNX Runtime 1.")
        assert result.notes == ()


def test_compare_finds_a_wrong_weight(stand_in, tmp_path):
    weights = list(stand_in.compiled.weights)
    index = next(index for index, array in enumerate(weights) if array.shape == (1,))
    weights[index] = weights[index] + np.float32(0.25)
    compiled = dataclasses.replace(stand_in.compiled, weights=tuple(weights))
    path = dataclasses.replace(stand_in, compiled=compiled).write(tmp_path / "b").path
    result = compare(path)
    assert not result.passed
    assert result.first_failure.name == "pooled"  # y does not depend on it
    assert result.first_failure.position == (0, 0, 0, 0)
    assert result.outputs[0].passed
    assert compare(path, atol=0.3).passed
    assert not compare(path, atol=0.2).passed


def test_compare_with_another_model_says_so(shared_bundle, stand_in, tmp_path):
    other = onnx.ModelProto()
    other.CopyFrom(stand_in.onnx_model)
    other.doc_string = "changed"
    onnx.save(other, tmp_path / "m.onnx")
    result = compare(shared_bundle, tmp_path / "m.onnx")
    assert result.passed
    assert "SHA-256 differs" in result.notes[0]


def test_frozen_inputs_reach_the_original_model(stand_in, tmp_path):
    """The original has an input that the bundle has not: its value comes from the manifest."""
    original = onnx.ModelProto()
    original.CopyFrom(stand_in.onnx_model)
    offset = next(item for item in original.graph.initializer if item.name == "offset")
    original.graph.initializer.remove(offset)
    original.graph.input.append(onnx.helper.make_tensor_value_info("offset", onnx.TensorProto.FLOAT, [1]))
    prepared = dataclasses.replace(stand_in.prepared, frozen={"offset": np.array([0.5], np.float32)})
    path = dataclasses.replace(stand_in, prepared=prepared).write(tmp_path / "b").path
    assert compare(path, original).passed


def test_a_lean_bundle_needs_the_model(stand_in, tmp_path):
    path = stand_in.write(tmp_path / "b", lean=True).path
    with pytest.raises(UsageError, match="give the model with --model"):
        compare(path)
    assert compare(path, stand_in.onnx_model).passed


def test_what_is_wrong_is_said(shared_bundle, tmp_path):
    with pytest.raises(UsageError, match="rtol=-1 is not a tolerance"):
        compare(shared_bundle, rtol=-1)
    with pytest.raises(UsageError, match="atol=nan is not a tolerance"):
        compare(shared_bundle, atol=math.nan)
    with pytest.raises(UsageError, match=r"nothing\.onnx is not a file"):
        compare(shared_bundle, tmp_path / "nothing.onnx")
    with pytest.raises(UsageError, match="has no input 'z'"):
        compare(shared_bundle, inputs={"z": np.zeros(1)})
    with pytest.raises(DeviceError, match="'pi4'"):
        compare(shared_bundle, device="pi4")
    (tmp_path / "text.onnx").write_text("hello")
    with pytest.raises(ModelError, match="ONNX Runtime cannot load"):
        compare(shared_bundle, tmp_path / "text.onnx")


def test_a_library_that_crashes_ends_in_a_message(stand_in, tmp_path):
    """Truncated but with a digest that fits: the system loader kills the process that loads it."""
    compiled = dataclasses.replace(stand_in.compiled, library=stand_in.compiled.library[:3000])
    path = dataclasses.replace(stand_in, compiled=compiled).write(tmp_path / "b").path
    with pytest.raises(EdgetuneError) as caught:
        compare(path)
    assert isinstance(caught.value, BundleError) or "the process of edgetune died (SIG" in str(caught.value)
