"""Devices that TVM's runtime is not built for: the whole way, with a runner of our own behind a real SSH server.

The device is this machine; what it says of itself, and the emulator in front of its runner, make it another one.
"""

from __future__ import annotations

import json
import shutil

import pytest

import edgetune
from edgetune.devices import manage, remote
from edgetune.devices.native import RunnerFolder, find_libc
from edgetune.devices.probe import probe
from edgetune.targets import load_target

DEVICES = {"arm": "armv7-a", "riscv64": "riscv64"}


# riscv64 takes as long again, and goes the same way; tests/devices/test_native.py runs a kernel there.
@pytest.fixture(params=["arm"])
def board(request, monkeypatch, sshd, run_cli):
    """The options for a device of another architecture that was added as 'board'."""
    arch = request.param
    emulator = shutil.which(f"qemu-{arch}-static")
    if emulator is None:
        pytest.skip("not installed: qemu-user-static")
    if not find_libc(arch):
        pytest.skip(f"this machine has no C library for {arch}")
    target = DEVICES[arch]
    features = tuple(load_target(target).required_features())

    def told(link):
        return probe(link).model_copy(
            update={"arch": arch, "features": features, "emulated": True, "libc": ""}
        )

    plain = RunnerFolder.command
    monkeypatch.setattr(manage, "probe", told)
    monkeypatch.setattr(remote, "probe", told)
    monkeypatch.setattr(RunnerFolder, "command", lambda self, folder: f"{emulator} {plain(self, folder)}")
    code, out, err = run_cli("devices", "add", "board", sshd.url, *sshd.options, "--json")
    assert code == 0, err
    assert json.loads(out)["arch"] == arch
    yield target
    assert run_cli("devices", "remove", "board")[0] == 0
    assert sshd.runners() == []


def test_tuned_compared_timed_and_run(board, run_cli, conv_file, tmp_path):
    target = board
    bundle = str(tmp_path / "bundle")
    options = [
        "--target",
        target,
        "--device",
        "board",
        "--threads",
        "2",
        "--logs",
        str(tmp_path / "logs.sqlite"),
    ]
    code, out, err = run_cli("tune", str(conv_file), *options, "--trials", "2", "--out", bundle, "--json")
    assert code == 0, err
    tuned = json.loads(out)
    assert (tuned["trials_spent"], tuned["verified"]["passed"], tuned["failures"]) == (2, True, {})
    code, out, err = run_cli("compare", bundle, "--device", "board", "--json")
    assert (code, json.loads(out)["passed"]) == (0, True), err
    code, out, err = run_cli(
        "benchmark", bundle, "--device", "board", "--rounds", "1", "--runs", "3", "--json"
    )
    assert code == 0, err
    assert json.loads(out)["edgetune"]["median_ms"] > 0

    machine = edgetune.compile(conv_file, target=target, out=tmp_path / "vm", standalone=False).bundle
    code, _, err = run_cli("compare", str(machine), "--device", "board")
    assert (code, "needs TVM's runtime" in " ".join(err.split())) == (1, True), err
