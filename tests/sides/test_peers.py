"""Other runtimes: where they are installed, they compute what ONNX Runtime does; where not, they say so."""

from __future__ import annotations

import importlib.util

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgetune.bundle.arrays import write_npz
from edgetune.errors import UsageError
from edgetune.sides.base import SIDES, SideSpec
from edgetune.sides.converting import telling_line
from edgetune.sides.process import SideProcess

PACKAGES = {
    "openvino": "openvino",
    "mnn": "MNN",
    "ncnn": "ncnn",
    "litert": "ai_edge_litert",
    "iree": "iree",
}


def spec_of(name: str, folder) -> SideSpec:
    """A convolution and a sum, with two inputs and two outputs that are not in alphabetical order."""
    weights = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["y", "w"], ["c"], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["c"], ["z"]),
            helper.make_node("Add", ["z", "b"], ["a"]),
        ],
        "two",
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 3, 8, 10)),
            helper.make_tensor_value_info("b", TensorProto.FLOAT, (1, 4, 8, 10)),
        ],
        [
            helper.make_tensor_value_info("z", TensorProto.FLOAT, (1, 4, 8, 10)),
            helper.make_tensor_value_info("a", TensorProto.FLOAT, (1, 4, 8, 10)),
        ],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, folder / "two.onnx")
    rng = np.random.default_rng(1)
    inputs = {"y": rng.standard_normal((1, 3, 8, 10)), "b": rng.standard_normal((1, 4, 8, 10))}
    write_npz(folder / "inputs.npz", {name: array.astype(np.float32) for name, array in inputs.items()})
    return SideSpec(name, str(folder / "two.onnx"), str(folder / "inputs.npz"), 2, ("y", "b"), ("z", "a"))


@pytest.mark.parametrize("name", PACKAGES)
def test_like_onnx_runtime_or_a_word_on_what_is_missing(name, tmp_path):
    spec = spec_of(name, tmp_path)
    if importlib.util.find_spec(PACKAGES[name]) is None:
        with pytest.raises(UsageError, match=r"cannot be imported .*edgetune\[peers\]"):
            SideProcess(spec)
        return
    try:
        side = SideProcess(spec)
    except UsageError as error:
        assert "needs the converter" in str(error)  # noqa: PT017
        return
    with side, SideProcess(spec_of("onnxruntime", tmp_path)) as reference:
        expected, found = reference.outputs(), side.outputs()
        assert list(found) == ["z", "a"]
        for output in expected:
            np.testing.assert_allclose(
                found[output].reshape(expected[output].shape), expected[output], atol=1e-5
            )


def test_every_peer_is_tested():
    assert SIDES.keys() == {"edgetune", "onnxruntime", *PACKAGES}


def test_the_line_that_says_most():
    assert telling_line("one\n\x1b[31mError: no Foo\x1b[0m\nlast") == "Error: no Foo"
    assert telling_line("10%\r20%\rdone\n") == "done"
    assert telling_line("") == ""
