"""Indices known at run time: right within the tensor, and of those beyond it nothing foreign is read or written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper, parser

import edgetune

TEXT = '<ir_version: 8, opset_import: ["": 18]> g '
BEYOND = [4, -5, 10**6, 2**40, -(2**62)]
TABLE = np.arange(12, dtype=np.float32).reshape(4, 3)


def loaded(text: str, tmp_path: Path) -> edgetune.LoadedModel:
    return edgetune.load(edgetune.compile(parser.parse_model(TEXT + text), out=tmp_path / "bundle").bundle)


def held(index: int) -> int:
    """The nearest index of an axis of four, counted from the front."""
    return int(np.clip(index + 4 if index < 0 else index, 0, 3))


@pytest.mark.parametrize("weights", [False, True])
def test_gather(tmp_path: Path, weights: bool) -> None:
    model = parser.parse_model(TEXT + "(float[4, 3] x, int64[1] i) => (float[1, 3] y) { y = Gather(x, i) }")
    if weights:
        model.graph.initializer.append(numpy_helper.from_array(TABLE, "x"))
        del model.graph.input[0]
    bundle = edgetune.load(edgetune.compile(model, out=tmp_path / "bundle").bundle)
    for index in (*range(-4, 4), *BEYOND):
        given = {"i": np.array([index])} if weights else {"x": TABLE, "i": np.array([index])}
        np.testing.assert_array_equal(bundle.run(given)["y"][0], TABLE[held(index)])


def test_gather_elements(tmp_path: Path) -> None:
    model = loaded("(float[4, 3] x, int64[1, 3] i) => (float[1, 3] y) { y = GatherElements(x, i) }", tmp_path)
    for index in (*range(-4, 4), *BEYOND):
        got = model.run({"x": TABLE, "i": np.full((1, 3), index)})["y"]
        np.testing.assert_array_equal(got[0], TABLE[held(index)])


def test_gather_nd(tmp_path: Path) -> None:
    model = loaded("(float[4, 3] x, int64[1, 2] i) => (float[1] y) { y = GatherND(x, i) }", tmp_path)
    for index in (*range(-4, 4), *BEYOND):
        got = model.run({"x": TABLE, "i": np.array([[index, 1]])})["y"]
        np.testing.assert_array_equal(got, [TABLE[held(index), 1]])


@pytest.mark.parametrize("operator", ["ScatterElements", "ScatterND"])
def test_scatter(tmp_path: Path, operator: str) -> None:
    """Nothing but the row that is written to changes."""
    columns = 3 if operator == "ScatterElements" else 1
    model = loaded(
        f"(float[4, 3] x, int64[1, {columns}] i, float[1, 3] u) => (float[4, 3] y) {{ y = {operator}(x, i, u) }}",
        tmp_path,
    )
    for index in (*range(-4, 4), *BEYOND):
        expected = TABLE.copy()
        expected[held(index)] = 99
        given = {"x": TABLE, "i": np.full((1, columns), index), "u": np.full((1, 3), 99, np.float32)}
        np.testing.assert_array_equal(model.run(given)["y"], expected)
