"""adb's protocol, spoken with a stand-in for its server; no Android is involved."""

from __future__ import annotations

import json
import os

import pytest

from edgetune.devices.deploy import clean, deploy
from edgetune.devices.probe import probe
from edgetune.errors import DeviceError
from tests.devices.adb_server import SERIAL, adb_server
from tests.standalone.conftest import VALUES, write_handmade

adbutils = pytest.importorskip("adbutils")


@pytest.fixture
def link(tmp_path, monkeypatch):
    from edgetune.devices.adb import AdbLink

    monkeypatch.setattr(AdbLink, "home", str(tmp_path / "home"))
    with adb_server() as port:
        monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(port))
        yield AdbLink(SERIAL)


def test_commands_and_files(link, tmp_path):
    done = link.run("printf 'a\\0b'; echo wrong >&2; exit 7")
    assert (done.code, done.stdout) == (7, b"a\0bwrong\n")
    data = os.urandom(300_000)
    link.push(data, str(tmp_path / "file"))
    assert (tmp_path / "file").read_bytes() == data
    assert os.access(tmp_path / "file", os.X_OK)
    with pytest.raises(DeviceError, match="within 1 s"):
        link.run("sleep 5", timeout_s=1)


def test_a_session_of_the_runner(link, tmp_path):
    """Bytes go both ways unchanged, and the session ends with its stream."""
    command = deploy(link, probe(link))
    home = tmp_path / "home"
    stream = link.stream(f"exec {command} serve --threads 1 --home {home} --owner me")
    line = b""
    while not line.endswith(b"\n"):
        line += stream.receive(1)
    assert line.startswith(b"edgetune-runner 1 ")
    pid = int(line.split()[2])
    stream.close()
    assert link.run(f"for i in $(seq 200); do kill -0 {pid} || exit 0; sleep 0.05; done; exit 1").code == 0
    assert os.listdir(home / "sessions") == []
    clean(link)
    assert not home.exists()


def test_kernels_are_timed_there(link, run_cli, local_target, tmp_path):
    """The whole way of ``edgetune profile``: the bridge finds the server by adb's own variable."""
    bundle = write_handmade(tmp_path, local_target)
    code, _, err = run_cli("devices", "add", "phone", f"adb://{SERIAL}")
    assert code == 0, err
    code, out, err = run_cli("profile", str(bundle), "--device", "phone", "--runs", "3", "--json")
    assert code == 0, err
    result = json.loads(out)
    assert result["device"] == "phone"
    assert result["latency_ms"] > 0
    kernels = {kernel["name"]: kernel for kernel in result["kernels"]}
    assert {name: kernel["calls"] for name, kernel in kernels.items()} == {
        "add": 2,
        "nested": 1,
        "fail": 1,
        "copy": 2,
    }
    assert kernels["add"]["bytes"] == 2 * 3 * VALUES * 4
    assert sum(kernel["share"] for kernel in kernels.values()) == pytest.approx(1.0)
    assert result["machine"]["peak_gflops"] > 0.1
    assert run_cli("devices", "remove", "phone")[0] == 0
    assert not (tmp_path / "home").exists()


def test_a_device_that_is_not_there(link):
    from edgetune.devices.adb import AdbLink

    with adb_server() as port, pytest.raises(DeviceError, match=f"nothing.*{SERIAL}"):
        AdbLink("nothing", ("127.0.0.1", port))
