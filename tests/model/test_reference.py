"""Random inputs are the same for the same seed and suit the model; differences are what they are."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx.parser import parse_model

from edgetune.errors import ModelError
from edgetune.model.reference import Ranges, difference, random_inputs, reference_run
from edgetune.model.session import Session
from edgetune.records import TensorSpec

DTYPES = [
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "int8",
    "uint8",
    "int16",
    "int32",
    "int64",
    "uint64",
    "bool",
]


@given(
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 4), max_size=4).map(tuple),
    st.integers(0, 100),
    st.sampled_from(Ranges),
)
def test_inputs_have_their_type_and_shape(
    dtype: str, shape: tuple[int, ...], seed: int, ranges: Ranges
) -> None:
    array = random_inputs([TensorSpec("x", dtype, shape)], seed, ranges)["x"]
    assert (array.dtype.name, array.shape) == (dtype, shape)
    assert np.isfinite(array.astype(np.float64)).all()


def test_the_seed_and_the_name_decide() -> None:
    x, y = TensorSpec("x", "float32", (50,)), TensorSpec("y", "float32", (50,))
    both = random_inputs([x, y], 3)
    np.testing.assert_array_equal(random_inputs([y], 3)["y"], both["y"])
    assert not np.array_equal(both["x"], both["y"])
    assert not np.array_equal(random_inputs([x], 4)["x"], both["x"])


def session(text: str) -> Session:
    return Session(parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {text}'))


def test_indices_out_of_range_are_avoided() -> None:
    gather = session("(float[2, 3] table, int64[50] i) => (float[50, 3] y) { y = Gather(table, i) }")
    specs = [TensorSpec("table", "float32", (2, 3)), TensorSpec("i", "int64", (50,))]
    inputs, outputs, ranges = reference_run(gather, specs, {})
    assert ranges is Ranges.NARROW
    np.testing.assert_array_equal(outputs["y"], inputs["table"][inputs["i"]])


def test_not_a_number_is_avoided() -> None:
    root = session("(float[50] x) => (float[50] y) { y = Sqrt(x) }")
    _, outputs, _ = reference_run(root, [TensorSpec("x", "float32", (50,))], {})
    assert np.isfinite(outputs["y"]).all()


def test_a_model_that_gives_nothing_but_nan_still_has_a_reference() -> None:
    root = session("(float[5] x) => (float[5] y) { n = Abs(x) m = Neg(n) y = Log(m) }")
    _, outputs, _ = reference_run(root, [TensorSpec("x", "float32", (5,))], {})
    assert np.isnan(outputs["y"]).all()


def test_a_model_that_never_runs_is_refused_with_the_reason() -> None:
    bad = session("(float[N] x) => (float[3] y) { s = Constant<value_ints=[3]>() y = Reshape(x, s) }")
    with pytest.raises(ModelError, match="cannot run the model on these inputs") as error:
        reference_run(bad, [TensorSpec("x", "float32", (5,))], {})
    assert ".cc" not in str(error.value)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("y = Cast<to = 14>(x)", "tensor(complex64)"),
        ("y = NoSuchOperator(x)", "No Op registered for NoSuchOperator"),
        ("s = Constant<value_ints=[3, 0]>() y = Reshape<allowzero = 7>(x, s)", "Reshape"),
    ],
)
def test_what_onnxruntime_says_is_told_without_places_in_its_sources(body: str, told: str) -> None:
    def load_and_run() -> None:
        session(f"(float[3] x) => (y) {{ {body} }}").run({"x": np.zeros(3, np.float32)})

    with pytest.raises(ModelError) as error:
        load_and_run()
    assert told in str(error.value)
    assert not re.search(r"\.(cc|h):|::|FAIL", str(error.value))


def test_damaged_weights_are_told_without_places_in_sources() -> None:
    model = parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }'
    )
    model.graph.initializer[0].ClearField("float_data")
    model.graph.initializer[0].raw_data = b"12345"
    with pytest.raises(ModelError, match=r"cannot load the model: .*'w'.* size ") as error:
        Session(model)
    assert not re.search(r"\.(cc|h):|::|FAIL", str(error.value))


@pytest.mark.parametrize(
    ("want", "got", "differs"),
    [
        ([1.0, 2.0], [1.0, 2.00001], False),
        ([1.0, 2.0], [1.0, 2.1], True),
        ([1e-3, 1e3], [1.5e-3, 1e3], False),  # relative to the largest value
        ([np.nan, 1.0], [np.nan, 1.0], False),
        ([np.nan, 1.0], [1.0, np.nan], True),
        ([np.inf, 1.0], [-np.inf, 1.0], True),
        ([0.0, 0.0], [0.0, 1e-6], True),
        ([], [], False),
    ],
)
def test_float_differences(want: list[float], got: list[float], differs: bool) -> None:
    found = difference({"y": np.array(want, np.float32)}, {"y": np.array(got, np.float32)})
    assert (found is not None) == differs


def test_other_differences() -> None:
    ints = np.array([1, 2], np.int32)
    assert difference({"y": ints}, {"y": ints.copy()}) is None
    assert "differs" in str(difference({"y": ints}, {"y": ints + 1}))
    assert "has dtype int64" in str(difference({"y": ints}, {"y": ints.astype(np.int64)}))
    assert "has shape [1, 2]" in str(difference({"y": ints}, {"y": ints[None]}))
    half = np.array([1, 2], ml_dtypes.bfloat16)
    assert difference({"y": half}, {"y": (half * 1.005).astype(ml_dtypes.bfloat16)}) is None
