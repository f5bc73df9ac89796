"""Dropout and Identity go where they only hand on; values stay those of ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.parser import parse_model

from edgetune.model.passes.remove_leftovers import remove_leftovers

X = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)


def model_of(body: str, outputs: str = "float[2, 3] y", opset: int = 17) -> onnx.ModelProto:
    text = f'<ir_version: 8, opset_import: ["": {opset}]> g (float[2, 3] x) => ({outputs}) {{ {body} }}'
    return parse_model(text)


def run(model: onnx.ModelProto) -> list[np.ndarray]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": X})


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def settled(model: onnx.ModelProto) -> onnx.ModelProto:
    for _ in range(10):
        result = remove_leftovers(model)
        if not result.changed:
            return model
        model = result.model
    raise AssertionError("does not settle")


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("a = Identity(x) y = Relu(a)", ["Relu"]),
        ("a = Relu(x) y = Identity(a)", ["Relu"]),
        ("a = Relu(x) b = Identity(a) c = Identity(b) y = Neg(c)", ["Relu", "Neg"]),
        ("a = Relu(x) b = Identity(a) y = Identity(b)", ["Relu"]),
        ("a = Dropout(x) y = Relu(a)", ["Relu"]),
        ("a, mask = Dropout(x) y = Relu(a)", ["Relu"]),
        # Nothing but a node can make an output.
        ("y = Identity(x)", ["Identity"]),
    ],
)
def test_what_only_hands_on_goes(body: str, left: list[str]) -> None:
    model = model_of(body)
    result = settled(model)
    onnx.checker.check_model(result)
    assert operators(result) == left
    np.testing.assert_array_equal(run(result)[0], run(model)[0])


def test_two_outputs_of_one_value_keep_their_names() -> None:
    model = model_of("a = Relu(x) y = Identity(a) z = Identity(a)", "float[2, 3] y, float[2, 3] z")
    result = settled(model)
    assert [value.name for value in result.graph.output] == ["y", "z"]
    for got, want in zip(run(result), run(model), strict=True):
        np.testing.assert_array_equal(got, want)


def test_an_output_that_is_read_on() -> None:
    model = model_of("a = Relu(x) y = Identity(a) z = Neg(a)", "float[2, 3] y, float[2, 3] z")
    result = settled(model)
    assert operators(result) == ["Relu", "Neg"]
    for got, want in zip(run(result), run(model), strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_used_mask_keeps_the_dropout() -> None:
    model = model_of("y, mask = Dropout(x) z = Cast<to = 1>(mask)", "float[2, 3] y, float[2, 3] z")
    assert not remove_leftovers(model).changed


def test_training_mode_stays() -> None:
    random = model_of(
        "r = Constant<value_float = 0.5>() t = Constant<value = bool {1}>() d = Dropout(x, r, t) y = Relu(d)"
    )
    assert not remove_leftovers(random).changed
    off = model_of(
        "r = Constant<value_float = 0.5>() t = Constant<value = bool {0}>() d = Dropout(x, r, t) y = Relu(d)"
    )
    assert "Dropout" not in operators(settled(off))


def test_early_opsets_train_unless_told() -> None:
    assert not remove_leftovers(model_of("d = Dropout(x) y = Relu(d)", opset=6)).changed
    assert remove_leftovers(model_of("d = Dropout<is_test = 1>(x) y = Relu(d)", opset=6)).changed


def test_branches_of_an_if_read_the_source() -> None:
    model = parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[2, 3] x, bool c) => (float[2, 3] y) {
            r = Relu(x)
            i = Identity(r)
            y = If (c) <
                then_branch = t () => (float[2, 3] u) { u = Neg(i) },
                else_branch = e () => (float[2, 3] v) { w = Identity(i) v = Abs(w) }
            >
        }"""
    )
    result = settled(model)
    onnx.checker.check_model(result)
    assert operators(result) == ["Relu", "If"]
    for condition in (True, False):
        feeds = {"x": X, "c": np.array(condition)}
        before, after = (
            ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)[
                0
            ]
            for m in (model, result)
        )
        np.testing.assert_array_equal(after, before)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["Identity", "Dropout", "Relu", "Neg", "Abs"]), st.integers(0, 99)),
        min_size=1,
        max_size=12,
    ),
    st.sets(st.integers(0, 11), min_size=1, max_size=3),
)
def test_random_graphs_keep_their_values(steps: list[tuple[str, int]], chosen: set[int]) -> None:
    values = ["x"]
    body = ""
    for index, (operator, source) in enumerate(steps):
        values.append(f"v{index}")
        body += f" v{index} = {operator}({values[source % (index + 1)]})"
    outputs = sorted({values[1 + index % len(steps)] for index in chosen})
    model = model_of(body, ", ".join(f"float[2, 3] {name}" for name in outputs))
    result = settled(model)
    onnx.checker.check_model(result)
    for got, want in zip(run(result), run(model), strict=True):
        np.testing.assert_array_equal(got, want)
