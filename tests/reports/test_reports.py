"""Public reports of models that TVM refused, crashed on or computed wrongly: here they are right, or refused in words.

The graphs are built from what the reports describe; expected values are ONNX Runtime's, or the report's own where
it gives them. The numbers are those of the issues of apache/tvm.

Of 9908 the change that mends it (#9911) says what was wrong, of 19533 and 17769 the changes that name them, of 20185
its title. What 19503, 20177 and 20192, and 13915 of microsoft/onnxruntime, say could not be found by number, by
likely words or in the repository's history; nothing here stands for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest

from edgetune.errors import EdgetuneError
from edgetune.graph.compile import compile_model
from edgetune.graph.lower import lower
from edgetune.model.prepare import prepare
from edgetune.model.session import Session
from edgetune.targets import Target
from edgetune.verify import difference
from tests.graph.support import model, node, run

RNG = np.random.default_rng(7)
NAN, INF = np.nan, np.inf


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@dataclass(frozen=True)
class Report:
    """A model of a report with the values it is run on.

    ``expected`` stands in for ONNX Runtime's outputs where the report has them. ``refused`` is part of
    the message where edgetune does not take the model. ``rtol`` alone counts where it is given.
    """

    number: int
    made: onnx.ModelProto
    values: Mapping[str, np.ndarray]
    freeze: Mapping[str, Any] = field(default_factory=dict)
    expected: np.ndarray | None = None
    refused: str = ""
    rtol: float | None = None


def one(
    number: int,
    op: str,
    values: Mapping[str, Any],
    constants: Mapping[str, Any] | None = None,
    opset: int = 17,
    freeze: Mapping[str, Any] | None = None,
    expected: Any = None,
    refused: str = "",
    rtol: float | None = None,
    order: tuple[str, ...] | None = None,
    **attributes: Any,
) -> Report:
    """A report on one operator; operands in the order of ``values`` and then ``constants``."""
    arrays = {name: np.asarray(value) for name, value in values.items()}
    names = order or (*arrays, *(constants or {}))
    made = model(
        [node(op, names, **attributes)],
        {name: (array.dtype, array.shape) for name, array in arrays.items()},
        constants,
        opset=opset,
    )
    return Report(number, made, arrays, freeze or {}, expected, refused, rtol)


def chain(
    number: int, nodes: list[onnx.NodeProto], values: Mapping[str, Any], constants: Any = None, **more: Any
) -> Report:
    """A report on several nodes; the last one makes ``y``."""
    arrays = {name: np.asarray(value) for name, value in values.items()}
    inputs = {name: (array.dtype, array.shape) for name, array in arrays.items()}
    return Report(number, model(nodes, inputs, constants), arrays, **more)


def pools() -> list[Report]:
    """The output of a pool with ceil_mode has the size that the standard's formula gives, not one more."""
    return [
        chain(
            18594,
            [
                node("MaxPool", ["x"], ["m"], kernel_shape=[2, 2], strides=[1, 1]),
                node("AveragePool", ["m"], kernel_shape=[2, 2], strides=[2, 2], pads=pads, ceil_mode=ceil,
                     count_include_pad=include),
            ],
            {"x": floats(1, 3, 18, 18)},
        )
        for pads in ([0, 0, 1, 1], [1, 1, 0, 0], [1, 1, 1, 1])
        for ceil in (0, 1)
        for include in (0, 1)
    ]  # fmt: skip


def resizes() -> list[Report]:
    x = np.arange(9, dtype=np.float32).reshape(1, 1, 3, 3)
    scales = np.array([1, 1, 2.5, 2.5], np.float32)
    roi = np.array([0, 0, 0.2, 0.1, 1, 1, 0.8, 0.9], np.float32)
    found = [
        one(18133, "Resize", {"x": floats(1, 4, 4, 4)}, {"roi": roi, "scales": np.array([1, 1, 2, 2], np.float32)},
            mode=mode, coordinate_transformation_mode=coordinates)
        for mode in ("linear", "cubic")
        for coordinates in ("half_pixel", "tf_crop_and_resize")
    ]  # fmt: skip
    found += [
        one(19570, "Resize", {"x": x}, {"roi": np.zeros(0, np.float32), "scales": scales},
            mode=mode, coordinate_transformation_mode=coordinates)
        for mode in ("nearest", "linear")
        for coordinates in ("half_pixel", "pytorch_half_pixel", "asymmetric")
    ]  # fmt: skip
    nearest = x[:, :, [0, 0, 1, 2]][:, :, :, [0, 0, 1, 2]]
    found.append(
        one(19500, "Resize", {"x": x}, {"scales": np.array([1, 1, 1.5, 1.5], np.float32)}, expected=nearest,
            order=("x", "", "scales"), mode="nearest", coordinate_transformation_mode="half_pixel",
            nearest_mode="round_prefer_floor")
    )  # fmt: skip
    return found


