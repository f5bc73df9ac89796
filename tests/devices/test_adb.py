"""adb's protocol, spoken with a stand-in for its server; no Android is involved."""

from __future__ import annotations

import os

import pytest

from edgetune.devices.deploy import clean, deploy
from edgetune.devices.probe import probe
from edgetune.errors import DeviceError
from tests.devices.adb_server import SERIAL, adb_server

adbutils = pytest.importorskip("adbutils")


@pytest.fixture
def link(tmp_path, monkeypatch):
    from edgetune.devices.adb import AdbLink

    monkeypatch.setattr(AdbLink, "home", str(tmp_path / "home"))
    with adb_server() as port:
        yield AdbLink(SERIAL, ("127.0.0.1", port))


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


def test_a_device_that_is_not_there(link):
    from edgetune.devices.adb import AdbLink

    with adb_server() as port, pytest.raises(DeviceError, match=f"nothing.*{SERIAL}"):
        AdbLink("nothing", ("127.0.0.1", port))
