"""A pass that breaks a model is left out and said so; the others go on."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model

from edgetune.errors import ModelError
from edgetune.model import graphs
from edgetune.model.pipeline import PassResult, run_passes, unchanged
from edgetune.model.reference import difference
from edgetune.model.session import Session

MODEL = parse_model(
    """<ir_version: 8, opset_import: ["": 17]>
    g (float[2] x) => (float[2] y) { a = Relu(x) b = Abs(a) y = Neg(b) }"""
)
INPUTS = {"x": np.array([-1, 2], np.float32)}


def values_differ(model: onnx.ModelProto) -> str | None:
    return difference(Session(MODEL).run(INPUTS), Session(model).run(INPUTS))


def rewriting(name: str, old: str, new: str):
    """A pass that turns every ``old`` into ``new``."""

    def apply(model: onnx.ModelProto) -> PassResult:
        if all(node.op_type != old for node in model.graph.node):
            return unchanged(model)
        model = graphs.copy(model)
        for node in model.graph.node:
            if node.op_type == old:
                node.op_type = new
        return PassResult(model, True)

    apply.__name__ = name
    return apply


harmless = rewriting("harmless", "Abs", "Identity")
wrong_values = rewriting("wrong_values", "Neg", "Exp")
invalid = rewriting("invalid_operator", "Relu", "NoSuchOperator")


def renames_output(model: onnx.ModelProto) -> PassResult:
    model = graphs.copy(model)
    model.graph.output[0].name = model.graph.node[-1].output[0] = "z"
    return PassResult(model, True)


def raises(model: onnx.ModelProto) -> PassResult:
    raise ZeroDivisionError("what a pass should not do")


def refuses(model: onnx.ModelProto) -> PassResult:
    raise ModelError("this model is refused")


def operators(result: PassResult) -> list[str]:
    return [node.op_type for node in result.model.graph.node]


def test_good_passes_are_kept_without_a_note() -> None:
    result = run_passes(MODEL, [harmless], values_differ)
    assert operators(result) == ["Relu", "Identity", "Neg"]
    assert result.changed
    assert result.notes == ()


def test_nothing_to_do() -> None:
    result = run_passes(MODEL, [rewriting("idle", "Conv", "Relu")], values_differ)
    assert not result.changed
    assert result.model is MODEL


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (wrong_values, "'wrong values' was left out: output 'y' differs"),
        (invalid, "'invalid operator' was left out: onnx.checker"),
        (renames_output, "'renames output' was left out: it changed the model's inputs or outputs"),
        (raises, "'raises' was left out: it failed with ZeroDivisionError"),
    ],
)
@pytest.mark.parametrize("position", [0, 1])
def test_a_breaking_pass_is_left_out_and_named(bad, says: str, position: int) -> None:
    passes = [harmless]
    passes.insert(position, bad)
    result = run_passes(MODEL, passes, values_differ)
    assert operators(result) == ["Relu", "Identity", "Neg"]
    assert len(result.notes) == 1
    assert says in result.notes[0]


def test_an_expected_problem_is_not_swallowed() -> None:
    with pytest.raises(ModelError, match="refused"):
        run_passes(MODEL, [refuses], values_differ)


def test_passes_feed_each_other() -> None:
    second = rewriting("second", "Identity", "Floor")
    # ``second`` stands first: only a second round lets it see what ``harmless`` made.
    result = run_passes(MODEL, [second, harmless], lambda model: None)
    assert operators(result) == ["Relu", "Floor", "Neg"]


def test_passes_that_undo_each_other_end() -> None:
    there, back = rewriting("there", "Abs", "Floor"), rewriting("back", "Floor", "Abs")
    assert run_passes(MODEL, [there, back], lambda model: None).changed
