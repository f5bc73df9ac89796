"""Products of bytes with constant weights become the target's integer kernels, and give what ONNX Runtime gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from onnx import helper
from tvm import relax

from edgetune.graph.lower import lower
from edgetune.targets import load_target

RNG = np.random.default_rng(12)
Graph = tuple[Any, dict[str, np.ndarray], dict[str, np.ndarray]]
"""A node, its inputs, its constants."""


def some(kind: Any, *shape: int) -> np.ndarray:
    limits = np.iinfo(kind)
    return np.asarray(RNG.integers(limits.min, limits.max + 1, shape)).astype(kind)


def scalar(value: Any, kind: Any = np.float32) -> np.ndarray:
    return np.array(value, kind)


def matmul_integer(kind: Any) -> Graph:
    """The zero point is known at run time only, as after DynamicQuantizeLinear."""
    node = helper.make_node("MatMulInteger", ["a", "b", "az"], ["y"])
    return node, {"a": some(kind, 2, 3, 37), "az": some(kind)}, {"b": some(np.int8, 37, 20)}


def conv_integer(kind: Any) -> Graph:
    node = helper.make_node("ConvInteger", ["x", "w", "xz", "wz"], ["y"], pads=[1, 1, 0, 1], strides=[2, 1])
    # Weights that an int8 holds once their zero point is off.
    w = RNG.integers(10, 190, (20, 18, 3, 3)).astype(np.uint8)
    return (
        node,
        {"x": some(np.uint8, 1, 18, 6, 5), "xz": some(np.uint8)},
        {"w": w, "wz": scalar(100, np.uint8)},
    )


def depthwise(kind: Any) -> Graph:
    node = helper.make_node("ConvInteger", ["x", "w", "xz", "wz"], ["y"], pads=[1] * 4, group=18)
    weights = {"w": some(np.uint8, 18, 1, 3, 3), "wz": scalar(77, np.uint8)}
    return node, {"x": some(np.uint8, 1, 18, 6, 5), "xz": some(np.uint8)}, weights


def qlinear_matmul(kind: Any) -> Graph:
    names = ["a", "as", "az", "b", "bs", "bz", "ys", "yz"]
    weights = {
        "as": scalar(0.02), "az": some(np.uint8), "b": some(np.int8, 37, 20), "bz": np.zeros(20, np.int8),
        "bs": RNG.uniform(0.01, 0.1, 20).astype(np.float32), "ys": scalar(2.0), "yz": some(np.uint8),
    }  # fmt: skip
    return helper.make_node("QLinearMatMul", names, ["y"]), {"a": some(np.uint8, 3, 37)}, weights


def qgemm(kind: Any) -> Graph:
    names = ["a", "as", "az", "b", "bs", "bz", "c", "ys", "yz"]
    weights = {
        "as": scalar(0.02), "az": some(np.uint8), "b": some(np.int8, 20, 37), "bz": scalar(0, np.int8),
        "bs": scalar(0.03), "c": RNG.integers(-999, 999, 20).astype(np.int32), "ys": scalar(2.0), "yz": some(np.uint8),
    }  # fmt: skip
    node = helper.make_node("QGemm", names, ["y"], domain="com.microsoft", transB=1)
    return node, {"a": some(np.uint8, 3, 37)}, weights


def dynamic_quantize_matmul(kind: Any) -> Graph:
    node = helper.make_node("DynamicQuantizeMatMul", ["a", "b", "bs"], ["y"], domain="com.microsoft")
    weights = {"b": some(np.int8, 37, 20), "bs": scalar(0.03)}
    return node, {"a": RNG.uniform(-1, 2, (3, 37)).astype(np.float32)}, weights


GRAPHS = (matmul_integer, conv_integer, depthwise, qlinear_matmul, qgemm, dynamic_quantize_matmul)


# Two that move bytes to another signedness, and the one that takes the zero point off first.
@pytest.mark.parametrize("name", ["sapphirerapids", "raspberry-pi-5", "zen2"])
@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.__name__)
def test_kernel_and_values(graph: Callable[[Any], Graph], name: str, matches_onnxruntime: Any) -> None:
    node, inputs, weights = graph(np.uint8 if name == "raspberry-pi-5" else np.int8)
    if node.op_type == "MatMulInteger" and inputs["a"].dtype == np.int8:
        # ONNX Runtime takes uint8 on the left only.
        expected = {"y": _product(inputs["a"], inputs["az"], weights["b"])}
        made = matches_onnxruntime.model([node], inputs, weights, 17)
    else:
        made = matches_onnxruntime.model([node], inputs, weights, 17)
        expected = matches_onnxruntime.expected(made, inputs, precise=True)
    lowered = lower(matches_onnxruntime.prepared(made, expected), load_target(name))
    assert {"window" if graph is depthwise else "integer"} <= {task.kind for task in lowered.tasks}
    # Unscheduled, the kernels run on any machine.
    machine = relax.VirtualMachine(tvm.compile(lowered.mod, "llvm"), tvm.cpu())
    got = machine["main"](*(tvm.runtime.tensor(inputs[spec.name]) for spec in lowered.inputs)).numpy()
    apart = np.abs(got.astype(np.float64) - expected["y"])
    assert apart.max() <= {"i": 0, "u": 1, "f": 1e-4}[got.dtype.kind]


def _product(a: np.ndarray, zero: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asarray((a.astype(np.int32) - int(zero)) @ b.astype(np.int32))
