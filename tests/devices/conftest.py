"""Devices behind SSH servers of the tests' own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.devices.sshd import SSHD, Sshd

CACHE = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")


@pytest.fixture
def make_sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Sshd]]:
    """Starts SSH servers of this machine's own architecture; they end with the test."""
    if SSHD is None:
        pytest.skip("no OpenSSH server is installed")
    servers = []

    def make(forwarding: bool = False, cpus: int = 0) -> Sshd:
        folder = tmp_path_factory.mktemp("sshd")
        before = ["taskset", "-c", ",".join(map(str, range(cpus)))] if cpus else []
        server = Sshd(folder, str(folder / "cache"), forwarding=forwarding, before=before)
        servers.append(server)
        server.start()
        return server

    yield make
    for server in servers:
        server.stop()


@pytest.fixture
def sshd(make_sshd: Callable[..., Sshd]) -> Sshd:
    return make_sshd()


@pytest.fixture(autouse=True)
def _nobodys_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has its own list of devices, no agent and no SSH configuration."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    # What was built or fetched once stays of use.
    monkeypatch.setenv("XDG_CACHE_HOME", CACHE)
