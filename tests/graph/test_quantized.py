"""Models quantised with ONNX Runtime's tools: integers all the way, with the values of ONNX Runtime and NumPy."""

from __future__ import annotations

import functools
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from edgetune.graph.compile import compile_model
from edgetune.graph.joining import JOINS_ATTR
from edgetune.graph.lower import Lowered, lower
from edgetune.kernels.dots import best_dot
from edgetune.kernels.registry import default_schedule
from edgetune.model.prepare import prepare
from edgetune.records import PreparedModel
from edgetune.targets import Target, load_target
from tests.graph.support import build, model, node, run, weights
from tests.kernels.test_spaces import check as check_spaces

SHAPE = (1, 3, 20, 18)


def network() -> onnx.ModelProto:
    """First layer, depthwise, pointwise, residual sum, pooling, concatenation, a product."""
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c1"], strides=[2, 2], pads=[1, 1, 1, 1]), node("Relu", ["c1"], ["r1"]),
        node("Conv", ["r1", "w2", "b2"], ["c2"], group=24, pads=[1, 1, 1, 1]), node("Relu", ["c2"], ["r2"]),
        node("Conv", ["r2", "w3", "b3"], ["c3"]), node("Add", ["c3", "r1"], ["a3"]), node("Relu", ["a3"], ["r3"]),
        node("MaxPool", ["r3"], ["p3"], kernel_shape=[3, 3], strides=[2, 2]),
        node("Conv", ["p3", "w4"], ["c4"], pads=[1, 1, 1, 1]), node("Conv", ["p3", "w5"], ["c5"], group=2),
        node("Concat", ["c4", "c5"], ["j"], axis=1),
        node("Conv", ["j", "w6"], ["c6"], dilations=[2, 2], pads=[2, 2, 2, 2]),
        node("GlobalAveragePool", ["c6"], ["g"]), node("Flatten", ["g"], ["f"]),
        node("Gemm", ["f", "w7", "b7"], ["y"], transB=1),
    ]  # fmt: skip
    shapes = {
        "w1": (24, 3, 3, 3), "w2": (24, 1, 3, 3), "w3": (24, 24, 1, 1), "w4": (16, 24, 3, 3), "w5": (16, 12, 1, 1),
        "w6": (20, 32, 3, 3), "w7": (10, 20), "b1": (24,), "b2": (24,), "b3": (24,), "b7": (10,),
    }  # fmt: skip
    return model(nodes, {"x": SHAPE}, {name: weights(*shape) for name, shape in shapes.items()})


def quantise(made: onnx.ModelProto, folder: Path, form: str, activation: str, weight: str) -> onnx.ModelProto:
    from onnxruntime import quantization

    class Random(quantization.CalibrationDataReader):
        def __init__(self) -> None:
            rng = np.random.default_rng(0)
            self.batches = iter([{"x": rng.uniform(-1, 1, SHAPE).astype(np.float32)} for _ in range(4)])

        def get_next(self) -> dict | None:
            return next(self.batches, None)

    source, out = folder / "float.onnx", folder / "quantised.onnx"
    onnx.save(made, source)
    kinds = {"u8": quantization.QuantType.QUInt8, "s8": quantization.QuantType.QInt8}
    quantization.quantize_static(
        str(source), str(out), Random(), quant_format=quantization.QuantFormat[form], per_channel=weight == "s8",
        activation_type=kinds[activation], weight_type=kinds[weight],
        # With weights of 8 bits ONNX Runtime's QLinearConv saturates on processors without dot-product instructions.
        reduce_range=(form, activation, weight) == ("QOperator", "u8", "s8"),
    )  # fmt: skip
    return onnx.load(out)


@functools.cache
def prepared_network(form: str, activation: str, weight: str) -> PreparedModel:
    """The network, quantised once for all tests that need it in this form."""
    with tempfile.TemporaryDirectory() as folder:
        return prepare(quantise(network(), Path(folder), form, activation, weight))


@functools.cache
def lowered_network(form: str, activation: str, weight: str, target: Target) -> Lowered:
    return lower(prepared_network(form, activation, weight), target)


