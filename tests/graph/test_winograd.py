"""Winograd's convolution: its matrices, its values, and where it is chosen."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

from edgetune.graph import winograd
from edgetune.graph.geometry import Geometry
from edgetune.graph.lower import lower
from edgetune.kernels import winograd as kernels
from edgetune.model.prepare import prepare
from edgetune.targets import Target, load_target
from tests.graph.support import build, check, model, node, run, weights
from tests.kernels.test_spaces import check as check_spaces

TILES = pytest.mark.parametrize("m", kernels.TILES)


def conv(shape: tuple[int, ...], out: int, pads: list[int], residual: bool = False) -> onnx.ModelProto:
    w = weights(out, shape[1], 3, 3, scale=(9 * shape[1]) ** -0.5)
    nodes = [node("Relu", ["x"], ["r"]), node("Conv", ["r", "w", "b"], ["c"], pads=pads)]
    nodes += [node("Add", ["c", "r"], ["s"])] if residual else []
    nodes.append(node("Relu", ["s" if residual else "c"]))
    return model(nodes, {"x": shape}, {"w": w, "b": weights(out)})


def geometry(size: tuple[int, int], kernel: int = 3, **changed: Any) -> Geometry:
    attributes = {"strides": [1, 1], "dilation": [1, 1], "padding": [1, 1, 1, 1], **changed}
    return Geometry(SimpleNamespace(**attributes), size, (kernel, kernel))


@TILES
def test_matrices(m: int) -> None:
    """One dimension: A^T ((G g) * (B^T d)) is the correlation of d with g."""
    rng = np.random.default_rng(m)
    d, g = rng.standard_normal(m + 2), rng.standard_normal(3)
    a, b, g_matrix = (np.asarray(matrices[m]) for matrices in (kernels._A, kernels._B, kernels._G))
    np.testing.assert_allclose(a @ ((g_matrix @ g) * (b @ d)), np.correlate(d, g, "valid"), rtol=1e-12)


@TILES
@pytest.mark.usefixtures("no_fallback")
@pytest.mark.parametrize(
    ("shape", "out", "pads", "residual"),
    [
        ((1, 16, 8, 8), 16, [1, 1, 1, 1], True),
        ((1, 16, 7, 9), 24, [1, 1, 1, 1], False),
        ((3, 20, 13, 5), 12, [0, 1, 2, 0], False),
        ((2, 9, 3, 3), 40, [0, 0, 0, 0], False),
        ((1, 8, 1, 30), 8, [1, 1, 1, 1], True),
    ],
)
def test_values(
    shape: tuple[int, ...],
    out: int,
    pads: list[int],
    residual: bool,
    m: int,
    local_target: Target,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(winograd, "best_tile", lambda *_: m)
    check(conv(shape, out, pads, residual), local_target)


@TILES
@pytest.mark.usefixtures("no_fallback")
def test_every_schedule(m: int, local_target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(winograd, "best_tile", lambda *_: m)
    tasks = lower(prepare(conv((1, 16, 7, 9), 24, [1, 1, 1, 1])), local_target).tasks
    assert sorted(t.kind for t in tasks if t.kind != "generic") == ["contraction", "winograd", "winograd"]
    for task in tasks:
        if task.kind != "generic":
            assert check_spaces(task, local_target, 2)[False] == 0


@TILES
def test_accuracy(m: int, local_target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound that the documentation states, for many channels, against float64."""
    monkeypatch.setattr(winograd, "best_tile", lambda *_: m)
    prepared, compiled = build(conv((1, 512, 6, 6), 32, [1, 1, 1, 1]), local_target)
    (actual,) = run(compiled, prepared.reference_inputs)
    constants = {
        i.name: onnx.numpy_helper.to_array(i) for i in onnx.load_from_string(prepared.onnx).graph.initializer
    }
    w = next(c for c in constants.values() if c.ndim == 4).astype(np.float64)
    b = next(c for c in constants.values() if c.ndim == 1)
    x = np.pad(np.maximum(prepared.reference_inputs["x"][0], 0), [(0, 0), (1, 1), (1, 1)]).astype(np.float64)
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(1, 2))
    expected = np.maximum(np.einsum("ihwrs,oirs->ohw", windows, w) + b[:, None, None], 0)
    assert np.abs(actual[0] - expected).max() <= 2e-5 * np.abs(expected).max()


def test_where_it_is_chosen() -> None:
    target = load_target("zen3")
    deep, wide = (1, 256, 256), (1, 64, 64)
    assert winograd.best_tile(target, wide, geometry((56, 56)), 1) == 4
    assert winograd.best_tile(target, deep, geometry((28, 28)), 1) in kernels.TILES
    for changed in ({"strides": [2, 2]}, {"dilation": [2, 2]}):
        assert winograd.best_tile(target, deep, geometry((28, 28), **changed), 1) is None
    assert winograd.best_tile(target, deep, geometry((28, 28), 5), 1) is None
    assert winograd.best_tile(target, deep, geometry((28, 28)), 2) is None
    # Few pixels: the transformed weights are more, and come from memory.
    assert winograd.best_tile(load_target("raspberry-pi-4"), (1, 512, 512), geometry((7, 7)), 1) is None
    # Few channels: the transforms cost more than they save.
    assert winograd.best_tile(target, (1, 8, 8), geometry((64, 64)), 1) is None