def convolutions() -> list[Report]:
    x = floats(1, 4, 28, 28)
    return [
        one(18601, "ConvTranspose", {"x": x}, {"w": floats(4, 6, 3, 3)}, strides=[2, 2], pads=[1] * 4,
            output_padding=[1, 1]),
        one(18600, "ConvTranspose", {"x": floats(1, 32, 9, 9)}, {"w": floats(32, 16, 3, 3), "b": floats(32)}, group=2,
            strides=[2, 2], pads=[1] * 4, output_padding=[1, 1]),
    ]  # fmt: skip


def regions() -> list[Report]:
    rois = np.array([[0.3, 0.4, 6.7, 7.9], [2, 1, 9.5, 8.2]], np.float32)
    return [
        one(19501, "RoiAlign", {"x": np.abs(floats(1, 1, 10, 10)), "rois": rois}, {"which": np.zeros(2, np.int64)},
            opset=16, mode="avg", sampling_ratio=2, output_height=4, output_width=8, spatial_scale=1.0,
            coordinate_transformation_mode=mode)
        for mode in ("half_pixel", "output_half_pixel")
    ]  # fmt: skip


def sizes_at_run_time() -> list[Report]:
    """Sizes that are computed from constants and shapes are known; sizes that are inputs must be frozen."""
    x, split = floats(6, 4), np.array([2, 4], np.int64)
    begin, end = np.array([1], np.int64), np.array([4], np.int64)
    parts = node("Split", ["x", "split"], ["y", "z"], axis=0)
    sliced = node("Slice", ["x", "begin", "end"])
    return [
        chain(
            17866, [node("Cast", ["raw"], ["split"], to=7), parts], {"x": x}, {"raw": split.astype(np.int32)}
        ),
        chain(17866, [parts], {"x": x, "split": split}, freeze={"split": [2, 4]}),
        chain(17866, [parts], {"x": x, "split": split}, refused="--freeze|freeze|depends on"),
        chain(17535, [sliced], {"x": x, "begin": begin, "end": end}, freeze={"begin": [1], "end": [4]}),
        chain(17535, [sliced], {"x": x, "begin": begin, "end": end}, refused="--freeze|freeze|depends on"),
        chain(
            17535,
            [node("Shape", ["u"], ["s"]), node("Gather", ["s", "zero"], ["end"]), sliced],
            {"x": x, "u": floats(3, 2)},
            {"begin": begin, "zero": np.array([0], np.int64)},
        ),
        chain(
            17770,
            [node("Shape", ["x"], ["s"]), node("Slice", ["s", "begin", "end"])],
            {"x": floats(2, 3, 4, 5)},
            {"begin": begin, "end": end},
        ),
    ]


