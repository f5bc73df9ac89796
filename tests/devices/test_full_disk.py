"""A device without room for what is sent to it: one message says so, and nothing else is blamed."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

import pytest

from edgetune.devices.local import local_device
from edgetune.devices.manage import add_device
from edgetune.devices.remote import remote_device
from edgetune.devices.session import lease
from edgetune.errors import DeviceError
from tests.devices.kernels import kernel_for

LEASE_S = 90.0
NO_ROOM = r"cannot store .*No space left on device.*Free some space"


@contextlib.contextmanager
def mounted(folder: Path, size: str):
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("may not mount a small file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path, but: int = 0) -> Path:
    """Leave ``but`` bytes of a file system free."""
    filler = folder / "filler"
    with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    with open(filler, "rb+") as file:
        file.truncate(filler.stat().st_size - but)
    return filler


@pytest.fixture
def small(sshd):
    """A device whose folder for edgetune is a file system of 48 MB."""
    with mounted(Path(sshd.cache), "48m"):
        add_device("board", sshd.address)
        yield sshd


# Of a library that arrived in part, the loader maps pages that are not there.
@pytest.mark.parametrize("free", [0, 8192])
def test_a_library_that_does_not_fit(small, free):
    library = kernel_for("local" if free else "x86-64-v3")
    assert len(library) > free
    device = remote_device("board", small.address, 2)
    with device.up(), lease(device, LEASE_S) as session:
        filler = fill(Path(small.cache), free)
        with pytest.raises(DeviceError, match=NO_ROOM), session.deadline(30, "sending"):
            session.upload("k.so", library)
        filler.unlink()
        with session.deadline(30, "sending again"):
            session.upload("k.so", library)
            session.load("k.so")


def test_a_bundle_that_does_not_fit(small, bundle, run_cli):
    filler = fill(Path(small.cache), 65536)
    for command in ("compare", "benchmark", "run"):
        code, _, err = run_cli(command, str(bundle), "--device", "board")
        assert code == 4
        said = " ".join(err.split())
        assert "No space left on device" in said
        assert "Free some space" in said
    filler.unlink()
    assert run_cli("compare", str(bundle), "--device", "board")[0] == 0


def test_this_machine_without_room(tmp_path, monkeypatch):
    with mounted(tmp_path / "tmp", "64k") as folder:
        monkeypatch.setenv("TMPDIR", str(folder))
        device = local_device(threads=2)
        with device.up(), lease(device, LEASE_S) as session:
            with pytest.raises(DeviceError, match=NO_ROOM), session.deadline(30, "sending"):
                session.upload("data", b"x" * 100_000)
            with session.deadline(30, "sending less"):
                session.upload("data", b"x" * 1000)
                assert session.download("data") == b"x" * 1000
