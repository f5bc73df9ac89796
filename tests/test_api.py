"""The Python functions as they are promised: names, arguments, results with the fields of the JSON."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import edgetune

SIGNATURES = {
    "check": ["model", "shapes", "freeze"],
    "tune": ["model", "target", "device", "trials", "time", "shapes", "freeze", "out", "logs"],
    "compile": ["model", "target", "shapes", "freeze", "out", "logs"],
    "compare": ["bundle", "model", "rtol", "atol", "inputs", "device"],
    "benchmark": ["bundle", "against", "threads", "device"],
}
"""In this order, so that they may be given by position."""


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments(name: str) -> None:
    parameters = inspect.signature(getattr(edgetune, name)).parameters
    assert list(parameters)[: len(SIGNATURES[name])] == SIGNATURES[name]
    assert all(value.default is not inspect.Parameter.empty for value in list(parameters.values())[1:])


def test_every_public_name_exists() -> None:
    for name in edgetune.__all__:
        assert getattr(edgetune, name) is not None
    assert set(dir(edgetune)) == set(edgetune.__all__)
    with pytest.raises(AttributeError, match="tuna"):
        _ = edgetune.tuna


def test_every_error_is_a_child_of_one() -> None:
    errors = [getattr(edgetune, name) for name in edgetune.__all__ if name.endswith("Error")]
    assert len(errors) > 10
    assert all(issubclass(error, edgetune.EdgetuneError) for error in errors)


def test_importing_it_imports_nothing_else() -> None:
    code = (
        "import sys; before = set(sys.modules); import edgetune; "
        "print(sorted({name.split('.')[0] for name in set(sys.modules) - before} - sys.stdlib_module_names))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "['edgetune']"


def test_onnxruntime_sends_nothing(conv_file: Path, tmp_path: Path) -> None:
    """ONNX Runtime 1.29 and later collects events for its vendor in the user's cache directory, unless told not to."""
    code = (
        "import sys; from edgetune.model.loading import load_model; from edgetune.model.session import Session; "
        "Session(load_model(sys.argv[1]).proto)"
    )
    silenced = ("ORT_DISABLE_TELEMETRY", "ORT_RUNNING_UNIT_TESTS", "CI", "GITHUB_ACTIONS", "XDG_CACHE_HOME")
    environment = {name: value for name, value in os.environ.items() if name not in silenced}
    environment["HOME"] = str(tmp_path)
    subprocess.run([sys.executable, "-c", code, str(conv_file)], check=True, env=environment)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == []


def assert_twin(result: Any) -> None:
    """Every field of the JSON is an attribute of the result, and the JSON is plain."""
    content = result.to_json()
    for name in content:
        assert hasattr(result, name), name
    assert json.loads(json.dumps(content, default=str)).keys() == content.keys()


def test_check(conv_file: Path) -> None:
    result = edgetune.check(conv_file)
    assert isinstance(result, edgetune.CheckResult)
    assert result.supported
    assert [value.name for value in result.inputs] == ["x", "scale"]
    assert result.tasks
    assert_twin(result)


def test_check_takes_bytes_and_protos(conv_file: Path) -> None:
    by_path = edgetune.check(str(conv_file))
    assert edgetune.check(conv_file.read_bytes()) == by_path
    assert edgetune.check(onnx.load(conv_file)) == by_path


def test_compile_compare_benchmark_load(conv_file: Path, tmp_path: Path) -> None:
    compiled = edgetune.compile(conv_file, freeze={"scale": [0.25]}, out=tmp_path / "conv")
    assert isinstance(compiled, edgetune.CompileResult)
    assert compiled.bundle == tmp_path / "conv"
    assert_twin(compiled)

    compared = edgetune.compare(compiled.bundle)
    assert isinstance(compared, edgetune.CompareResult)
    assert compared.passed
    assert_twin(compared)

    timed = edgetune.benchmark(compiled.bundle, threads=1)
    assert isinstance(timed, edgetune.BenchmarkResult)
    assert timed.threads == 1
    assert timed.speedup is not None
    assert_twin(timed)

    model = edgetune.load(compiled.bundle)
    assert [value.name for value in model.inputs] == ["x"]
    assert [value.name for value in model.outputs] == ["y", "pooled"]
    outputs = model.run({"x": np.zeros((1, 3, 16, 16), np.float32)})
    assert {name: (value.shape, value.dtype.name) for name, value in outputs.items()} == {
        "y": ((1, 8, 16, 16), "float32"),
        "pooled": ((1, 8, 1, 1), "float32"),
    }
