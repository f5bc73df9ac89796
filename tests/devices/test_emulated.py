"""A whole ARM machine, emulated: from adding it to a verified, timed bundle, and nothing left behind."""

from __future__ import annotations

import json

import pytest

from tests.devices import emulated
from tests.devices.sshd import Sshd

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def arm(tmp_path_factory):
    if reason := emulated.missing():
        pytest.skip(reason)
    try:
        built = emulated.arm64_root()
    except emulated.UnavailableError as error:
        pytest.skip(str(error))
    with emulated.Mounted(built) as root:
        server = Sshd(tmp_path_factory.mktemp("arm"), "/root/cache", root)
        try:
            server.start()
            yield server
        finally:
            server.stop()


@pytest.fixture
def answer(run_cli):
    """Runs a command that must succeed, and returns its JSON."""

    def run(*args: str):
        code, out, err = run_cli(*args, "--json")
        assert code == 0, err
        return json.loads(out)

    return run


def test_from_adding_a_device_to_a_bundle_and_nothing_left_behind(arm, answer, run_cli, tmp_path):
    from edgetune.model import registry

    model = str(registry.fetch("ppocr-cls"))
    added = answer("devices", "add", "board", arm.url, *arm.options)
    assert added["arch"] == "aarch64"
    assert added["emulated"], "its /proc/cpuinfo is this machine's: that must not be believed"
    assert {"neon", "dotprod"} <= set(added["features"])

    target = tmp_path / "board.toml"
    described = answer("targets", "detect", "--device", "board", "--out", str(target))
    assert described["mtriple"] == "aarch64-linux-gnu"

    code, _, err = run_cli("tune", model, "--shape", "x:1x3x48x192", "--device", "board", "--target", "zen2")
    assert (code, "x86_64" in err, "aarch64" in err) == (4, True, True)

    bundle, logs = str(tmp_path / "bundle"), str(tmp_path / "logs.sqlite")
    options = ["--shape", "x:1x3x48x192", "--device", "board", "--target", str(target), "--logs", logs]
    tuned = answer("tune", model, *options, "--trials", "8", "--out", bundle)
    assert tuned["device"] == "board"
    assert tuned["trials_spent"] == 8
    assert tuned["verified"]["passed"]
    assert not tuned["failures"], tuned["failures"]

    compared = answer("compare", bundle, "--device", "board")
    assert compared["passed"]
    timed = answer("benchmark", bundle, "--device", "board", "--rounds", "1", "--runs", "3")
    assert timed["edgetune"]["median_ms"] > 0
    assert timed["edgetune"]["peak_memory_bytes"] > 1e6

    profiled = answer("profile", bundle, "--device", "board", "--runs", "2")
    assert profiled["device"] == "board"
    assert profiled["machine"]["peak_gflops"] > 0
    convolutions = {task["name"] for task in tuned["tasks"] if "conv2d" in task["name"]}
    assert convolutions
    assert convolutions <= {kernel["name"] for kernel in profiled["kernels"]}
    assert all(kernel["time_us"] > 0 for kernel in profiled["kernels"])

    home = arm.root / "root/cache/edgetune"
    assert not list((home / "sessions").iterdir()), "a session left files"
    answer("devices", "remove", "board")
    assert not home.exists()
    assert not [process for process in arm.children() if "runner" in " ".join(process.cmdline())]
    assert [device["name"] for device in answer("devices", "list")["devices"]] == ["local"]
