"""ONNX Runtime on a device, in the device's own Python, beside a bundle there."""

from __future__ import annotations

import json
import sys

import numpy as np
import onnxruntime
import pytest

from edgetune.benchmarking.rounds import benchmark
from edgetune.devices.inventory import open_device
from edgetune.devices.manage import add_device
from edgetune.devices.registry import Entry, find, store
from edgetune.errors import DeviceError
from edgetune.sides.device_onnxruntime import onnxruntime_on
from edgetune.sides.device_side import open_for
from edgetune.sides.files import side_files


@pytest.fixture
def board(sshd):
    """A device whose Python is this one, which has ONNX Runtime."""
    add_device("board", sshd.address, python=sys.executable)
    return sshd


def has_python(name, python):
    store(name, find(name).model_copy(update={"python": python}))


def test_it_runs_beside_the_bundle(board, bundle, run_cli):
    code, out, err = run_cli(
        "benchmark", str(bundle), "--device", "board", "--rounds", "2", "--runs", "3", "--json"
    )
    assert code == 0, err
    result = json.loads(out)
    assert result["against"] == "onnxruntime"
    assert result["refused"] == {}
    theirs = result["onnxruntime"]
    assert theirs["version"] == f"ONNX Runtime {onnxruntime.__version__}"
    assert len(theirs["round_medians_ms"]) == len(result["edgetune"]["round_medians_ms"]) == 2
    assert result["speedup"] == pytest.approx(theirs["median_ms"] / result["edgetune"]["median_ms"])
    assert theirs["error"] == 0.0
    assert 0 <= result["edgetune"]["error"] < 1e-4
    assert theirs["peak_memory_bytes"] > theirs["model_memory_bytes"] > 0


def test_its_outputs_are_those_of_onnxruntime_here(board, bundle):
    opened = open_for(bundle, None)
    draw = np.random.default_rng(7)
    inputs = {
        item.name: draw.standard_normal(item.shape).astype(item.dtype) for item in opened.manifest.inputs
    }
    session = onnxruntime.InferenceSession(opened.model(), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    expected = dict(zip(names, session.run(names, inputs), strict=True))
    device = open_device("board", 2)
    with side_files(opened, None, inputs) as files, onnxruntime_on(device, files, inputs, 2) as side:
        actual = side.outputs()
        assert len(side.run(4)) == 4
        assert side.load_s > 0
        running = pythons(board)
        assert running
    assert actual.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(actual[name], values, rtol=1e-5, atol=1e-6)
    for process in running:
        process.wait(10)


def test_none_with_the_bundle_alone(board, bundle, run_cli):
    code, out, _ = run_cli(
        "benchmark", str(bundle), "--device", "board", "--runs", "3", "-a", "none", "--json"
    )
    assert code == 0
    assert json.loads(out)["against"] is None
    assert json.loads(out)["refused"] == {}


@pytest.mark.parametrize(
    ("python", "words"),
    [
        ("/nowhere/python3", "/nowhere/python3 on device 'board' ended"),
        ("/bin/echo", "is it a Python interpreter?"),
    ],
)
def test_where_it_is_not_there_the_bundle_runs_alone(board, bundle, run_cli, python, words):
    has_python("board", python)
    code, out, err = run_cli(
        "benchmark",
        str(bundle),
        "--device",
        "board",
        "--rounds",
        "1",
        "--runs",
        "3",
        "--against",
        "onnxruntime",
        "--json",
    )
    assert code == 0, err
    result = json.loads(out)
    assert result["against"] is None
    assert words in result["refused"]["onnxruntime"]
    assert "--python" in result["refused"]["onnxruntime"]
    assert "note: onnxruntime did not run" in " ".join(err.split())


def test_a_python_without_it_is_said(board, bundle, tmp_path):
    empty = tmp_path / "python"
    empty.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    empty.chmod(0o755)
    has_python("board", str(empty))
    result = benchmark(bundle, device="board", rounds=1, runs=3)
    assert "has no ONNX Runtime" in result.refused["onnxruntime"]
    assert f"{empty} -m pip install onnxruntime" in result.refused["onnxruntime"]


def test_other_sides_do_not_run_on_a_device(board, bundle):
    result = benchmark(bundle, ["onnxruntime", "openvino"], device="board", rounds=1, runs=3)
    assert list(result.others) == ["onnxruntime"]
    assert "this machine alone" in result.refused["openvino"]


def pythons(server):
    """The processes of ONNX Runtime on a device."""
    return [p for p in server.children() if "ONNX model with the ONNX Runtime" in " ".join(p.cmdline())]


class Killing:
    """Kills the device's Python after the first round."""

    def __init__(self, server):
        self.server = server

    def __call__(self, done, total):
        if done == 1:
            for process in pythons(self.server):
                process.kill()


def test_when_it_dies_the_bundle_goes_on(board, bundle):
    result = benchmark(bundle, device="board", rounds=3, runs=3, progress=Killing(board))
    assert len(result.edgetune.round_medians_ms) == 3
    assert result.others == {}
    assert "ended or did not answer" in result.refused["onnxruntime"]


def test_a_python_that_is_named_must_have_it(sshd):
    with pytest.raises(DeviceError, match=r"does not import onnxruntime.*pip install"):
        add_device("board", sshd.address, python="/bin/false")


def test_devices_of_earlier_lists_have_a_python():
    assert Entry.model_validate({"address": {"scheme": "ssh", "host": "x"}}).python == "python3"
