"""The taken branch of an If with a known condition takes its place."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper
from onnx.parser import parse_model

from edgetune.model.passes.fold_constants import fold_constants
from edgetune.model.passes.inline_branches import inline_branches

X = np.random.default_rng(0).standard_normal(4).astype(np.float32)


def model_of(body: str, signature: str = "(float[4] x) => (float[4] y)", **constants: object):
    model = parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {signature} {{ {body} }}')
    for name, value in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return model


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


BRANCHES = """y = If (c) <
    then_branch = t () => (float[4] u) { w = Relu(x) u = Neg(w) },
    else_branch = e () => (float[4] v) { w = Abs(x) v = Exp(w) }
>"""


@pytest.mark.parametrize(("condition", "expected"), [(True, ["Relu", "Neg"]), (False, ["Abs", "Exp"])])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_the_taken_branch_stays(same_values, condition: bool, expected: list[str], shape: tuple) -> None:
    model = model_of(BRANCHES, c=np.full(shape, condition))
    result = inline_branches(model)
    assert operators(result.model) == expected
    same_values(model, result.model, {"x": X})


def test_an_unknown_condition_stays() -> None:
    assert not inline_branches(model_of(BRANCHES, "(float[4] x, bool c) => (float[4] y)")).changed


def test_a_branch_that_hands_on_an_outer_tensor_or_a_constant(same_values) -> None:
    model = model_of(
        """r = Relu(x)
        y, z = If (c) <
            then_branch = t () => (float[4] r, float[2] k) <float[2] k = {1.0, 2.0}> { },
            else_branch = e () => (float[4] a, float[2] b) {
                a = Neg(r) b = Constant<value_floats = [0.0, 0.0]>()
            }
        >""",
        "(float[4] x) => (float[4] y, float[2] z)",
        c=True,
    )
    result = inline_branches(model)
    assert operators(result.model) == ["Relu", "Identity", "Identity"]
    onnx.checker.check_model(result.model, full_check=True)


def test_two_ifs_may_use_the_same_names_inside(same_values) -> None:
    second = BRANCHES.replace("y = If", "z = If").replace("(x)", "(y)")
    model = model_of(BRANCHES + second, "(float[4] x) => (float[4] z)", c=True)
    result = inline_branches(model)
    assert operators(result.model) == ["Relu", "Neg", "Relu", "Neg"]
    same_values(model, result.model, {"x": X})


def nested(depth: int, draw_operator) -> str:
    """A branch body that makes ``u{depth}`` from ``x`` and from what the scopes around it made."""
    if depth == 0:
        return f"u0 = {draw_operator()}(x)"
    inner_then, inner_else = nested(depth - 1, draw_operator), nested(depth - 1, draw_operator)
    return f"""o{depth} = {draw_operator()}(x)
    i{depth} = If (c{depth}) <
        then_branch = t{depth} () => (float[4] u{depth - 1}) {{ {inner_then} }},
        else_branch = e{depth} () => (float[4] u{depth - 1}) {{ {inner_else} }}
    >
    u{depth} = Add(i{depth}, o{depth})"""


@settings(max_examples=40, deadline=None)
@given(data=st.data(), depth=st.integers(1, 3))
def test_nested_ifs(same_values, data, depth: int) -> None:
    body = nested(depth, lambda: data.draw(st.sampled_from(["Relu", "Neg", "Abs", "Exp"])))
    conditions = {f"c{level}": data.draw(st.booleans()) for level in range(1, depth + 1)}
    model = model_of(f"{body} y = Neg(u{depth})", **conditions)
    result = model
    for _ in range(depth):
        step = inline_branches(result)
        assert step.changed
        result = fold_constants(step.model).model
    assert "If" not in operators(result)
    same_values(model, result, {"x": X}, rtol=1e-6, atol=1e-6)
