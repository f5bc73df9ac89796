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

FORMS = pytest.mark.parametrize(
    "form", [kernels.forms(window)[-1] for window in ((5, 5), (1, 5), (3, 1))], ids=str
)


def conv(
    shape: tuple[int, ...],
    out: int,
    pads: list[int],
    residual: bool = False,
    window: tuple[int, ...] = (3, 3),
) -> onnx.ModelProto:
    w = weights(out, shape[1], *window, scale=(np.prod(window) * shape[1]) ** -0.5)
    nodes = [node("Relu", ["x"], ["r"]), node("Conv", ["r", "w", "b"], ["c"], pads=pads)]
    nodes += [node("Add", ["c", "r"], ["s"])] if residual else []
    nodes.append(node("Relu", ["s" if residual else "c"]))
    return model(nodes, {"x": shape}, {"w": w, "b": weights(out)})


def padding_of(form: kernels.Form) -> list[int]:
    """Padding that keeps the size."""
    return [size // 2 for size in form.window] * 2


def geometry(size: tuple[int, int], kernel: tuple[int, int] = (3, 3), **changed: Any) -> Geometry:
    attributes = {"strides": [1, 1], "dilation": [1, 1], "padding": [1, 1, 1, 1], **changed}
    return Geometry(SimpleNamespace(**attributes), size, kernel)


@pytest.mark.parametrize(("m", "r"), [(1, 1), (2, 3), (4, 3), (2, 5), (4, 5)])
def test_matrices(m: int, r: int) -> None:
    """One dimension: A^T ((G g) * (B^T d)) is the correlation of d with g."""
    rng = np.random.default_rng(m)
    d, g = rng.standard_normal(m + r - 1), rng.standard_normal(r)
    a, b, g_matrix = (np.asarray(matrix) for matrix in kernels.matrices(m, r))
    np.testing.assert_allclose(a @ ((g_matrix @ g) * (b @ d)), np.correlate(d, g, "valid"), rtol=1e-10)


THREE = pytest.mark.parametrize("form", kernels.forms((3, 3)), ids=str)


@THREE
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
    form: kernels.Form,
    local_target: Target,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(winograd, "best_form", lambda *_: form)
    check(conv(shape, out, pads, residual), local_target)


@FORMS
@pytest.mark.usefixtures("no_fallback")
def test_windows(form: kernels.Form, local_target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(winograd, "best_form", lambda *_: form)
    check(conv((2, 9, 7, 11), 9, padding_of(form), True, form.window), local_target)


@pytest.mark.usefixtures("no_fallback")
@pytest.mark.parametrize(("shape", "window"), [((1, 16, 50), (5,)), ((1, 16, 50, 1), (5, 1))], ids=str)
def test_sequences(
    shape: tuple[int, ...], window: tuple[int, ...], local_target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column of an image is computed as a row, and stays a column."""
    monkeypatch.setattr(winograd, "best_form", lambda *_: kernels.forms((1, 5))[-1])
    check(conv(shape, 24, [0] * 2 * len(window), window=window), local_target)


@THREE
@pytest.mark.usefixtures("no_fallback")
def test_every_schedule(form: kernels.Form, local_target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(winograd, "best_form", lambda *_: form)
    tasks = lower(prepare(conv((1, 16, 7, 9), 24, [1, 1, 1, 1])), local_target).tasks
    assert sorted(t.kind for t in tasks if t.kind != "generic") == ["contraction", "winograd", "winograd"]
    for task in tasks:
        if task.kind != "generic":
            assert check_spaces(task, local_target, 2)[False] == 0


@pytest.mark.parametrize("form", [kernels.forms(w)[-1] for w in ((3, 3), (5, 5), (1, 5))], ids=str)
def test_accuracy(form: kernels.Form, local_target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound that the documentation states, for many channels, against float64."""
    monkeypatch.setattr(winograd, "best_form", lambda *_: form)
    pads = padding_of(form)
    prepared, compiled = build(conv((1, 512, 6, 6), 32, pads, window=form.window), local_target)
    (actual,) = run(compiled, prepared.reference_inputs)
    constants = {
        i.name: onnx.numpy_helper.to_array(i) for i in onnx.load_from_string(prepared.onnx).graph.initializer
    }
    w = next(c for c in constants.values() if c.ndim == 4).astype(np.float64)
    b = next(c for c in constants.values() if c.ndim == 1)
    x = np.pad(np.maximum(prepared.reference_inputs["x"][0], 0), [(0, 0), *((p, p) for p in pads[:2])])
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), form.window, axis=(1, 2))
    expected = np.maximum(np.einsum("ihwrs,oirs->ohw", windows, w) + b[:, None, None], 0)
    assert np.abs(actual[0] - expected).max() <= 2e-5 * np.abs(expected).max()


def test_where_it_is_chosen() -> None:
    target = load_target("zen3")
    deep, wide = (1, 256, 256), (1, 64, 64)
    assert winograd.best_form(target, wide, geometry((56, 56)), 1) == kernels.Form((4, 4), (3, 3))
    assert winograd.best_form(target, deep, geometry((28, 28)), 1) in kernels.forms((3, 3))
    assert winograd.best_form(target, deep, geometry((1, 512), (1, 5)), 1) == kernels.Form((1, 4), (1, 5))
    for changed in ({"strides": [2, 2]}, {"dilation": [2, 2]}):
        assert winograd.best_form(target, deep, geometry((28, 28), **changed), 1) is None
    assert winograd.best_form(target, deep, geometry((28, 28), (7, 7)), 1) is None
    assert winograd.best_form(target, deep, geometry((28, 28)), 2) is None
    # Few pixels: the transformed weights are more, and come from memory.
    assert winograd.best_form(load_target("raspberry-pi-4"), (1, 512, 512), geometry((7, 7)), 1) is None
    # Few channels: the transforms cost more than they save.
    assert winograd.best_form(target, (1, 8, 8), geometry((64, 64)), 1) is None
