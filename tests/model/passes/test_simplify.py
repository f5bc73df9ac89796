"""onnxslim's work is taken without its side effects on the signature."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper
from onnx.parser import parse_model

from edgetune.model.passes.simplify import simplify


def test_shape_arithmetic_and_batch_normalization_are_folded() -> None:
    model = parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[1, 3, 4, 4] x) => (float[1, 32] y) {
            a = Conv(x, w)
            b = BatchNormalization(a, s, o, m, v)
            shape = Shape(b)
            i = Constant<value = int64[1] {0}>()
            n = Gather(shape, i)
            minus = Constant<value = int64[1] {-1}>()
            target = Concat<axis = 0>(n, minus)
            y = Reshape(b, target)
        }"""
    )
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((2, 3, 1, 1)),
        "s": rng.random(2),
        "o": rng.random(2),
        "m": rng.random(2),
        "v": rng.random(2) + 1,
    }
    for name, value in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(value.astype(np.float32), name))
    result = simplify(model)
    assert result.changed
    assert [node.op_type for node in result.model.graph.node] == ["Conv", "Reshape"]
    x = rng.standard_normal((1, 3, 4, 4)).astype(np.float32)
    outputs = [
        ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
        for m in (model, result.model)
    ]
    np.testing.assert_allclose(outputs[1], outputs[0], rtol=1e-5, atol=1e-5)
    assert not simplify(result.model).changed


def test_an_unused_input_stays_in_the_signature() -> None:
    model = parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[2] x, int64 unused) => (float[2] y) { i = Identity(x) y = Relu(i) }"""
    )
    result = simplify(model).model
    assert [value.name for value in result.graph.input] == ["x", "unused"]
    onnx.checker.check_model(result)
