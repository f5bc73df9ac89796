"""Corners of operators that random models have found: values against ONNX Runtime, or refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from edgetune.errors import ModelError, UnsupportedModelError
from edgetune.graph.lower import lower
from edgetune.model.prepare import parse, prepare
from edgetune.targets import Target
from tests.graph.support import check, model, node, weights


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def reduction(op: str, kind: Any = np.float32, **more: Any) -> onnx.ModelProto:
    return model(
        [node(op, ["x", "axes"], **more)], {"x": (kind, (3, 4))}, {"axes": more.pop("axes", ints())}, opset=20
    )


def slices() -> onnx.ModelProto:
    """Starts and ends before, in and behind the axis, forwards and backwards."""
    nodes, constants, outputs = [], {"axis": ints(1)}, []
    for step in (1, 2, -1, -2):
        for start in (-7, -5, -1, 0, 4, 9):
            for end in (-(2**62), -6, -4, 0, 3, 2**62):
                name = f"y{len(outputs)}"
                constants |= {f"s{name}": ints(start), f"e{name}": ints(end), f"t{name}": ints(step)}
                nodes.append(node("Slice", ["x", f"s{name}", f"e{name}", "axis", f"t{name}"], [name]))
                outputs.append(name)
    return model(nodes, {"x": (2, 5)}, constants, outputs)


MODELS = {
    "slices clamp as the standard says": slices(),
    "the largest none": model(
        [node("TopK", ["x", "k"], ["y", "i"], axis=0)], {"x": (3, 2)}, {"k": ints(0)}, ("y", "i")
    ),
    "nothing flattened": model([node("Flatten", ["x"])], {"x": (0, 2, 3)}),
    "a norm over no axis": reduction("ReduceL1", noop_with_empty_axes=1),
    "squares over no axis": reduction("ReduceSumSquare", noop_with_empty_axes=1),
    "a logarithm over no axis": reduction("ReduceLogSum", noop_with_empty_axes=1),
    "a sum over no axis": reduction("ReduceSum", noop_with_empty_axes=1),
    "an integer mean": reduction("ReduceMean", np.int32, keepdims=0),
    "a window in the padding alone": model(
        [node("AveragePool", ["x"], kernel_shape=[2], pads=[1, 1], dilations=[2])], {"x": (1, 2, 1)}, opset=20
    ),
    "no variance": model(
        [node("LayerNormalization", ["x", "w"], ["y", "m", "d"], axis=-1)],
        {"x": (3, 2, 1)}, {"w": weights(1)}, ("y", "m", "d"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_values(name: str, local_target: Target) -> None:
    check(MODELS[name], local_target, repeats=0)


def test_a_convolution_of_no_channels() -> None:
    """Sums over nothing, which are constants."""
    made = model([node("Conv", ["x", "w"])], {"x": (4, 0, 5, 5)}, {"w": weights(2, 0, 3, 3)})
    prepared = prepare(made)
    assert [node.op_type for node in parse(prepared).graph.node] == ["Constant"]
    np.testing.assert_array_equal(prepared.reference_outputs["y"], np.zeros((4, 2, 3, 3)))


@pytest.mark.parametrize(
    ("op", "more"), [("MaxPool", {"dilations": [2, 2]}), ("AveragePool", {"strides": [5, 2]})]
)
def test_padding_that_is_read_in_two_ways(op: str, more: dict[str, Any], local_target: Target) -> None:
    pool = node(op, ["x"], kernel_shape=[3, 3], auto_pad="SAME_UPPER", **more)
    with pytest.raises(UnsupportedModelError, match="explicit pads"):
        lower(prepare(model([pool], {"x": (1, 2, 5, 5)}, opset=20)), local_target)


def test_what_runtimes_read_in_two_ways(local_target: Target) -> None:
    """Padding cut off one side may come back on the other; no integers have no mean; flags are 0 or 1."""
    for match, made in {
        "negative amounts": model(
            [node("Pad", ["x", "p"], mode="wrap")], {"x": (3, 4)}, {"p": ints(2, -1, 1, 2)}, opset=20
        ),
        "no integers": model(
            [node("ReduceMean", ["x", "a"])], {"x": (np.int32, (3, 0))}, {"a": ints(1)}, opset=18
        ),
        "keepdims of ReduceMean is 2": model(
            [node("ReduceMean", ["x"], keepdims=2)], {"x": (3, 4)}, opset=17
        ),
    }.items():
        with pytest.raises(UnsupportedModelError, match=match):
            lower(prepare(made), local_target)


def test_onnx_runtime_dies_alone() -> None:
    """Of a recurrent cell on a constant of no elements, and of some attributes of DFT."""
    cell = model(
        [node("Neg", ["e"], ["n"]), node("GRU", ["n", "w", "r"], ["u"], hidden_size=2), node("Neg", ["x"])],
        {"x": (2,)}, {"e": np.zeros((2, 0, 3), np.float32), "w": weights(1, 6, 3), "r": weights(1, 6, 2)}, ("y", "u"),
    )  # fmt: skip
    with pytest.raises(ModelError, match="does not survive"):
        prepare(cell)


def test_types_that_the_file_declares_wrongly() -> None:
    made = model([node("Cast", ["x"], to=onnx.TensorProto.FLOAT)], {"x": (3,)})
    made.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT8E5M2
    with pytest.raises(ModelError, match="float8e5m2"):
        prepare(made)
