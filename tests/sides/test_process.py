"""A side's process: answers, crashes, hangs, noise on stdout."""

from __future__ import annotations

import os
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from edgetune.bundle.arrays import write_npz
from edgetune.errors import BundleError, EdgetuneError, UsageError
from edgetune.sides.base import SideSpec
from edgetune.sides.process import SideProcess


@pytest.fixture
def side_of(tmp_path):
    """Starts a side whose ``run`` has the given body."""
    write_npz(tmp_path / "inputs.npz", {"x": np.arange(3.0), "file": np.ones(2)})

    def start(body: str, name: str = "side.py") -> SideProcess:
        path = tmp_path / name
        indented = textwrap.indent(textwrap.dedent(body), " " * 8)
        path.write_text(
            "import os, signal, sys, time\n"
            "class Side:\n"
            "    def __init__(self, spec): self.x = spec.arrays(); self.spec = spec\n"
            f"    def run(self):\n{indented}\n"
            "    def version(self): return 'side 1'\n"
            "open_side = Side\n"
        )
        return SideProcess(SideSpec(str(path), "model", str(tmp_path / "inputs.npz"), 2))

    return start


def test_outputs_and_times(side_of):
    with side_of("time.sleep(0.002); return {'a/b': self.x['x'] * 2, 'file': self.x['file']}") as side:
        assert side.version == "side 1"
        times = side.run(4)
        assert len(times) == 4
        assert all(time_ms >= 2 for time_ms in times)
        assert len(side.run(1, 0.1)) > 3
        outputs = side.outputs()
        assert list(outputs) == ["a/b", "file"]
        np.testing.assert_array_equal(outputs["a/b"], [0, 2, 4])


def test_what_is_printed_does_not_disturb(side_of):
    with side_of("print('hello'); os.write(1, b'{}\\n'); return {'y': self.x['x']}") as side:
        np.testing.assert_array_equal(side.outputs()["y"], np.arange(3.0))


def test_thread_counts_reach_the_process(side_of):
    body = "return {'n': __import__('numpy').array(int(os.environ['TVM_NUM_THREADS']))}"
    with side_of(body) as side:
        assert side.outputs()["n"] == 2


@pytest.mark.parametrize(
    "body, message",
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", r"died \(SIGSEGV\)"),
        (
            "print('out of luck', file=sys.stderr, flush=True); os._exit(3)",
            r"exit code 3\); its last words: out of",
        ),
        ("raise ValueError('no such axis')", "ValueError: no such axis"),
    ],
)
def test_crashes_and_errors_become_messages(side_of, body, message):
    with side_of(body) as side, pytest.raises(EdgetuneError, match=message):
        side.run(1)


def test_a_hanging_side_is_stopped(side_of):
    start = time.monotonic()
    with side_of("time.sleep(60)") as side, pytest.raises(EdgetuneError, match="did not answer within 1 s"):
        side.run(1, timeout_s=1)
    assert time.monotonic() - start < 20


def test_asking_a_dead_side_again(side_of):
    with side_of("os._exit(0)") as side:
        for _ in range(2):
            with pytest.raises(EdgetuneError, match="died"):
                side.run(1)
        side.wait_quiet()


def test_waiting_until_the_threads_are_at_rest(side_of):
    body = """
    import threading
    def spin():
        end = time.monotonic() + 0.6
        while time.monotonic() < end: pass
    threading.Thread(target=spin, daemon=True).start()
    return {}
    """
    with side_of(body) as side:
        side.run(1)
        start = time.monotonic()
        side.wait_quiet()
        assert time.monotonic() - start > 0.4
        start = time.monotonic()
        side.wait_quiet()
        assert time.monotonic() - start < 0.5


def test_memory_is_that_of_the_process(side_of):
    body = "self.block = bytearray(64 << 20); self.block[::4096] = b'x' * len(self.block[::4096]); return {}"
    with side_of(body) as side:
        side.run(1)
        peak, added = side.memory_bytes()
    assert 64 << 20 <= added < 200 << 20
    assert added < peak < 1 << 30


def test_no_process_is_left_behind(side_of):
    with side_of("return {}") as side:
        pid = side._process.pid
        assert Path(f"/proc/{pid}").exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_errors_of_opening_keep_their_class(tmp_path):
    write_npz(tmp_path / "inputs.npz", {})
    with pytest.raises(BundleError, match="does not exist"):
        SideProcess(SideSpec("edgetune", str(tmp_path / "no"), str(tmp_path / "inputs.npz"), 1))
    with pytest.raises(UsageError, match="no side 'nope'"):
        SideProcess(SideSpec("nope", "", str(tmp_path / "inputs.npz"), 1))
    (tmp_path / "empty.py").write_text("")
    with pytest.raises(UsageError, match="has no function open_side"):
        SideProcess(SideSpec(str(tmp_path / "empty.py"), "", str(tmp_path / "inputs.npz"), 1))
