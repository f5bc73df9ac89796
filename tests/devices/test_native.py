"""The native runner by itself: complete, and particular about what it is asked."""

from __future__ import annotations

import os
import shutil
import subprocess

import numpy as np
import pytest

from edgetune.cpu import architecture
from edgetune.devices.deploy import PROTOCOL
from edgetune.devices.native import WITHOUT_TVM, assemble
from edgetune.errors import DeviceError
from tests.devices.kernels import TARGETS, kernel_for
from tests.devices.piped import session_of


@pytest.fixture(scope="module")
def folder():
    return assemble(architecture())


@pytest.mark.skipif(os.getuid() != 0, reason="only root may chroot")
@pytest.mark.parametrize("arch", TARGETS)
def test_it_needs_nothing_of_the_device(arch, tmp_path):
    """A kernel is sent, run and timed in a root where nothing else is: no C library, no shell, no /proc."""
    import tvm

    emulator = shutil.which(f"qemu-{arch}-static")
    if arch != architecture() and emulator is None:
        pytest.skip("not installed: qemu-user-static")
    made = assemble(arch)
    if not made.loader:
        pytest.skip(f"this machine has no C library for {arch}")
    root = tmp_path / "root"
    shutil.copytree(made.path, root / "runner")
    (root / "home").mkdir()
    words = made.command("/runner").split()
    if arch != architecture():
        # It stands for the device's processor, and needs nothing itself.
        shutil.copy(str(emulator), root / "qemu")
        words = ["/qemu", *words]
    serve = ["chroot", str(root), *words, "serve", "--threads", "2", "--home", "/home"]
    with session_of(serve) as remote:
        remote.upload(bytearray(kernel_for(TARGETS[arch])), "kernel.so")
        library = remote.load_module("kernel.so")
        x = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
        tensors = [tvm.runtime.tensor(array, device=remote.cpu(0)) for array in (x, np.zeros_like(x))]
        library["main"](*tensors)
        np.testing.assert_allclose(tensors[1].numpy(), x * 2 + 1, rtol=1e-6)
        timed = library.time_evaluator("main", remote.cpu(0), number=2, repeat=3)(*tensors)
        assert min(timed.results) > 0
        assert remote.get_function("runtime.NumThreads")() == 2
        if arch not in WITHOUT_TVM:
            # What a model's TopK calls: values, of the last axis, the largest first.
            best = tvm.runtime.tensor(np.zeros((64, 3), np.float32), device=remote.cpu(0))
            remote.get_function("tvm.contrib.sort.topk")(tensors[0], best, 3, -1, "values", False)
            np.testing.assert_array_equal(best.numpy(), -np.sort(-x)[:, :3])
            del best
        del library, tensors, timed
    there = sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
    assert [name for name in there if not name.startswith(("runner/", "qemu"))] == ["home/lock"]


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


def test_an_architecture_that_edgetune_makes_no_code_for():
    with pytest.raises(DeviceError, match="no native runner"):
        assemble("mips")
