"""What goes wrong through no fault of edgetune's: one clear message, the right exit code, nothing damaged."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from benchmarks.faults import small_model
from edgetune.logs import open_logs

COMMAND = [sys.executable, "-m", "edgetune.cli.main"]


def refused(*args: object, code: int = 1, env: dict[str, str] | None = None) -> str:
    """The one message of a command that must fail with this exit code."""
    done = subprocess.run(
        [*COMMAND, *map(str, args), "--json"], capture_output=True, text=True, env=os.environ | (env or {})
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    error = json.loads(done.stdout)["error"]
    assert error["kind"] != "InternalError", error
    assert error["exit_code"] == code
    assert f"error: {error['message']}" in done.stderr
    return str(error["message"])


@pytest.fixture
def dynamic_file(tmp_path: Path) -> Path:
    """A model whose input leaves its batch open."""
    weight = numpy_helper.from_array(np.ones((4, 2), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["data", "w"], ["y"])],
        "dynamic",
        [helper.make_tensor_value_info("data", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 2])],
        [weight],
    )
    path = tmp_path / "dynamic.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)
    return path


@pytest.mark.parametrize("command", ["check", "tune"])
def test_not_an_onnx_file(command: str, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_text("<html>404 Not Found</html>")
    assert "model.onnx" in refused(command, tmp_path / "model.onnx")


@pytest.mark.parametrize("command", ["check", "compile"])
def test_a_model_that_does_not_exist(command: str, tmp_path: Path) -> None:
    assert "model.onnx" in refused(command, tmp_path / "model.onnx")


def test_a_truncated_model(conv_file: Path, tmp_path: Path) -> None:
    (tmp_path / "half.onnx").write_bytes(conv_file.read_bytes()[:700])
    assert "half.onnx" in refused("compile", tmp_path / "half.onnx")


def test_missing_external_data(conv_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "external.onnx"
    onnx.save(
        onnx.load(conv_file), path, save_as_external_data=True, location="weights.bin", size_threshold=0
    )
    (tmp_path / "weights.bin").unlink()
    assert "weights.bin" in refused("compile", path)


def test_open_dimensions(dynamic_file: Path) -> None:
    message = refused("compile", dynamic_file)
    assert "--shape data:" in message


def test_an_unknown_input(dynamic_file: Path) -> None:
    message = refused("compile", dynamic_file, "--shape", "date:1x4", code=2)
    assert "date" in message
    assert "data" in message


@pytest.mark.parametrize("command", ["check", "tune", "compile"])
def test_an_unknown_target(command: str, conv_file: Path) -> None:
    message = refused(command, conv_file, "--target", "raspbery-pi-4")
    assert "raspberry-pi-4" in message


def test_an_unknown_device(conv_file: Path) -> None:
    assert "local" in refused("tune", conv_file, "--device", "bench-3", code=4)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_output_without_permission(conv_file: Path, tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o555)
    assert "--out" in refused("tune", conv_file, "--out", tmp_path / "locked" / "bundle")


def test_an_output_below_a_file(conv_file: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "--out" in refused("tune", conv_file, "--out", tmp_path / "file" / "bundle")


def test_an_output_that_is_no_bundle(conv_file: Path, tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "notes.txt").write_text("keep me")
    assert "not a bundle" in refused("tune", conv_file, "--out", tmp_path / "results")
    assert (tmp_path / "results" / "notes.txt").read_text() == "keep me"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB, too small for a bundle."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("may not mount a small file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk(conv_file: Path, small_disk: Path, tmp_path: Path) -> None:
    (small_disk / "filler").write_bytes(b"x" * 40_000)
    message = refused("compile", conv_file, "--out", small_disk / "bundle")
    assert "no space" in message
    assert [path.name for path in small_disk.iterdir()] == ["filler"]


def test_a_full_disk_under_the_logs(conv_file: Path, small_disk: Path, tmp_path: Path) -> None:
    (small_disk / "filler").write_bytes(b"x" * 60_000)
    refused("tune", conv_file, "--trials", 2, "--out", tmp_path / "b", "--logs", small_disk / "logs.sqlite")


def test_logs_of_a_newer_schema(conv_file: Path, tmp_path: Path) -> None:
    logs = tmp_path / "logs.sqlite"
    arguments = ("--logs", logs, "--out", tmp_path / "bundle")
    open_logs(logs).close()
    with sqlite3.connect(logs) as connection:
        connection.execute("UPDATE edgetune_schema SET version_num = '9999'")
    connection.close()
    before = logs.read_bytes()
    for command in ("tune", "compile"):
        message = refused(command, conv_file, *arguments)
        assert "9999" in message
        assert "edgetune" in message
    assert logs.read_bytes() == before


@pytest.mark.parametrize("command", ["check", "tune", "compile"])
@pytest.mark.parametrize("version", ["0.1.15.post2", None])
def test_a_wrong_pin(command: str, version: str | None, conv_file: Path, tmp_path: Path) -> None:
    """Python starts with sitecustomize: there, importlib.metadata is made to name another version, or none.

    TVM itself must not be imported: with this version it crashes.
    """
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.metadata as metadata, sys\n"
        "real = metadata.version\n"
        "def version(name):\n"
        "    if name != 'apache-tvm-ffi': return real(name)\n"
        f"    if {version!r} is None: raise metadata.PackageNotFoundError(name)\n"
        f"    return {version!r}\n"
        "metadata.version = version\n"
        "sys.modules['tvm'] = None\n"
    )
    message = refused(command, conv_file, env={"PYTHONPATH": str(tmp_path)})
    assert "pip install" in message
    assert "apache-tvm-ffi==0.1.14.post1" in message
    assert (version or "not installed") in message


def test_two_runs_on_the_same_logs(tmp_path: Path) -> None:
    """Both end well, and no candidate is in the logs twice."""
    logs = tmp_path / "logs.sqlite"
    model = tmp_path / "small.onnx"
    model.write_bytes(small_model())
    processes = [
        subprocess.Popen(
            [
                *COMMAND, "tune", str(model), "--trials", "6", "--seed", str(seed), "--json", "-q",
                "--logs", str(logs), "--out", str(tmp_path / f"bundle{seed}"),
            ],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for seed in (1, 2)
    ]  # fmt: skip
    results = []
    for process in processes:
        out, err = process.communicate(timeout=240)
        assert process.returncode == 0, err
        results.append(json.loads(out))
    for result in results:
        assert result["trials_spent"] + result["trials_reused"] == 6
        assert result["verified"]["passed"]
    with sqlite3.connect(logs) as connection:
        rows = connection.execute(
            "SELECT target, workload, device, trace_key FROM edgetune_records"
        ).fetchall()
    connection.close()
    assert len(set(rows)) == len(rows)
    assert 6 <= len(rows) <= 12