def arithmetic() -> list[Report]:
    tiny = np.array([3e-12, 5e-20, -7e-15, 0.4], np.float32)
    large = np.array([88.85, 89.0, 89.2, -88.95], np.float32)
    nans = np.array([[NAN, 1, NAN, -2], [2, NAN, 0, 3]], np.float32)
    axis = {"axes": np.array([1], np.int64)}
    ones = np.array([1], np.int64)
    found = [
        # The report shows its graph as a picture; 0 in place of -1 is division that rounds towards zero.
        one(17835, "Div", {"x": np.array(-5, np.int64)}, {"d": np.array(518, np.int64)}, expected=np.array(0)),
        one(17835, "Div", {"x": np.arange(-6, 6, dtype=np.int64)}, {"d": np.array(4, np.int64)}),
        one(19562, "Erf", {"x": tiny}, rtol=1e-3),
        one(19559, "Sinh", {"x": large}, rtol=1e-4),
        one(19559, "Cosh", {"x": large}, rtol=1e-4),
        one(19542, "Cast", {"x": np.array([50, -50, 127, -128, 3.9, -3.9], np.float32)}, to=onnx.TensorProto.INT8),
        one(19572, "Relu", {"x": nans}),
        one(19572, "ReduceMax", {"x": nans[:, :1]}, axis, opset=18),
        one(18750, "Gelu", {"x": floats(3, 5)}, opset=20, approximate="tanh"),
        one(18750, "Gelu", {"x": floats(3, 5)}, opset=20),
        one(18135, "CumSum", {"x": floats(3, 4)}, {"axis": np.array(1, np.int64)}, reverse=1),
        one(18135, "CumSum", {"x": floats(3, 4)}, {"axis": np.array(1, np.int64)}, reverse=1, exclusive=1),
        one(18598, "PRelu", {"x": floats(1, 4, 4, 4)}, {"slope": floats(4, 1, 1)}),
        one(18598, "PRelu", {"x": floats(1, 4, 4, 4)}, {"slope": floats(1, 4, 4)}),
        one(18598, "PRelu", {"x": floats(1, 4, 4, 4)}, {"slope": floats(4)}),
        one(18030, "Less", {"x": floats(1, 5), "z": floats(4, 1, 1)}),
        one(18136, "LayerNormalization", {"x": floats(1, 3, 4, 4)}, {"w": floats(4)}, axis=-1),
        one(18136, "LayerNormalization", {"x": floats(1, 3, 4, 4)}, {"w": floats(4), "b": floats(4)}, axis=2),
        one(19691, "LayerNormalization", {"x": floats(2, 3, 4, 8)}, {"w": floats(8)}),
        one(17966, "LayerNormalization", {"x": floats(2, 3)}, {"w": floats(3)}),
        one(18703, "BatchNormalization", {"x": floats(2, 3, 4, 4)},
            {"s": floats(3), "b": floats(3), "m": floats(3), "v": np.abs(floats(3))}, opset=15),
        chain(18032, [node("ReduceSum", ["x", "axes"], ["s"]), node("DepthToSpace", ["s"], blocksize=2)],
              {"x": floats(1, 4, 5, 5)}, {"axes": np.array([2, 3], np.int64)}),
        # Folded, a comparison must stay bool; the output is one of a constant and of the input.
        chain(20282, [node("Less", ["a", "b"], ["c"]), node("Where", ["c", "x", "a"])],
              {"x": floats(3)}, {"a": floats(3), "b": floats(3)}),
        chain(20282, [node("Identity", ["x"], ["u"]), node("Less", ["a", "b"])], {"x": ones},
              {"a": floats(3), "b": floats(3)}),
    ]  # fmt: skip
    for fmod, a, b in ((0, -5, 3), (1, -5.5, 3.0), (0, 5, -3), (1, 5.5, -3.0)):
        dtype = np.float32 if fmod else np.int64
        constants = {"a": np.array([a], dtype), "b": np.array([b], dtype)}
        nodes = [node("Mod", ["a", "b"], ["m"], fmod=fmod), node("Add", ["m", "x"])]
        found.append(chain(20170, nodes, {"x": np.zeros(1, dtype)}, constants))
        found.append(one(20170, "Mod", {"a": np.array([a], dtype), "b": np.array([b], dtype)}, fmod=fmod))
    return found


def negative_indices() -> list[Report]:
    """Indices count from the end where they are negative, whether they are constants or inputs."""
    x, updates = floats(3, 4), floats(2, 4)
    minus = -np.ones((3, 4), np.int64)
    pairs, rows = np.array([[-1, -1], [0, -2]], np.int64), np.array([[-1], [0]], np.int64)
    depth = {"depth": np.array(5, np.int64), "values": np.array([0, 1], np.float32)}
    return [
        one(19531, "Gather", {"x": floats(5), "i": np.array([-1, -3, 0], np.int64)}, axis=0),
        one(19531, "Gather", {"x": floats(5)}, {"i": np.array([-1, -3, 0], np.int64)}, axis=0),
        one(20217, "GatherElements", {"x": x, "i": minus}, axis=1),
        one(20217, "GatherND", {"x": x, "i": pairs}),
        one(20217, "ScatterND", {"x": x, "i": rows, "u": updates}),
        one(
            20217,
            "ScatterElements",
            {"x": x, "i": minus, "u": floats(3, 4)},
            axis=0,
            reduction="add",
            opset=18,
        ),
        one(20217, "OneHot", {"i": np.array([0, 2, 4, -1], np.int64)}, depth),
    ]


