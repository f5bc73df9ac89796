"""What rpc/ brings for those who start runners themselves: the listening runner, a systemd unit, an Android script."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import psutil
import pytest

from edgetune.cpu import architecture
from edgetune.devices.native import assemble
from edgetune.resources import data_path
from tests.devices.kernels import TARGETS, kernel_for
from tests.devices.piped import forwarded

UNIT = data_path("rpc") / "edgetune-runner.service"
SCRIPT = data_path("rpc") / "android.sh"
KEY = "0123456789abcdef0123456789abcdef"

# What `adb` would do on a phone, done here: paths on the phone are paths of this machine.
ADB = """#!/bin/sh
case $1 in
  get-state) echo device ;;
  shell) exec sh -c "$2" ;;
  push) cp -r "$2" "$3" ;;
  forward)
    case $2 in
      --list) cat "$FORWARDS" 2>/dev/null || true ;;
      --remove) rm "$FORWARDS" ;;
      *) echo "serial tcp:12345 $3" > "$FORWARDS"; echo 12345 ;;
    esac ;;
  *) exit 9 ;;
esac
"""


def check_session(port: int, key: str) -> None:
    """A kernel computes there what NumPy does here."""
    import tvm
    from tvm import rpc

    remote = rpc.connect("127.0.0.1", port, key)
    remote.upload(bytearray(kernel_for(TARGETS[architecture()])), "kernel.so")
    library = remote.load_module("kernel.so")
    x = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    tensors = [tvm.runtime.tensor(array, device=remote.cpu(0)) for array in (x, np.zeros_like(x))]
    library["main"](*tensors)
    np.testing.assert_allclose(tensors[1].numpy(), x * 2 + 1, rtol=1e-6)


def test_a_listening_runner_wants_its_key_and_a_private_folder(tmp_path):
    from tvm import rpc

    folder = assemble(architecture())
    home = tmp_path / "home"
    file = tmp_path / "key"
    command = [*folder.command(str(folder.path)).split(), "listen", "--threads", "1", "--key-file", str(file)]
    cpus = {min(os.sched_getaffinity(0))}
    command += ["--home", str(home), "--wait", "10", "--cpus", str(*cpus)]

    def refused() -> str:
        return subprocess.run(command, capture_output=True, text=True, timeout=20).stderr

    assert "cannot read" in refused()
    file.write_text("short\n")
    assert "could guess it" in refused()
    file.write_text(f"{KEY}\n")
    home.mkdir(mode=0o755)
    home.chmod(0o755)
    assert "others may enter" in refused()
    home.chmod(0o700)
    with subprocess.Popen(command, stdout=subprocess.PIPE) as runner:
        try:
            assert runner.stdout is not None
            assert b"listening" in runner.stdout.readline()
            assert os.sched_getaffinity(runner.pid) == cpus, "the sessions that it starts inherit it"
            assert {c.status for c in psutil.Process(runner.pid).net_connections()} <= {psutil.CONN_NONE}
            with forwarded(home / "socket") as port:
                for wrong in (KEY[:-1], KEY[:-1] + "0", KEY + "0", "x"):
                    with pytest.raises(Exception, match=r"(?i)key|mismatch|match"):
                        rpc.connect("127.0.0.1", port, wrong)
                check_session(port, KEY)
                check_session(port, KEY)
        finally:
            runner.terminate()
        assert runner.wait(10) == 0


@pytest.mark.parametrize("shell", ["sh", "dash", "bash"])
def test_the_android_script_is_plain_shell(shell):
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    subprocess.run([shell, "-n", str(SCRIPT)], check=True)


def test_the_android_script_starts_stops_and_cleans_up(tmp_path):
    """Against a stand-in for adb whose phone is a folder here."""
    adb, home = tmp_path / "adb", tmp_path / "phone"
    adb.write_text(ADB)
    adb.chmod(0o755)
    environment = {
        **os.environ,
        "ADB": str(adb),
        "EDGETUNE_HOME": str(home),
        "FORWARDS": str(tmp_path / "forwards"),
    }

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", str(SCRIPT), *arguments], env=environment, capture_output=True, text=True, timeout=60
        )

    assert "usage" in run().stderr
    assert "wants the folder" in run("start", str(tmp_path)).stderr
    started = run("start", str(assemble(architecture()).path), "1")
    assert started.returncode == 0, started.stderr
    (_, port), (_, key) = (line.split() for line in started.stdout.splitlines())
    assert port == "12345"
    assert len(key) == 32
    assert (home.stat().st_mode & 0o777, (home / "key").stat().st_mode & 0o777) == (0o700, 0o600)
    process = psutil.Process(int((home / "pid").read_text()))
    assert key not in " ".join(process.cmdline())
    assert os.getsid(process.pid) != os.getsid(0), "it must outlive adb's connection"
    assert f"process {process.pid}" in run("status").stdout
    with forwarded(home / "socket") as there:
        check_session(there, key)
    assert run("stop").returncode == 0
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    assert run("status").stdout.strip() == "stopped"
    assert sorted(os.listdir(home)) == ["runner"]
    assert not (tmp_path / "forwards").exists()
    assert run("remove").returncode == 0
    assert not home.exists()

    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "runner").write_text("#!/bin/sh\necho no such library\n")
    (broken / "runner").chmod(0o755)
    failed = run("start", str(broken), "1")
    assert failed.returncode == 1
    assert "no such library" in failed.stderr
    assert not home.exists(), "a start that failed leaves nothing behind"


def test_the_unit_is_valid_and_gives_the_least_rights(tmp_path):
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("there is no systemd-analyze here")
    # The programs that it starts are not where they would be on a board.
    unit = tmp_path / UNIT.name
    text = UNIT.read_text().replace("/opt/edgetune/bin/python", os.path.realpath(sys.executable))
    unit.write_text(text.replace("file:///opt/edgetune/README.md", "man:systemd.service(5)"))
    done = subprocess.run([tool, "verify", "--man=no", str(unit)], capture_output=True, text=True)
    assert (done.returncode, done.stderr.strip()) == (0, "")
    rated = subprocess.run(
        [tool, "security", "--offline=true", "--threshold=20", str(unit)], capture_output=True, text=True
    )
    if "unrecognized option" in rated.stderr:
        pytest.skip("this systemd-analyze is older than 250")
    assert rated.returncode == 0, rated.stdout[-300:]


def deny_write_execute() -> None:
    """What MemoryDenyWriteExecute= of systemd 253 does: prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN)."""
    if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0) != 0:
        os._exit(77)


def test_kernels_run_where_memory_is_never_written_and_executed():
    """The unit says MemoryDenyWriteExecute=yes; the key comes through standard input, as it says too."""
    command = [sys.executable, str(data_path("rpc") / "runner.py"), "--key", "-", "--threads", "1"]
    with subprocess.Popen(
        [*command, "--with-owner"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        preexec_fn=deny_write_execute,
    ) as runner:
        assert runner.stdin is not None
        assert runner.stdout is not None
        runner.stdin.write(f"{KEY}\n".encode())
        runner.stdin.flush()
        line = runner.stdout.readline()
        if not line and runner.wait(10) == 77:
            pytest.skip("this kernel is older than 6.3")
        check_session(json.loads(line)["port"], KEY)
        runner.stdin.close()
        assert runner.wait(10) == 0
