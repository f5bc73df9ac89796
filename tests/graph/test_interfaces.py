"""Models whose inputs, outputs, types or structure are unusual."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edgetune.errors import UnsupportedModelError
from edgetune.graph.lower import lower
from edgetune.model.prepare import prepare
from edgetune.targets import Target, load_target
from tests.graph.support import build, check, model, node, run, weights

pytestmark = pytest.mark.usefixtures("no_fallback")

X = {"x": (1, 8, 5, 5)}
W = {"w": weights(16, 8, 1, 1)}
CONV = node("Conv", ["x", "w"], ["c"])


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        ([CONV, node("Relu", ["c"], ["r"]), node("Abs", ["r"])], ["y", "r", "c"]),
        ([CONV, node("Relu", ["c"])], ["c", "y"]),
        ([CONV], ["c", "x"]),
        ([node("Identity", ["x"], ["y"]), node("Identity", ["x"], ["z"])], ["y", "z"]),
        ([CONV, node("Add", ["c", "c"]), node("Mul", ["x", "x"], ["z"])], ["y", "z"]),
    ],
    ids=["all of a chain", "an intermediate first", "an input", "an input twice", "operands twice"],
)
def test_outputs(nodes: list[onnx.NodeProto], outputs: list[str], local_target: Target) -> None:
    check(model(nodes, X, W, outputs), local_target)


def test_constant_output(local_target: Target) -> None:
    check(
        model([node("Relu", ["x"]), node("Abs", ["k"], ["z"])], {"x": (3,)}, {"k": weights(4)}, ["y", "z"]),
        local_target,
    )


def test_no_input(local_target: Target) -> None:
    check(model([node("Exp", ["k"])], {}, {"k": weights(4)}), local_target)


def test_unused_input(local_target: Target) -> None:
    check(model([node("Relu", ["x"])], {"x": (3,), "unused": (2, 2)}), local_target)


@pytest.mark.parametrize("dtype", ["float16", "float64", "int8", "uint8", "int32", "int64", "bool"])
def test_types_pass_through(dtype: str, local_target: Target) -> None:
    nodes = [node("Transpose", ["x"], ["t"], perm=[1, 0, 2]), node("Concat", ["t", "t"], axis=2)]
    if dtype == "bool":
        nodes.append(node("Not", ["y"], ["z"]))
    elif dtype != "uint8":
        nodes.append(node("Mul", ["y", "y"], ["z"]))
    check(model(nodes, {"x": (np.dtype(dtype), (3, 5, 7))}, outputs=[nodes[-1].output[0]]), local_target)


@pytest.mark.parametrize("dtype", ["float16"])
def test_convolution_of_other_types(dtype: str, local_target: Target) -> None:
    made = model([CONV, node("Relu", ["c"])], {"x": (np.dtype(dtype), X["x"])}, {"w": W["w"].astype(dtype)})
    check(made, local_target)


def test_scalars_keep_their_rank(local_target: Target) -> None:
    nodes = [node("MatMul", ["x", "w"], ["p"]), node("HardSwish", ["p"], ["h"]), node("Div", ["h", "k"])]
    check(model(nodes, {"x": (31,)}, {"w": weights(31), "k": np.float32(3)}), local_target)


def test_branch_on_an_input(local_target: Target) -> None:
    """Control flow keeps the whole model plain."""
    info = helper.make_tensor_value_info
    branches = [
        helper.make_graph([node(op, ["c"], [op])], op, [], [info(op, TensorProto.FLOAT, [1, 16, 5, 5])])
        for op in ("Relu", "Abs")
    ]
    chosen = helper.make_node("If", ["flag"], ["y"], then_branch=branches[0], else_branch=branches[1])
    made = model([CONV, chosen], {**X, "flag": (np.bool_, ())}, W)
    made.graph.output[0].CopyFrom(info("y", TensorProto.FLOAT, [1, 16, 5, 5]))
    check(made, local_target)


@pytest.mark.parametrize("nan", [np.nan, np.inf, -np.inf])
def test_values_that_are_no_numbers(nan: float, local_target: Target) -> None:
    """NaN and infinity through activations, plain and blocked."""
    ops = ["Relu", "Sigmoid", "Tanh", "Exp", "Softmax", "LeakyRelu"]
    nodes = [node(op, ["x"], [op]) for op in ops]
    nodes += [node("Clip", ["x", "low", "high"], ["Clip"]), node("Clip", ["x", "low"], ["Low"])]
    made = model(
        nodes, {"x": (2, 16)}, {"low": np.float32(-1), "high": np.float32(1)}, [n.output[0] for n in nodes]
    )
    prepared, compiled = build(made, local_target)
    x = prepared.reference_inputs["x"].copy()
    x[0, 3] = nan
    import onnxruntime

    expected = onnxruntime.InferenceSession(made.SerializeToString()).run(None, {"x": x})
    for spec, want, got in zip(prepared.outputs, expected, run(compiled, {"x": x}), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6, err_msg=spec.name)


def test_refusal_by_the_compiler(local_target: Target) -> None:
    """What TVM refuses after import is one message too."""
    from edgetune.graph.refusal import refusing

    with (
        pytest.raises(
            UnsupportedModelError, match="cannot be lowered: TVM says 'Check failed: no such thing'"
        ),
        refusing("lowered"),
    ):
        raise RuntimeError("some listing\nCheck failed: no such thing\nmore listing")
    with pytest.raises(AttributeError), refusing("lowered"):
        raise AttributeError("a bug")


def test_gpu_has_no_blocked_layout() -> None:
    """Kernels for a GPU stay plain: they are not those of the CPU families."""
    lowered = lower(prepare(model([CONV, node("Relu", ["c"])], X, W)), load_target("jetson-orin-cuda"))
    assert lowered.tasks
    assert {task.kind for task in lowered.tasks} == {"generic"}


def test_shapes_are_the_declared_ones(local_target: Target) -> None:
    made: Any = model([node("Reshape", ["x", "s"])], {"x": (2, 6)}, {"s": np.array([3, -1])})
    _, compiled = build(made, local_target)
    assert compiled.outputs[0].shape == (3, 4)


def test_a_schedule_without_code(local_target: Target, caplog: pytest.LogCaptureFixture) -> None:
    """TVM cannot put a comparison of constants into vectors; such a kernel is compiled as it is."""
    nodes = [node("Sub", ["x", "x"], ["z"]), node("ThresholdedRelu", ["z"], ["t"]), node("Sigmoid", ["t"])]
    check(model(nodes, {"x": (2,)}), local_target)
    caplog.clear()


@pytest.mark.parametrize("op", ["Floor", "Ceil", "Round", "Sign", "ThresholdedRelu"])
def test_steps(op: str, local_target: Target) -> None:
    """Exact on exact operands, blocked too: the convolution copies its input."""
    same = np.eye(16, dtype=np.float32)[:, :, None, None]
    check(
        model([node("Conv", ["x", "w"], ["c"]), node(op, ["c"])], {"x": (1, 16, 5, 5)}, {"w": same}),
        local_target,
    )
