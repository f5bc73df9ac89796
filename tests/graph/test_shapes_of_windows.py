"""Convolutions and pooling at the edges of what their layouts and tiles expect."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgetune.targets import Target
from tests.graph.support import check, model, node, weights

pytestmark = pytest.mark.usefixtures("no_fallback")


def conv(shape: tuple[int, ...], out: int, kernel: tuple[int, ...], group: int = 1, **attributes: Any) -> Any:
    w = weights(out, shape[1] // group, *kernel, scale=(shape[1] // group * np.prod(kernel)) ** -0.5)
    nodes = [node("Conv", ["x", "w", "b"], ["c"], group=group, **attributes), node("Relu", ["c"])]
    return model(nodes, {"x": shape}, {"w": w, "b": weights(out)})


@pytest.mark.parametrize(
    ("shape", "out", "kernel", "options"),
    [
        ((1, 3, 13, 11), 17, (3, 3), {"pads": [1, 1, 1, 1]}),  # rows of 11 computed as 12: see the next test
        ((3, 33, 7, 13), 40, (3, 3), {"pads": [0, 1, 2, 0]}),
        ((1, 16, 1, 17), 16, (1, 3), {"pads": [0, 1, 0, 1]}),
        ((1, 16, 17, 1), 24, (3, 1), {"pads": [1, 0, 1, 0]}),
        ((2, 32, 1, 1), 32, (1, 1), {}),
        ((1, 20, 9, 9), 31, (2, 4), {"strides": [2, 3], "dilations": [2, 1], "pads": [3, 0, 0, 3]}),
        ((1, 8, 15, 15), 8, (7, 7), {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
        ((1, 1, 5, 5), 1, (5, 5), {}),
    ],
)  # fmt: skip
def test_convolution(
    shape: tuple[int, ...], out: int, kernel: tuple[int, ...], options: dict[str, Any], local_target: Target
) -> None:
    check(conv(shape, out, kernel, **options), local_target)


@pytest.mark.parametrize("width", [7, 11, 13])
def test_threads_write_different_columns(width: int, local_target: Target) -> None:
    """A row that is computed wider than it is must not write the next row's first column."""
    check(conv((1, 3, 13, width), 24, (3, 3), pads=[1, 1, 1, 1]), local_target.with_threads(2), repeats=2000)


@pytest.mark.parametrize(
    ("channels", "out", "group"),
    [(32, 32, 2), (36, 20, 4), (24, 24, 24), (17, 17, 17), (12, 24, 12), (16, 32, 16), (2, 2, 2)],
)
def test_groups(channels: int, out: int, group: int, local_target: Target) -> None:
    check(conv((2, channels, 9, 7), out, (3, 3), group, pads=[1, 1, 1, 1]), local_target)


@pytest.mark.parametrize(
    ("kernel", "options"),
    [
        ((2, 2), {"strides": [2, 2]}),
        ((2, 2), {"strides": [2, 2], "dilations": [2, 1]}),
        ((3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}),
        ((4, 2), {"strides": [1, 3], "output_shape": [7, 20]}),
    ],
)
def test_transposed_convolution(
    kernel: tuple[int, int], options: dict[str, Any], local_target: Target
) -> None:
    constants = {"w": weights(16, 19, *kernel, scale=0.2), "b": weights(19)}
    nodes = [node("ConvTranspose", ["x", "w", "b"], ["c"], **options), node("Relu", ["c"])]
    check(model(nodes, {"x": (2, 16, 5, 7)}, constants), local_target)


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize(
    "options",
    [
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
        {"kernel_shape": [3, 2], "strides": [2, 3], "ceil_mode": 1},
        {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [0, 0, 1, 1], "ceil_mode": 1},
        {"kernel_shape": [3, 1], "ceil_mode": 1},
    ],
)
def test_pooling_of_blocked_values(op: str, options: dict[str, Any], local_target: Target) -> None:
    nodes = [node("Conv", ["x", "w"], ["c"]), node(op, ["c"], **options)]
    check(model(nodes, {"x": (1, 12, 10, 7)}, {"w": weights(20, 12, 1, 1)}, opset=19), local_target)


def test_padding_never_wins_a_maximum(local_target: Target) -> None:
    constants = {"w": -np.abs(weights(16, 8, 1, 1)), "one": np.float32(1)}
    nodes = [
        node("Abs", ["x"], ["a"]),
        node("Conv", ["a", "w"], ["c"]),
        node("Sub", ["c", "one"], ["d"]),
        node("MaxPool", ["d"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    ]
    check(model(nodes, {"x": (1, 8, 5, 5)}, constants), local_target)


def test_an_empty_result(local_target: Target) -> None:
    nodes = [node("Conv", ["x", "w"], ["c"]), node("Slice", ["c", "from", "to", "axis"])]
    bounds = {"from": np.array([3]), "to": np.array([3]), "axis": np.array([2])}
    check(model(nodes, {"x": (1, 8, 5, 5)}, {"w": weights(16, 8, 1, 1), **bounds}), local_target)
