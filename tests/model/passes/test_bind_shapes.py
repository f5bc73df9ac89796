"""Binding shapes: what is open, what follows, what contradicts."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx.parser import parse_model

from edgetune.cli.options import parse_shapes
from edgetune.errors import ModelError, UsageError
from edgetune.model import interface
from edgetune.model.passes.bind_shapes import bind_shapes

SPEECH = parse_model(
    """<ir_version: 8, opset_import: ["": 17]>
    speech (float[batch, sequence] input, float[2, batch, 128] state) => (float[batch, sequence] y)
    { y = Relu(input) }"""
)


def shapes_of(model) -> dict[str, tuple]:
    return {value.name: value.dims for value in interface.inputs(model)}


def test_a_symbol_has_one_size_everywhere() -> None:
    result = bind_shapes(SPEECH, {"input": (1, 576)})
    assert result.changed
    assert shapes_of(result.model) == {"input": (1, 576), "state": (2, 1, 128)}


def test_the_given_model_is_left_alone() -> None:
    before = SPEECH.SerializeToString(deterministic=True)
    bind_shapes(SPEECH, {"input": (1, 576)})
    assert SPEECH.SerializeToString(deterministic=True) == before


def test_nothing_open_nothing_changed() -> None:
    bound = bind_shapes(SPEECH, {"input": (1, 576)}).model
    again = bind_shapes(bound, {})
    assert not again.changed
    assert not bind_shapes(bound, {"input": (1, 576)}).changed


def test_question_marks_are_different_dimensions() -> None:
    model = parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[a, b] x) => (float[a, b] y) { y = Relu(x) }'
    )
    for dim in model.graph.input[0].type.tensor_type.shape.dim:
        dim.dim_param = "?"
    assert shapes_of(bind_shapes(model, {"x": (2, 5)}).model) == {"x": (2, 5)}


def test_minus_one_is_open() -> None:
    model = parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[3] x) => (float[3] y) { y = Relu(x) }'
    )
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    with pytest.raises(ModelError, match="open dimensions"):
        bind_shapes(model, {})
    assert shapes_of(bind_shapes(model, {"x": (4,)}).model) == {"x": (4,)}


def test_an_unknown_rank_can_be_bound() -> None:
    model = parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[3] x) => (float[3] y) { y = Relu(x) }'
    )
    model.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(ModelError, match="unknown number of dimensions"):
        bind_shapes(model, {})
    assert shapes_of(bind_shapes(model, {"x": (4, 5)}).model) == {"x": (4, 5)}


def test_the_message_lists_all_inputs_and_its_options_work() -> None:
    with pytest.raises(ModelError) as error:
        bind_shapes(SPEECH, {})
    text = str(error.value)
    assert "input  float32 [batch, sequence]" in text
    assert "state  float32 [2, batch, 128]" in text
    options = re.findall(r"--shape (\S+)", text)
    assert len(options) == 2
    bind_shapes(SPEECH, parse_shapes(options) or {})


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        ({"inptu": (1, 576)}, "did you mean input"),
        ({"input": (1, 576, 3)}, "has 3 dimensions, but the model declares 2"),
        ({"state": (3, 1, 128)}, "dimensions with a number are fixed"),
        ({"input": (1, 576), "state": (2, 4, 128)}, "'batch' 4, but input 'input' makes it 1"),
        ({"input": (0, 576)}, "at least 1"),
        ({"input": (1.5, 576)}, "at least 1"),
        ({"input": (True, 576)}, "at least 1"),
    ],
)
def test_shapes_that_do_not_fit(shapes: dict, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        bind_shapes(SPEECH, shapes)


def test_no_elements_where_the_file_says_so() -> None:
    model = parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[2, 0] x) => (float[2, 0] y) { y = Neg(x) }'
    )
    assert shapes_of(bind_shapes(model, {"x": (2, 0)}).model) == {"x": (2, 0)}


@given(batch=st.integers(1, 10_000), sequence=st.integers(1, 10_000))
def test_any_sizes(batch: int, sequence: int) -> None:
    bound = bind_shapes(SPEECH, {"input": [batch, sequence]}).model
    assert shapes_of(bound) == {"input": (batch, sequence), "state": (2, batch, 128)}
