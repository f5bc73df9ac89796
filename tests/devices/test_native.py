"""The native runner by itself: complete, and particular about what it is asked."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from edgetune.cpu import architecture
from edgetune.devices.deploy import PROTOCOL
from edgetune.devices.native import assemble
from edgetune.errors import DeviceError


@pytest.fixture(scope="module")
def folder():
    return assemble(architecture())


@pytest.mark.skipif(os.getuid() != 0, reason="only root may chroot")
def test_it_needs_nothing_of_the_device(folder, tmp_path):
    """Started in a root where nothing else is: no C library, no shell, no /proc."""
    assert folder.loader
    shutil.copytree(folder.path, tmp_path / "runner")
    words = folder.command("/runner").split()
    done = subprocess.run(["chroot", str(tmp_path), *words, "version"], capture_output=True, text=True)
    assert (done.stdout.strip(), done.returncode) == (PROTOCOL, 0), done.stderr


def test_with_the_devices_own_c_library():
    bare = assemble(architecture(), own_libc=False)
    assert not bare.loader
    assert "libc.so.6" not in bare.files()
    done = subprocess.run(
        ["sh", "-c", f"{bare.command(str(bare.path))} version"], capture_output=True, text=True
    )
    assert (done.stdout.strip(), done.returncode) == (PROTOCOL, 0), done.stderr


def test_it_is_made_once(folder):
    before = {path.name: path.stat().st_mtime_ns for path in folder.path.iterdir()}
    again = assemble(architecture())
    assert again == folder
    assert before == {path.name: path.stat().st_mtime_ns for path in folder.path.iterdir()}


def test_sessions_end_with_their_input_idleness_and_limit(folder, tmp_path):
    command = f"{folder.command(str(folder.path))} serve --threads 1 --home {tmp_path} --owner"

    def serve(arguments: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            ["sh", "-c", f"exec {command} {arguments}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        assert process.stdout.readline().startswith(PROTOCOL.encode())
        return process

    with serve("a") as process:
        busy = subprocess.run(
            ["sh", "-c", f"{command} b --wait 0.1"], capture_output=True, stdin=subprocess.DEVNULL
        )
        assert busy.returncode == 3
        assert [line.split()[1] for line in busy.stdout.splitlines()] == [b"waiting", b"busy"]
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(10) == 0
    for arguments in ("a --limit 1", "a --idle 1"):
        with serve(arguments) as process:
            assert process.wait(10) == 0
    assert os.listdir(tmp_path / "sessions") == []


@pytest.mark.parametrize("arch", ["arm", "riscv64", "mips"])
def test_architectures_without_a_wheel(arch):
    with pytest.raises(DeviceError, match="no native runner"):
        assemble(arch)
