"""Bundles with inputs and outputs of types that NumPy itself lacks: bfloat16, 8-bit floats, 4-bit integers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx.parser import parse_model

import edgetune
from edgetune.bundle.arrays import read_npz, write_npz
from edgetune.model.session import Session
from edgetune.tolerances import model_tolerances
from edgetune.verify import difference

MODEL = """<ir_version: 10, opset_import: ["": 21]>
types (bfloat16[2, 3] half, float8e4m3fn[4] code, float8e5m2[4] wide, int4[2, 3] whole, uint4[5] natural, float[2, 3] x)
=> (bfloat16[3, 3] sum, float8e4m3fn[4] scaled, float8e5m2[4] same, int4[3, 2] turned, uint4[5] kept, float[2, 3] y)
<int64[1] zero = {0}> {
    numbers = Constant<value_floats = [0.5, -1.25, 3.0]>()
    row = Cast<to = 16>(numbers)
    weight = Unsqueeze(row, zero)
    sum = Concat<axis = 0>(half, weight)
    number = Cast<to = 1>(code)
    three = Constant<value_float = 3.0>()
    more = Mul(number, three)
    scaled = Cast<to = 17>(more)
    same = Identity(wide)
    turned = Transpose(whole)
    kept = Identity(natural)
    as_float = Cast<to = 1>(half)
    whole_float = Cast<to = 1>(whole)
    y = Sum(as_float, x, whole_float)
}"""


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return parse_model(MODEL)


@pytest.fixture(scope="module")
def bundle(model: onnx.ModelProto, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("types")
    return edgetune.compile(model, out=folder / "types").bundle


def values(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 256, (2, 4)).astype(np.uint8)
    return {
        "half": rng.standard_normal((2, 3)).astype(ml_dtypes.bfloat16),
        "code": codes[0].view(ml_dtypes.float8_e4m3fn),
        "wide": codes[1].view(ml_dtypes.float8_e5m2),
        "whole": rng.integers(-8, 8, (2, 3)).astype(ml_dtypes.int4),
        "natural": rng.integers(0, 16, 5).astype(ml_dtypes.uint4),
        "x": rng.standard_normal((2, 3)).astype(np.float32),
    }


def test_values_are_those_of_onnx_runtime(bundle: Path, model: onnx.ModelProto) -> None:
    loaded, session = edgetune.load(bundle), Session(model)
    for seed in range(5):
        inputs = values(seed)
        expected, got = session.run(inputs), loaded.run(inputs)
        for name, value in expected.items():
            found = difference(name, value, got[name])
            assert found.passed, found.describe()
    # What was given earlier stays as it was.
    again = loaded.run(values(1))
    np.testing.assert_array_equal(got["kept"], values(4)["natural"])
    np.testing.assert_array_equal(again["kept"], values(1)["natural"])


def test_wrong_types_are_refused(bundle: Path) -> None:
    loaded = edgetune.load(bundle)
    for name, array in {
        "half": np.zeros((2, 3), np.float32),
        "code": np.zeros(4, np.uint8),
        "whole": np.zeros((2, 3), np.int8),
    }.items():
        with pytest.raises(edgetune.EdgetuneError, match=f"input '{name}'"):
            loaded.run({**values(), name: array})


def test_commands_take_and_give_them(
    bundle: Path, model: onnx.ModelProto, tmp_path: Path, run_cli: Callable[..., tuple[int, str, str]]
) -> None:
    # What NumPy's own savez leaves of these types is their bits.
    np.savez(tmp_path / "x.npz", **{name: np.asarray(a) for name, a in values(3).items() if name != "wide"})
    inputs = {**values(3), **dict(np.load(tmp_path / "x.npz"))}
    write_npz(tmp_path / "x.npz", inputs)
    onnx.save(model, tmp_path / "types.onnx")
    code, out, error = run_cli(
        "run", str(bundle), "--input", str(tmp_path / "x.npz"), "--output", str(tmp_path / "y.npz"), "--json"
    )
    assert code == 0, error
    assert [row["dtype"] for row in json.loads(out)["outputs"]][:2] == ["bfloat16", "float8_e4m3fn"]
    outputs = read_npz(tmp_path / "y.npz")
    assert outputs["sum"].dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(np.load(tmp_path / "y.npz")["sum"].view(ml_dtypes.bfloat16), outputs["sum"])
    code, out, _ = run_cli("compare", str(bundle), "--model", str(tmp_path / "types.onnx"), "--json")
    assert code == 0, out
    recorded: Any = edgetune.compare(bundle)
    assert recorded.passed


def test_a_standalone_library_has_no_such_types(model: onnx.ModelProto, tmp_path: Path) -> None:
    with pytest.raises(edgetune.EdgetuneError, match=r"'half' is of type bfloat16.*without --standalone"):
        edgetune.compile(model, out=tmp_path / "b", standalone=True)


@pytest.mark.parametrize(
    ("kind", "step"), [("bfloat16", 2**-7), ("float8_e4m3fn", 0.125), ("float8_e5m2", 0.25)]
)
def test_a_step_is_allowed_and_no_more(kind: str, step: float) -> None:
    one = np.ones(3).astype(kind)
    assert difference("y", one, (np.ones(3) * (1 + step)).astype(kind)).passed
    rtol, atol = model_tolerances(one)
    off = np.ones(3).astype(kind)
    off[1] = 1 + 8 * step
    assert 8 * step > max(rtol, atol)
    assert not difference("y", one, off).passed
