"""Training-mode BatchNormalization by elementary operators."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.parser import parse_model

from edgetune.model.passes.decompose_batch_norm import decompose_batch_norm


def model_of(shape: list[int], dtype: str, opset: int, attributes: str, outputs: int = 3):
    channels = shape[1]
    vectors = ", ".join(f"{dtype}[{channels}] {name}" for name in ("s", "b", "m", "v"))
    results = ", ".join(
        [f"{dtype}[n] y"[:0] + f"{dtype}{shape} y", f"{dtype}[{channels}] rm", f"{dtype}[{channels}] rv"][
            :outputs
        ]
    )
    names = ", ".join(["y", "rm", "rv"][:outputs])
    return parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}]> g ({dtype}{shape} x, {vectors}) => ({results}) '
        f"{{ {names} = BatchNormalization<training_mode = 1{attributes}>(x, s, b, m, v) }}"
    )


def feeds(shape: list[int], dtype: type) -> dict:
    rng = np.random.default_rng(0)
    vectors = {name: rng.random(shape[1]) + 0.5 for name in ("s", "b", "m", "v")}
    return {"x": rng.standard_normal(shape).astype(dtype), **{k: a.astype(dtype) for k, a in vectors.items()}}


@settings(max_examples=25, deadline=None)
@given(
    shape=st.lists(st.integers(2, 5), min_size=2, max_size=4),
    dtype=st.sampled_from(["float", "double"]),
    opset=st.sampled_from([15, 17, 18]),
    epsilon=st.sampled_from([1e-5, 1e-2]),
    momentum=st.sampled_from([0.9, 0.5]),
)
def test_values(
    same_values, shape: list[int], dtype: str, opset: int, epsilon: float, momentum: float
) -> None:
    model = model_of(shape, dtype, opset, f", epsilon = {epsilon}, momentum = {momentum}")
    result = decompose_batch_norm(model)
    assert all(node.op_type != "BatchNormalization" for node in result.model.graph.node)
    values = feeds(shape, {"float": np.float32, "double": np.float64}[dtype])
    same_values(model, result.model, values, rtol=1e-4, atol=1e-5)


def test_inference_mode_stays() -> None:
    model = parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[2, 3] x, float[3] s) => (float[2, 3] y) { y = BatchNormalization(x, s, s, s, s) }"""
    )
    assert not decompose_batch_norm(model).changed


@pytest.mark.parametrize("shape", [[2, 3, 4]])
def test_statistics_that_nobody_reads(same_values, shape: list[int]) -> None:
    model = model_of(shape, "float", 17, "")
    del model.graph.output[1:]
    result = decompose_batch_norm(model).model
    same_values(model, result, feeds(shape, np.float32), rtol=1e-4, atol=1e-5)
