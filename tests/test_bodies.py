"""Operators that ONNX Runtime runs on GPUs alone: compiled, they compute what their documentation says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model

import edgetune

RNG = np.random.default_rng(3)


def draw(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def model_of(
    signature: str, call: str, weights: dict[str, np.ndarray], opset: int = 17, ir: int = 8
) -> onnx.ModelProto:
    head = f'<ir_version: {ir}, opset_import: ["": {opset}, "com.microsoft": 1]>'
    model = parse_model(f"{head} g {signature} {{ {call} }}")
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    return model


def group_norm(
    x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, groups: int, epsilon: float, silu: bool, last: bool
) -> np.ndarray:
    """y = gamma * (x - mean) / sqrt(variance + epsilon) + beta within each group, then y * sigmoid(y)."""
    x = x.astype(np.float64)
    planes = np.moveaxis(x, -1, 1) if last else x
    parts = planes.reshape(len(x), groups, -1)
    normal = (parts - parts.mean(-1, keepdims=True)) / np.sqrt(parts.var(-1, keepdims=True) + epsilon)
    y = normal.reshape(planes.shape) * gamma.reshape(-1, 1, 1) + beta.reshape(-1, 1, 1)
    y = y / (1 + np.exp(-y)) if silu else y
    return np.moveaxis(y, 1, -1) if last else y


@pytest.mark.parametrize(
    ("kind", "shape", "attributes", "silu", "last", "ir"),
    [
        ("float", (2, 5, 3, 8), "groups = 4, activation = 1", True, True, 8),
        (
            "float",
            (1, 6, 4, 5),
            "groups = 3, activation = 0, channels_last = 0, epsilon = 0.5",
            False,
            False,
            7,
        ),
        ("float16", (1, 4, 4, 8), "groups = 2, activation = 1", True, True, 8),
    ],
    ids=["channels last", "channels first", "float16"],
)
def test_group_norm(
    kind: str, shape: tuple[int, ...], attributes: str, silu: bool, last: bool, ir: int, tmp_path: Path
) -> None:
    channels = shape[-1] if last else shape[1]
    gamma, beta = draw(channels), draw(channels)
    sizes = ", ".join(map(str, shape))
    model = model_of(
        f"({kind}[{sizes}] x) => ({kind}[{sizes}] y)",
        f"y = com.microsoft.GroupNorm <{attributes}> (x, gamma, beta)",
        {"gamma": gamma, "beta": beta},
        ir=ir,
    )
    bundle = edgetune.compile(model, out=tmp_path / "bundle").bundle
    x = (3 * draw(*shape) + 1).astype(np.float32 if kind == "float" else np.float16)
    got = edgetune.load(bundle).run({"x": x})["y"]
    groups = int(attributes.split("groups = ")[1][0])
    expected = group_norm(x, gamma, beta, groups, 0.5 if "epsilon" in attributes else 1e-5, silu, last)
    assert got.dtype == x.dtype
    tolerance = 2e-5 if kind == "float" else 4e-3
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)
    assert edgetune.compare(bundle, model=model).passed


@pytest.mark.parametrize("last", [True, False], ids=["as the tool writes them", "as documented"])
def test_nhwc_conv(last: bool, tmp_path: Path) -> None:
    """Conv on the planes of the image, whichever way the weights lie."""
    weight, bias, x = draw(6, 2, 3, 3), draw(6), draw(1, 9, 7, 4)
    flags = "<kernel_shape = [3, 3], strides = [2, 1], pads = [1, 1, 1, 1], group = 2>"
    fused = model_of(
        "(float[1, 9, 7, 4] x) => (float[1, 5, 7, 6] y)",
        f"y = com.microsoft.NhwcConv {flags} (x, w, b)",
        {"w": np.ascontiguousarray(weight.transpose(0, 2, 3, 1)) if last else weight, "b": bias},
    )
    plain = model_of(
        "(float[1, 4, 9, 7] x) => (float[1, 6, 5, 7] y)",
        f"y = Conv {flags} (x, w, b)",
        {"w": weight, "b": bias},
    )
    session = onnxruntime.InferenceSession(plain.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": np.ascontiguousarray(x.transpose(0, 3, 1, 2))})
    got = edgetune.load(edgetune.compile(fused, out=tmp_path / "bundle").bundle).run({"x": x})["y"]
    np.testing.assert_allclose(got, expected.transpose(0, 2, 3, 1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("call", "weight", "opset"),
    [
        ("y = com.microsoft.NhwcConv <kernel_shape = [3, 3]> (x, w)", (4, 3, 3, 3), 17),
        ("y = com.microsoft.GroupNorm <groups = 3, activation = 0> (x, w, w)", (3,), 14),
        ("y = com.microsoft.GroupNorm <groups = 3, activation = 7> (x, w, w)", (3,), 17),
    ],
    ids=["weights that may lie either way", "an old operator set", "an unknown activation"],
)
def test_in_doubt_it_is_refused(call: str, weight: tuple[int, ...], opset: int) -> None:
    model = model_of("(float[1, 5, 5, 3] x) => (float[a, b, c, d] y)", call, {"w": draw(*weight)}, opset)
    found = edgetune.check(model)
    assert not found.supported
    assert "on GPUs alone" in found.unsupported[0].reason
