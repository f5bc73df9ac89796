"""Old forms of operators become those that the importer reads; the values stay."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model

from edgetune.model.passes.convert_opset import FIRST_READABLE, convert_opset

X = np.random.default_rng(0).standard_normal((1, 2, 4, 4)).astype(np.float32)
SIGNATURE = "(float[1, 2, 4, 4] x) => (float[a, b, c, d] y)"


def model_of(body: str, opset: int, ir_version: int = 8) -> onnx.ModelProto:
    return parse_model(f'<ir_version: {ir_version}, opset_import: ["": {opset}]> g {SIGNATURE} {{ {body} }}')


@pytest.mark.parametrize(
    ("body", "opset"),
    [
        ("y = Slice<axes = [2], starts = [1], ends = [3]>(x)", 9),
        ("y = Upsample<scales = [1.0, 1.0, 2.0, 2.0]>(x)", 7),
        ("s = Constant<value = float[4] {1.0, 1.0, 2.0, 2.0}>() y = Upsample(x, s)", 9),
        ("s = Constant<value = float[4] {1.0, 1.0, 2.0, 2.0}>() y = Resize(x, s)", 10),
        ("v = Constant<value = float[2] {0.5, 2.0}>() y = BatchNormalization(x, v, v, v, v)", 7),
    ],
)
def test_old_forms(same_values, body: str, opset: int) -> None:
    model = model_of(body, opset)
    result = convert_opset(model)
    assert result.changed
    assert f"operator set {opset} was converted" in result.notes[0]
    assert result.model.opset_import[0].version > opset
    same_values(model, result.model, {"x": X}, rtol=1e-6, atol=1e-6)
    assert not convert_opset(result.model).changed


def test_before_opset_7(same_values) -> None:
    """onnxslim and most operators of ONNX Runtime begin there."""
    model = model_of("y = Relu(x)", 6)
    result = convert_opset(model).model
    assert result.opset_import[0].version >= 7
    same_values(model, result, {"x": X})


def test_readable_models_keep_their_opset() -> None:
    assert not convert_opset(model_of("y = Relu(x)", 7)).changed
    assert not convert_opset(model_of("y = Add(x, x)", 7)).changed


def test_the_table_follows_the_importer() -> None:
    """Whatever the importer reads from one opset on only, the standard changed before, is in the table."""
    from tvm.relax.frontend.onnx import onnx_frontend  # noqa: TID251  # the table under test is about it

    for op_type in FIRST_READABLE:
        assert op_type in onnx_frontend._get_convert_map()
        versions = {s.since_version for s in onnx.defs.get_all_schemas_with_history() if s.name == op_type}
        assert min(versions) < FIRST_READABLE[op_type]


def test_models_of_other_domains_alone_have_nothing_to_convert() -> None:
    model = parse_model(
        '<ir_version: 8, opset_import: ["ai.onnx.ml": 3]> '
        "g (float[2, 3] x) => (float[2, 3] y) { y = ai.onnx.ml.Binarizer<threshold = 0.5>(x) }"
    )
    assert not convert_opset(model).changed
