"""Functions become their bodies; which of the standard's is a matter of what can be imported."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model

from edgetune.model.passes.inline_functions import INLINED, inline_functions

RNG = np.random.default_rng(0)


def model_of(signature: str, body: str, opset: int):
    return parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> g {signature} {{ {body} }}')


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("signature", "body", "opset", "feeds"),
    [
        ("(float[2, 3] x) => (float[2, 3] y)", "y = Celu<alpha = 2.0>(x)", 12, {"x": floats(2, 3)}),
        (
            "(float[7, 3] x) => (float[n, m] y)",
            "s = Constant<value_ints = [4, 5]>() y = CenterCropPad(x, s)",
            18,
            {"x": floats(7, 3)},
        ),
        ("(int64 n) => (float[m] y)", "y = HannWindow(n)", 17, {"n": np.int64(10)}),
        (
            "(float[4, 3] x, int64[4] t) => (float y)",
            "y = SoftmaxCrossEntropyLoss(x, t)",
            13,
            {"x": floats(4, 3), "t": np.array([0, 2, 1, 1])},
        ),
        (
            "(float[4, 3] x, int64[4] t, float[3] w) => (float[4] y)",
            'y = NegativeLogLikelihoodLoss<reduction = "none">(x, t, w)',
            13,
            {"x": floats(4, 3), "t": np.array([0, 2, 1, 1]), "w": np.ones(3, np.float32)},
        ),
        (
            "(float[1, 2, 4, 8] q, float[1, 2, 6, 8] k, float[1, 2, 6, 8] v) => (float[1, 2, 4, 8] y)",
            "y = Attention<is_causal = 1>(q, k, v)",
            23,
            {"q": floats(1, 2, 4, 8), "k": floats(1, 2, 6, 8), "v": floats(1, 2, 6, 8)},
        ),
        (  # optional inputs left out in the middle
            "(float[1, 2, 4, 8] q, float[1, 2, 3, 8] p) => "
            "(float[1, 2, 4, 8] y, float[1, 2, 7, 8] a, float[1, 2, 7, 8] b)",
            'y, a, b = Attention(q, q, q, "", p, p)',
            23,
            {"q": floats(1, 2, 4, 8), "p": floats(1, 2, 3, 8)},
        ),
        (
            "(float[1, 2, 4, 8] x, float[4, 4] c, float[4, 4] s, int64[1, 4] p) => (float[1, 2, 4, 8] y)",
            "y = RotaryEmbedding(x, c, s, p)",
            23,
            {"x": floats(1, 2, 4, 8), "c": floats(4, 4), "s": floats(4, 4), "p": np.array([[0, 1, 2, 3]])},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and "=" in value and "(" not in value[:1] else "",
)
def test_the_standard_s_functions(same_values, signature: str, body: str, opset: int, feeds: dict) -> None:
    model = model_of(signature, body, opset)
    result = inline_functions(model)
    assert result.changed
    assert not {node.op_type for node in result.model.graph.node} & INLINED
    assert not result.model.functions
    assert {entry.domain for entry in result.model.opset_import} == {""}
    same_values(model, result.model, feeds, rtol=1e-5, atol=1e-6)
    assert not inline_functions(result.model).changed


def test_what_can_be_imported_stays() -> None:
    model = model_of(
        "(float[2, 5] x, float[5] s) => (float[2, 5] y)", "a = LayerNormalization(x, s) y = Softplus(a)", 17
    )
    assert not inline_functions(model).changed


def test_the_model_s_own_functions(same_values) -> None:
    model = parse_model(
        """<ir_version: 8, opset_import: ["": 17, "mine": 1]>
        g (float[4] x, bool c) => (float[4] y) {
            a = mine.block<slope = 0.5>(x)
            y = If (c) <
                then_branch = t () => (float[4] u) { u = mine.twice(a) },
                else_branch = e () => (float[4] v) { v = Neg(a) }
            >
        }
        <domain: "mine", opset_import: ["": 17, "mine": 1]>
        block <slope> (x) => (y) { a = LeakyRelu<alpha: float = @slope>(x) y = mine.twice(a) }
        <domain: "mine", opset_import: ["": 17]>
        twice (x) => (y) { y = Add(x, x) }"""
    )
    result = inline_functions(model)
    assert result.changed
    assert not result.model.functions
    x = floats(4)
    for condition in (True, False):
        same_values(model, result.model, {"x": x, "c": np.array(condition)})


def test_the_list_is_what_the_importer_lacks() -> None:
    """Every operator with a body that cannot be imported is inlined, and no other one."""
    from edgetune.graph.importer import operators

    with_body = {
        schema.name
        for schema in onnx.defs.get_all_schemas()
        if schema.domain == ""
        and (schema.function_opset_versions or schema.context_dependent_function_opset_versions)
    }
    # Random, so that no two runs give the same.
    missing = with_body - operators() - {"Bernoulli"}
    # The importer's Attention is com.microsoft's operator.
    assert missing | {"Attention"} >= INLINED & with_body
    assert missing <= INLINED
