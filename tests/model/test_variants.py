"""Which dimensions vary, and the fixed shapes that a model is prepared for."""

from __future__ import annotations

import pytest
from onnx.parser import parse_model

from edgetune.errors import UsageError
from edgetune.model import interface
from edgetune.model.variants import plan

SPEECH = interface.inputs(
    parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        speech (float[batch, sequence] input, float[2, batch, 128] state) => (float[batch, sequence] y)
        { y = Relu(input) }"""
    )
)
NAMELESS = [interface.Value("x", "float32", (None, None)), interface.Value("y", "float32", (None, 5))]


def test_nothing_varies() -> None:
    found = plan(SPEECH, {"input": (1, 576)})
    assert (found.dimensions, found.combinations) == ((), ((),))
    assert found.shapes(()) == {"input": (1, 576)}


def test_a_symbol_is_one_dimension_wherever_it_stands() -> None:
    found = plan(SPEECH, {"input": ("1..4", 576)})
    (batch,) = found.dimensions
    assert (batch.name, batch.sizes.exact) == ("batch", (1, 2, 4))
    assert batch.inputs == (("input", 0), ("state", 1))
    assert [found.shapes(sizes) for sizes in found.combinations] == [{"input": (n, 576)} for n in (4, 2, 1)]


def test_several_dimensions_make_every_combination() -> None:
    found = plan(SPEECH, {"input": ("1/2", (256, 512))})
    assert found.combinations == ((2, 512), (2, 256), (1, 512), (1, 256))
    assert found.shapes((1, 256)) == {"input": (1, 256)}


def test_without_symbols_the_same_sizes_in_several_inputs_are_one_dimension() -> None:
    found = plan(NAMELESS, {"x": ("1..4", 7), "y": ("1..4", 5)})
    assert [(d.name, d.inputs) for d in found.dimensions] == [("x.0", (("x", 0), ("y", 0)))]


def test_within_one_input_they_are_different_ones() -> None:
    found = plan(NAMELESS, {"x": ("1/4", "1/4"), "y": ("1/4", 5)})
    assert [d.inputs for d in found.dimensions] == [(("x", 0), ("y", 0)), (("x", 1),)]


@pytest.mark.parametrize(
    "shapes, text",
    [
        ({"input": ("1..4", 9), "state": (2, "1..8", 128)}, r"'batch' the sizes 1/2/4 in input 'input'"),
        ({"input": ("1..64", "1..64")}, "49 combinations"),
        ({"inptu": ("1..4", 9)}, "did you mean input"),
        ({"input": ("4..1", 9)}, r"4\.\.1"),
    ],
)
def test_refused(shapes, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        plan(SPEECH, shapes)