def titles() -> list[Report]:
    """Reports on one operator each."""
    inf = np.array([NAN, -3, INF, -INF, 0.5], np.float32)
    low, high = np.array(-1, np.float32), np.array(2, np.float32)
    nan = np.array(NAN, np.float32)
    found = [one(18602, op, {"x": floats(1, 3, 6, 5)}, opset=13, axis=axis, keepdims=keep, select_last_index=last)
             for op in ("ArgMax", "ArgMin") for axis, keep, last in ((0, 0, 0), (3, 1, 1), (-2, 1, 0))]  # fmt: skip
    found += [
        one(18602, "ArgMax", {"x": floats(6)}, opset=13, axis=0, keepdims=0),
        one(18602, "ArgMin", {"x": np.arange(12, dtype=np.int32).reshape(3, 4)}, opset=13, axis=1),
        one(18595, "Hardmax", {"x": floats(2, 3, 4)}, opset=13),
        one(18595, "Hardmax", {"x": floats(2, 3, 4)}, opset=13, axis=1),
        one(18603, "LayerNormalization", {"x": floats(1, 3, 4, 4)}, {"w": floats(3, 4, 4), "b": floats(3, 4, 4)},
            axis=1),
        one(18603, "LayerNormalization", {"x": floats(4), "w": floats(4)}, axis=0),
        one(18603, "LayerNormalization", {"x": floats(2, 4)}, {"w": floats(2, 4)}, axis=0, epsilon=0.1),
        one(19533, "Clip", {"x": inf}, {"low": low, "high": high}, opset=13),
        one(19533, "Clip", {"x": inf, "low": low, "high": high}, opset=13),
        one(17769, "Expand", {"x": floats(25)}, {"shape": np.array([1, 1, 1, 56])}, refused="[Ee]xpand|broadcast"),
        one(17769, "Expand", {"x": floats(1, 25)}, {"shape": np.array([2, 25])}),
        one(20185, "Squeeze", {"x": floats(2, 1, 3)}, {"axes": np.array([0])}, refused="[Ss]queeze|[Dd]imension"),
        one(20185, "Squeeze", {"x": floats(1, 2, 1, 3)}, {"axes": np.array([0, -2])}),
        *(one(9908, "MatMul", {"a": floats(*a)}, {"b": floats(*b)})
          for a, b in (((4, 8, 5, 6), (1, 8, 6, 3)), ((4, 1, 5, 6), (8, 6, 3)), ((1, 8, 5, 6), (4, 1, 6, 3)))),
        one(9908, "MatMul", {"a": floats(4, 8, 5, 6), "b": floats(1, 8, 6, 3)}),
        # Of the same series of reports.
        one(20144, "Flatten", {"x": floats(2, 3)}, axis=3, refused="axis"),
        one(20146, "Mean", {"x": floats(2, 3)}, opset=13),
        one(20148, "PRelu", {"x": floats(1, 4, 3, 3)}, {"slope": floats(4, 1, 1)}, opset=16),
        one(20150, "Pad", {"x": floats(2, 3, 4)}, {"pads": np.array([1, 2]),
            "axes": np.array([-1])}, opset=19, mode="wrap", order=("x", "pads", "", "axes")),
        one(20151, "Reshape", {"x": floats(2, 3, 4)}, {"shape": np.array([0, -1])}, opset=14),
        # ONNX Runtime has no Softplus of float64.
        one(20184, "Softplus", {"x": np.array([21, 25, 29], np.float64)}, refused="Softplus"),
        one(20184, "Softplus", {"x": np.array([-30, -9, -1, 0, 4, 14, 21, 31, 99], np.float32)}),
        one(18751, "Split", {"x": floats(7, 2)}, opset=18, axis=0, num_outputs=1),
        one(18752, "Tile", {"x": floats(2, 3), "repeats": np.array([2, 3])}, freeze={"repeats": [2, 3]}),
        chain(20146, [node("Mean", ["a", "b"], ["m"]), node("Add", ["m", "x"])], {"x": floats(2, 3)},
              {"a": floats(2, 3), "b": floats(1, 3)}),
        chain(20186, [node("Shape", ["x"], ["s"]), node("Where", ["c", "s", "z"], ["w"]),
                      node("Expand", ["x", "w"])],
              {"x": floats(1, 3)}, {"c": np.array([False, True]), "z": np.array([4], np.int64)}),
    ]  # fmt: skip
    # A bound that is NaN is none in ONNX Runtime, and makes NaN in the standard's reference.
    found.append(one(19533, "Clip", {"x": floats(5)}, {"low": nan, "high": high}, opset=13))
    return found


REPORTS = [
    *titles(),
    *negative_indices(),
    *pools(),
    *resizes(),
    *convolutions(),
    *regions(),
    *sizes_at_run_time(),
    *arithmetic(),
]


@pytest.mark.parametrize("report", REPORTS, ids=lambda r: f"{r.number}-{r.made.graph.node[-1].op_type}")
def test_right_or_refused_in_one_message(report: Report, local_target: Target) -> None:
    if report.refused:
        with pytest.raises(EdgetuneError, match=report.refused):
            lower(prepare(report.made, freeze=report.freeze), local_target)
        return
    prepared = prepare(report.made, freeze=report.freeze)
    compiled = compile_model(lower(prepared, local_target), (), local_target)
    given = {spec.name: report.values[spec.name] for spec in prepared.inputs}
    outputs = dict(zip([spec.name for spec in prepared.outputs], run(compiled, given, 0), strict=True))
    expected = Session(report.made).run(report.values)
    for name, value in expected.items():
        if report.expected is not None:
            value = report.expected.astype(value.dtype)
        found = difference(
            name, value, outputs[name], rtol=report.rtol, atol=None if report.rtol is None else 0.0
        )
        assert found.passed, found.describe()
