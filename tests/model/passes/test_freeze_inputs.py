"""Freezing inputs: the frozen model computes what the original does with that value."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx.parser import parse_model

from edgetune.errors import UsageError
from edgetune.model import interface
from edgetune.model.passes.freeze_inputs import freeze_inputs

MODEL = parse_model(
    """<ir_version: 8, opset_import: ["": 17]>
    g (float[4] x, int64 n, float[2] pair, uint8[1] one, bool flag) => (float[4] y)
    {
        f = Cast<to = 1>(n)
        s = ReduceSum<keepdims = 0>(pair)
        o = Cast<to = 1>(one)
        b = Cast<to = 1>(flag)
        a = Mul(x, f)
        c = Add(a, s)
        d = Add(c, o)
        y = Add(d, b)
    }"""
)
VALUES = {"n": 3, "pair": [1.5, 2.0], "one": 7, "flag": True}


def run(model, inputs: dict) -> np.ndarray:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, inputs)[0]


def test_frozen_and_fed_values_give_the_same() -> None:
    x = np.array([1, -2, 0.5, 4], np.float32)
    fed = {
        "x": x,
        "n": np.array(3, np.int64),
        "pair": np.array([1.5, 2.0], np.float32),
        "one": np.array([7], np.uint8),
        "flag": np.array(True),
    }
    frozen = freeze_inputs(MODEL, VALUES)
    assert frozen.changed
    assert [value.name for value in interface.inputs(frozen.model)] == ["x"]
    np.testing.assert_array_equal(run(frozen.model, {"x": x}), run(MODEL, fed))


def test_nothing_to_freeze() -> None:
    assert not freeze_inputs(MODEL, {}).changed


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"sr": 1}, "no input of the model"),
        ({"flg": True}, "did you mean flag"),
        ({"n": 1.5}, "cannot hold it exactly"),
        ({"one": 256}, "cannot hold it exactly|no number"),
        ({"one": -1}, "cannot hold it exactly|no number"),
        ({"n": "sixteen"}, "no number"),
        ({"n": [1, 2]}, "its shape is"),
        ({"pair": [1, 2, 3]}, "its shape is"),
        ({"pair": [[1], [2, 3]]}, "no number"),
        ({"n": None}, "no number"),
        ({"n": float("nan")}, "cannot hold it exactly"),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
def test_values_that_do_not_fit(values: dict, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        freeze_inputs(MODEL, values)


@given(st.integers(-(2**63), 2**63 - 1))
def test_any_integer_of_the_type(value: int) -> None:
    frozen = freeze_inputs(MODEL, {"n": value}).model
    tensor = next(t for t in frozen.graph.initializer if t.name == "n")
    assert np.frombuffer(tensor.raw_data, np.int64)[0] == value
