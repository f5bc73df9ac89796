"""Small ONNX models, compiled with default schedules and compared with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgetune.graph.compile import compile_model
from edgetune.graph.execute import loaded
from edgetune.graph.lower import lower
from edgetune.model.prepare import prepare
from edgetune.records import Choice, CompiledModel, PreparedModel
from edgetune.targets import Target
from edgetune.verify import difference

OPSET = 17
RNG = np.random.default_rng(20)

Shape = Sequence[int]


def weights(*shape: int, scale: float = 1.0) -> np.ndarray:
    """Normally distributed float32 values."""
    return (RNG.standard_normal(shape) * scale).astype(np.float32)


def node(
    op: str, inputs: Sequence[str], outputs: Sequence[str] = ("y",), **attributes: Any
) -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), list(outputs), **attributes)


def tensor_type(dtype: Any) -> int:
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Any],
    constants: Mapping[str, np.ndarray] | None = None,
    outputs: Sequence[str] = ("y",),
    opset: int = OPSET,
) -> onnx.ModelProto:
    """A model of these nodes; an input is a shape (float32) or a pair of dtype and shape.

    Types of outputs come from shape inference.
    """
    infos = []
    for name, spec in inputs.items():
        dtype, shape = (
            spec if isinstance(spec, tuple) and spec and not isinstance(spec[0], int) else (np.float32, spec)
        )
        infos.append(helper.make_tensor_value_info(name, tensor_type(dtype), list(shape)))
    graph = helper.make_graph(
        list(nodes),
        "small",
        infos,
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return _with_output_types(made)


def _with_output_types(made: onnx.ModelProto) -> onnx.ModelProto:
    inferred = onnx.shape_inference.infer_shapes(made)
    types = {v.name: v for v in [*inferred.graph.value_info, *inferred.graph.input]}
    for constant in made.graph.initializer:
        types[constant.name] = helper.make_tensor_value_info(
            constant.name, constant.data_type, list(constant.dims)
        )
    for output, found in zip(made.graph.output, inferred.graph.output, strict=True):
        known = found if found.type.HasField("tensor_type") else types.get(output.name)
        if known is not None:
            output.type.CopyFrom(known.type)
        else:
            output.type.tensor_type.elem_type = TensorProto.FLOAT
    return made


def build(
    made: onnx.ModelProto, target: Target, choices: Sequence[Choice] = ()
) -> tuple[PreparedModel, CompiledModel]:
    prepared = prepare(made)
    return prepared, compile_model(lower(prepared, target), choices, target)


def run(compiled: CompiledModel, inputs: Mapping[str, np.ndarray], repeats: int = 5) -> list[np.ndarray]:
    """Outputs of a library for the machine of the test."""
    function = loaded(compiled)
    arrays = [inputs[spec.name] for spec in compiled.inputs]
    first = function(arrays)
    for _ in range(repeats):
        # Threads that write what others read show up as results that change.
        for one, other in zip(first, function(arrays), strict=True):
            np.testing.assert_array_equal(one, other)
    return first


def mismatches(
    prepared: PreparedModel, outputs: Sequence[np.ndarray], rtol: float | None, part: float
) -> list[str]:
    """What differs from ONNX Runtime by more than ``rtol`` and ``part`` of the largest value."""
    assert len(outputs) == len(prepared.outputs)
    found = []
    for spec, actual in zip(prepared.outputs, outputs, strict=True):
        expected = prepared.reference_outputs[spec.name]
        atol = None
        if expected.dtype.kind == "f" and expected.dtype != np.float16:
            finite = expected[np.isfinite(expected)]
            atol = part * float(np.abs(finite).max(initial=1e-3))
        result = difference(spec.name, expected, actual, rtol=rtol if atol is not None else None, atol=atol)
        if not result.passed:
            found.append(result.describe())
    return found


def check(
    made: onnx.ModelProto, target: Target, rtol: float = 1e-4, part: float = 1e-5, repeats: int = 5
) -> PreparedModel:
    """Compile, run, compare; the prepared model on success."""
    prepared, compiled = build(made, target)
    outputs = run(compiled, prepared.reference_inputs, repeats)
    found = mismatches(prepared, outputs, rtol, part)
    assert not found, "; ".join(found)
    return prepared