@pytest.mark.parametrize(
    ("form", "activation", "weight"),
    [
        ("QDQ", "u8", "s8"),
        ("QDQ", "s8", "s8"),
        ("QDQ", "u8", "u8"),
        ("QOperator", "u8", "s8"),
        ("QOperator", "s8", "s8"),
    ],
)
def test_network(form: str, activation: str, weight: str, local_target: Target) -> None:
    prepared = prepared_network(form, activation, weight)
    lowered = lowered_network(form, activation, weight, local_target)
    compiled = compile_model(lowered, (), local_target)
    kinds = Counter(task.kind for task in lowered.tasks)
    assert kinds["integer"] >= 5
    assert kinds["window"] == 2
    assert kinds["contraction"] == 0
    # The output is quantised too: what is one step off on the way may move it by a step or two.
    (expected,) = prepared.reference_outputs.values()
    step = np.diff(np.unique(expected)).min()
    assert np.abs(run(compiled, prepared.reference_inputs)[0] - expected).max() <= 2.01 * step


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize(("shape", "out", "options"), [
    ((1, 3, 9, 10), 12, {"strides": [2, 1], "pads": [1, 0, 1, 2]}),
    ((2, 20, 7, 7), 17, {"pads": [1, 1, 1, 1]}),
    ((1, 32, 6, 6), 32, {"group": 4, "dilations": [2, 2], "pads": [2, 2, 2, 2]}),
    ((1, 20, 8, 5), 20, {"group": 20, "pads": [1, 1, 1, 1]}),
    ((1, 64, 5, 5), 40, {"kernel": 1}),
])  # fmt: skip
def test_convolution_is_exact(
    kind: type, shape: tuple, out: int, options: dict, local_target: Target
) -> None:
    """QLinearConv bit for bit: extreme weights and inputs, zero points, and halves that are rounded to even."""
    rng = np.random.default_rng(3)
    size, limits = options.pop("kernel", 3), np.iinfo(kind)
    w = rng.choice(
        np.array([-128, -127, 127, 64, -3, 0], np.int8),
        (out, shape[1] // options.get("group", 1), size, size),
    )
    # Powers of two: sums end in exact halves.
    constants = {
        "w": w, "xs": np.float32(0.5), "xz": kind(limits.max // 3),
        "ws": np.float32(2.0**-5) * np.ones(out, np.float32),
        "wz": np.zeros(out, np.int8), "ys": np.float32(64), "yz": kind(limits.max // 4),
        "b": rng.integers(-5000, 5000, out).astype(np.int32),
    }  # fmt: skip
    names = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"]
    graph = helper.make_graph(
        [helper.make_node("QLinearConv", names, ["y"], **options)], "one",
        [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(np.dtype(kind)), shape)],
        [onnx.ValueInfoProto(name="y")], [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    _, compiled = build(onnx.shape_inference.infer_shapes(made), local_target)
    x = rng.integers(limits.min, limits.max + 1, shape).astype(kind)
    floats = onnx.helper.make_node("Conv", ["x", "w", "b"], ["y"], **options)
    reference = ReferenceEvaluator(floats)
    sums = reference.run(None, {
        "x": x.astype(np.float64) - int(constants["xz"]), "w": w.astype(np.float64),
        "b": constants["b"].astype(np.float64),
    })[0]  # fmt: skip
    steps = np.rint(sums * (0.5 * 2.0**-5 / 64)) + int(constants["yz"])
    (got,) = run(compiled, {"x": x})
    np.testing.assert_array_equal(got, np.clip(steps, limits.min, limits.max).astype(kind))


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize("scales", [(0.1, 0.3, 0.2), (0.25, 0.7, 0.25), (0.3, 0.3, 0.3), (0.3, 0.3, 0.45)])
@pytest.mark.parametrize("read_twice", [False, True])
def test_joined_tensors_are_exact(
    kind: type, scales: tuple[float, float, float], read_twice: bool, local_target: Target
) -> None:
    """Every byte, from one scale to another, as float32 arithmetic has it; nothing is left for the joining kernel."""
    limits = np.iinfo(kind)
    origins = [limits.max // 3, limits.max // 2, limits.max // 3]
    constants = {
        "w": np.eye(16, dtype=np.int8).reshape(16, 16, 1, 1), "v": np.eye(32, dtype=np.int8).reshape(32, 32, 1, 1),
        "one": np.float32(1), "none": np.zeros((), np.int8),
        **{f"s{i}": np.float32(scale) for i, scale in enumerate(scales)},
        **{f"z{i}": np.asarray(zero, kind) for i, zero in enumerate(origins)},
    }  # fmt: skip
    nodes = [node("DequantizeLinear", ["w", "one", "none"], ["fw"])]
    for i in range(2):
        step = [f"s{i}", f"z{i}"]
        nodes += [
            node("DequantizeLinear", [f"x{i}", *step], [f"f{i}"]), node("Conv", [f"f{i}", "fw"], [f"c{i}"]),
            node("QuantizeLinear", [f"c{i}", *step], [f"q{i}"]), node("DequantizeLinear", [f"q{i}", *step], [f"d{i}"]),
        ]  # fmt: skip
    # What reads the joined bytes is a convolution again, which leaves them as they are.
    nodes += [
        node("Concat", ["d0", "d1"], ["j"], axis=1), node("QuantizeLinear", ["j", "s2", "z2"], ["q"]),
        node("DequantizeLinear", ["q", "s2", "z2"], ["d"]), node("DequantizeLinear", ["v", "one", "none"], ["fv"]),
        node("Conv", ["d", "fv"], ["c"]), node("QuantizeLinear", ["c", "s2", "z2"], ["y"]),
    ]  # fmt: skip
    every = np.arange(limits.min, limits.max + 1).astype(kind).reshape(1, 16, 4, 4)
    given = {"x0": every, "x1": every[:, ::-1].copy()}
    outputs = ["y", "q0"] if read_twice else ["y"]
    made = model(nodes, {name: (kind, x.shape) for name, x in given.items()}, constants, outputs)
    prepared, compiled = build(made, local_target)
    lowered = lower(prepared, local_target)
    joining = [func for func in lowered.mod.functions.values() if func.attrs and JOINS_ATTR in func.attrs]
    assert len(joining) == 1
    floats = [
        (x.astype(np.float32) - np.float32(zero)) * np.float32(scale)
        for x, zero, scale in zip(given.values(), origins[:2], scales[:2], strict=True)
    ]
    steps = np.rint(np.concatenate(floats, axis=1) / np.float32(scales[2])) + origins[2]
    got = run(compiled, given)
    np.testing.assert_array_equal(got[0], np.clip(steps, limits.min, limits.max).astype(kind))
    if read_twice:
        np.testing.assert_array_equal(got[1], every)


def test_spaces(local_target: Target) -> None:
    fits: Counter[bool] = Counter()
    tasks = lowered_network("QDQ", "u8", "s8", local_target).tasks
    for index, task in enumerate(task for task in tasks if task.kind == "integer"):
        fits += check_spaces(task, local_target, index % 2)
    assert fits[True] > 9 * fits[False]


@pytest.mark.parametrize(("name", "instruction"), [
    ("zen2", "vpmaddwd"), ("skylake-avx512", "vpmaddwd"), ("sapphirerapids", "vpdpbusd"), ("alderlake", "vpdpbusd"),
    ("raspberry-pi-5", "sdot"),
])  # fmt: skip
@pytest.mark.parametrize("activation", ["u8", "s8"])
def test_instructions(name: str, instruction: str, activation: str) -> None:
    target = load_target(name)
    lowered = lower(prepared_network("QDQ", activation, "s8"), target)
    tasks = [task for task in lowered.tasks if task.kind == "integer"]
    assert len(tasks) >= 6
    # All of them name the intrinsic, so one shows which instruction it becomes.
    assert all(best_dot(target, np.zeros(1, np.int8)).intrinsic in task.ir for task in tasks)
    schedule = default_schedule(tvm.ir.load_json(tasks[0].ir), target)
    code = tvm.tirx.build(schedule.mod, target=target.tvm()).inspect_source("s")
    assert instruction in code
    assert "vpmaddubsw" not in code
