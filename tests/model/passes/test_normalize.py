"""Every file takes the one form the passes expect."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.parser import parse_model

from edgetune.model import interface
from edgetune.model.passes.normalize import normalize


def old_style() -> onnx.ModelProto:
    model = parse_model(
        """<ir_version: 3, opset_import: ["": 9]>
        g (float[1, 3] x, float[3] w) => (float[7, 3] y) { m = Mul(x, w) y = Relu(m) }"""
    )
    model.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "w"))
    model.graph.value_info.append(onnx.helper.make_tensor_value_info("m", 1, [9, 9]))
    model.graph.node[0].doc_string = "somebody's stack trace"
    model.doc_string = "about"
    return model


def test_initializers_are_no_inputs_any_more() -> None:
    result = normalize(old_style()).model
    assert [value.name for value in result.graph.input] == ["x"]
    onnx.checker.check_model(result)


def test_stale_sizes_and_texts_are_gone() -> None:
    result = normalize(old_style()).model
    assert not result.graph.value_info
    assert not result.doc_string
    assert not result.graph.node[0].doc_string
    # The declared 7 is wrong; how many dimensions there are stays known.
    assert interface.outputs(result)[0].dims == (None, None)


def test_the_given_model_is_left_alone_and_twice_is_once() -> None:
    model = old_style()
    before = model.SerializeToString(deterministic=True)
    once = normalize(model).model
    assert model.SerializeToString(deterministic=True) == before
    assert normalize(once).model == once
