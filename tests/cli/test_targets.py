"""``edgetune targets``, as a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib

import pytest

from edgetune.targets import list_targets, load_target

MAIN = "import sys; from edgetune.cli.main import main; sys.exit(main())"


def edgetune(*args, **options):
    command = [sys.executable, "-c", MAIN, "targets", *args]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def test_list():
    done = edgetune("list")
    assert done.returncode == 0
    assert done.stderr == ""
    for target in list_targets():
        assert f" {target.name} " in done.stdout


def test_list_as_json():
    done = edgetune("list", "--json")
    listed = {item["name"]: item for item in json.loads(done.stdout)["targets"]}
    assert set(listed) == {target.name for target in list_targets()}
    assert listed["zen4"]["vector_bits"] == 512
    assert listed["jetson-orin-cuda"]["gpu"]["arch"] == "sm_87"
    assert listed["zen4"]["fingerprint"] == load_target("zen4").fingerprint


def test_show_is_the_start_of_a_file(tmp_path):
    done = edgetune("show", "raspberry-pi-5")
    path = tmp_path / "raspberry-pi-5.toml"
    path.write_text(done.stdout)
    assert load_target(path) == load_target("raspberry-pi-5")


def test_show_as_json():
    shown = json.loads(edgetune("show", "zen3", "--json").stdout)
    assert shown["mcpu"] == "znver3"
    assert shown["fingerprint"] == load_target("zen3").fingerprint


@pytest.mark.parametrize("args", [("show", "zen33"), ("show", "zen33", "--json")])
def test_unknown_target(args):
    done = edgetune(*args)
    assert done.returncode == 1
    assert "did you mean zen3" in done.stderr
    assert "Traceback" not in done.stderr


def test_detect_prints_a_target_file():
    done = edgetune("detect")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert tomllib.loads(done.stdout)["threads"] == load_target("local").threads


def test_detect_into_a_file(tmp_path):
    path = tmp_path / "mine.toml"
    done = edgetune("detect", "--out", str(path), "--threads", "1", "--json")
    assert json.loads(done.stdout)["file"] == str(path)
    assert load_target(path).threads == 1
    assert load_target(path).fingerprint == json.loads(done.stdout)["fingerprint"]


def test_detect_into_no_folder(tmp_path):
    done = edgetune("detect", "--out", str(tmp_path / "none" / "x.toml"))
    assert done.returncode == 1
    assert "cannot write the target file" in done.stderr


def test_detect_counts_the_cpus_it_may_use():
    def one_cpu():
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    done = edgetune("detect", "--json", preexec_fn=one_cpu)
    assert json.loads(done.stdout)["threads"] == 1
