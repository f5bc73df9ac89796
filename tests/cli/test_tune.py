"""``edgetune tune`` and ``edgetune compile`` as a shell sees them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "edgetune.cli.main"]


def run(*args: object, **kwargs) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *map(str, args)], capture_output=True, text=True, **kwargs)


def start(*args: object) -> subprocess.Popen[str]:
    """A process that Ctrl-C reaches, even where the tests themselves run in the background of a script."""
    return subprocess.Popen(
        [*COMMAND, *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs") / "logs.sqlite"


def test_a_goal_out_of_reach(conv_file: Path, logs: Path, tmp_path: Path) -> None:
    """The budget ends first: exit code 5, and the JSON and the bundle are there all the same."""
    options = ["--trials", 3, "--goal", 1e-9, "--out", tmp_path / "b", "--logs", logs, "--json"]
    done = run("tune", conv_file, *options, "--cluster", "all")
    assert done.returncode == 5, done.stderr
    result = json.loads(done.stdout)
    assert result["trials_spent"] + result["trials_reused"] == 3
    assert result["verified"]["passed"]
    assert "goal of 1e-09 ms" in done.stderr
    conditions = result["conditions"]
    assert conditions["batches"] == len(conditions["states"]) > 0
    assert conditions["controlled"] == (conditions["uncontrolled"] == 0)
    assert (tmp_path / "b" / "manifest.json").exists()


def test_for_a_person(conv_file: Path, logs: Path, tmp_path: Path) -> None:
    done = run("tune", conv_file, "--trials", 3, "--out", tmp_path / "b", "--logs", logs)
    assert done.returncode == 0, done.stderr
    assert "times as fast as ONNX Runtime" in done.stdout
    assert "verified against ONNX Runtime" in done.stdout
    assert "GFLOP/s" in done.stdout
    assert "preparing the model" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    compiled = run("compile", conv_file, "--out", tmp_path / "c", "--logs", logs)
    assert compiled.returncode == 0, compiled.stderr
    assert "record" in compiled.stdout


def test_ctrl_c_leaves_a_verified_bundle(conv_file: Path, tmp_path: Path) -> None:
    args = [
        "tune",
        conv_file,
        "--time",
        "10m",
        "--out",
        tmp_path / "b",
        "--logs",
        tmp_path / "logs",
        "--json",
    ]
    process = start(*args)
    assert process.stderr is not None
    heard = ""
    for line in process.stderr:
        heard += line
        if line.startswith("tuning "):
            break
    # Long enough for the measuring to have begun; where it has not, stopping must work as well.
    time.sleep(8)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, heard + err
    result = json.loads(out)
    assert result["interrupted"]
    assert result["verified"]["passed"]
    assert run("compare", tmp_path / "b").returncode == 0


def test_ctrl_c_before_there_is_anything_to_save(conv_file: Path, tmp_path: Path) -> None:
    args = ["tune", conv_file, "--out", tmp_path / "b", "--logs", tmp_path / "logs"]
    process = start(*args)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("preparing"):
            break
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in err
    assert "Traceback" not in err
    assert not (tmp_path / "b").exists()


def test_a_mismatch_is_exit_code_3(conv_file: Path, tmp_path: Path) -> None:
    done = run("compile", conv_file, "--rtol", 0, "--atol", 0, "--out", tmp_path / "b", "--json")
    assert done.returncode == 3
    error = json.loads(done.stdout)["error"]
    assert error["kind"] == "MismatchError"
    assert "'y'" in error["message"] or "'pooled'" in error["message"]
    assert not (tmp_path / "b").exists()


def test_a_setting_from_the_environment(conv_file: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("EDGETUNE_OUT", str(tmp_path / "from-environment"))
    done = run("compile", conv_file, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["bundle"] == str(tmp_path / "from-environment")


@pytest.mark.parametrize("command", ["tune", "compile"])
def test_a_full_disk(conv_file: Path, command: str) -> None:
    """/dev/full fails every write with ENOSPC."""
    done = run(command, conv_file, "--out", "/dev/full/bundle")
    assert done.returncode == 1
    assert "cannot write the bundle /dev/full/bundle" in done.stderr
    assert "Traceback" not in done.stderr
