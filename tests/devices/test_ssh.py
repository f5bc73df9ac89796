"""A device behind a real SSH server on loopback: the whole way, faults, and what must be refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import psutil
import pytest

from edgetune.benchmarking.profile import OTHER, profile
from edgetune.devices import registry
from edgetune.devices.address import parse_address
from edgetune.devices.inventory import open_device
from edgetune.devices.manage import add_device, remove_device
from edgetune.devices.remote import remote_device
from edgetune.devices.session import SessionError, SessionLostError, SessionTimeoutError, lease
from edgetune.errors import DeviceError
from edgetune.toolchain import _empty_object, link_shared
from edgetune.verify import compare
from edgetune.watcher import Watcher
from tests.devices.kernels import libc_call, run_library
from tests.devices.sshd import SSHD, Sshd, make_key
from tests.standalone import topk
from tests.standalone.conftest import VALUES, write_handmade

LEASE_S = 90.0


def wait_for(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A device that several tests use, one after the other, and the server it is behind."""
    if SSHD is None:
        pytest.skip("no OpenSSH server is installed")
    folder = tmp_path_factory.mktemp("shared")
    server = Sshd(folder, str(folder / "cache"))
    server.start()
    device = remote_device("board", server.address, 2)
    try:
        with device.up():
            yield device, server
    finally:
        server.stop()


@pytest.fixture
def device(shared):
    return shared[0]


@pytest.fixture
def server(shared):
    return shared[1]


def test_the_whole_way(sshd, run_cli, bundle, tmp_path):
    code, out, err = run_cli("devices", "add", "board", sshd.url, *sshd.options, "--json")
    assert code == 0, err
    assert json.loads(out)["arch"] == os.uname().machine
    stored = registry.registry_path().read_text()
    assert "PRIVATE" not in stored

    code, out, _ = run_cli("devices", "doctor", "board", "--json")
    assert code == 0, out
    assert json.loads(out)["healthy"]

    code, out, err = run_cli("compare", str(bundle), "--device", "board", "--json")
    assert code == 0, err
    assert json.loads(out)["passed"]
    code, out, err = run_cli("benchmark", str(bundle), "--device", "board", "--rounds", "2", "--json")
    assert code == 0, err
    assert json.loads(out)["edgetune"]["median_ms"] > 0

    ours = tmp_path / "ours.npz"
    theirs = tmp_path / "theirs.npz"
    for path, where in ((ours, "local"), (theirs, "board")):
        assert run_cli("run", str(bundle), "--seed", "3", "--output", str(path), "--device", where)[0] == 0
    with np.load(ours) as here, np.load(theirs) as there:
        for name in here.files:
            np.testing.assert_allclose(here[name], there[name], rtol=1e-5, atol=1e-5)

    assert run_cli("devices", "remove", "board")[0] == 0
    assert not os.path.exists(f"{sshd.cache}/edgetune")
    assert sshd.runners() == []


def test_kernels_are_timed_there(device, local_target, tmp_path):
    result = profile(write_handmade(tmp_path, local_target), device=device, runs=3)
    by_name = {kernel.name: kernel for kernel in result.kernels}
    assert {name: kernel.calls for name, kernel in by_name.items()} == {
        "add": 2,
        "nested": 1,
        "fail": 1,
        "copy": 2,
    }
    assert by_name["add"].bytes == 2 * 3 * VALUES * 4
    assert sum(kernel.share for kernel in result.kernels) == pytest.approx(1.0)
    assert by_name["add"].roofline > 0
    assert (result.device, result.threads) == ("board", device.threads)
    assert result.latency_ms > 0
    said = result.to_json()["machine"]
    assert said["peak_gflops"] > 0.1
    assert all(limit["gbps"] > 0.01 for limit in said["bandwidth"])


def test_instructions_of_the_virtual_machine_are_timed_there(device, shared_bundle):
    """The same calls, tensors and operations as an observer in Python finds on this machine."""
    there, here = profile(shared_bundle, device=device, runs=3), profile(shared_bundle, runs=1)

    def known(result):
        return {(kernel.name, kernel.calls, kernel.bytes, kernel.flops) for kernel in result.kernels}

    assert known(there) == known(here)
    by_name = {kernel.name: kernel for kernel in there.kernels}
    assert by_name["conv2d"].bytes >= 4 * (3 * 16 * 16 + 8 * 3 * 9 + 8 * 16 * 16)
    assert by_name["conv2d"].time_us > 0
    assert by_name[OTHER].bytes == 0
    assert sum(kernel.share for kernel in there.kernels) == pytest.approx(1.0)
    assert (there.device, there.threads) == ("board", device.threads)
    assert by_name["conv2d"].roofline > 0


def test_sorting_of_tvm_is_timed_there(device, local_target, tmp_path):
    bundle = topk.compiled(local_target, tmp_path / "best")
    result = profile(bundle, device=device, shapes={"x": (4, 16)}, runs=1, roofline=False)
    moved = {kernel.name: kernel.bytes for kernel in result.kernels if kernel.name != OTHER}
    assert moved.keys() == {"dense", "topk"}
    # Products of (4, 16) and (16, 12), whose columns may be filled up to whole vectors.
    assert moved["dense"] >= 4 * (4 * 16 + 16 * 12 + 4 * 12)
    # Of them (4, 3) float32, and as many positions in int64.
    assert moved["topk"] == 4 * 4 * 12 + (4 + 8) * 4 * 3


def test_sorting_of_tvm_is_there(device, local_target, tmp_path):
    assert compare(topk.compiled(local_target, tmp_path / "best"), device=device).passed


def test_a_library_for_another_machine_is_not_sent(device, tmp_path):
    link_shared([_empty_object("riscv64")], tmp_path / "k.so", "riscv64-linux-gnu")
    data = (tmp_path / "k.so").read_bytes()
    with lease(device, LEASE_S) as session:
        with session.deadline(30, "sending"), pytest.raises(DeviceError, match=r"riscv64.*was not sent"):
            session.upload("k.so", data)
        with session.deadline(30, "asking"):
            assert int(session.function("runtime.NumThreads")()) == 2


def test_the_runner_is_sent_once(sshd):
    add_device("board", sshd.address)
    files = {entry.name: entry.stat().st_mtime_ns for entry in os.scandir(f"{sshd.cache}/edgetune")}
    with open_device("board", 2).up():
        pass
    again = {entry.name: entry.stat().st_mtime_ns for entry in os.scandir(f"{sshd.cache}/edgetune")}
    sent = {name for name in files if name.startswith("runner-")}
    assert sent == {name for name in again if name.startswith("runner-")}
    assert {name: files[name] for name in sent} == {name: again[name] for name in sent}


def test_removing_a_device_ends_what_runs_there(sshd):
    add_device("board", sshd.address)
    device = open_device("board", 2)
    with device.up(), lease(device, LEASE_S):
        running = sshd.runners()
        assert running
        remove_device("board")
        wait_for(lambda: not any(process.is_running() for process in running), 5)
        assert not os.path.exists(f"{sshd.cache}/edgetune")


def test_an_unknown_host_key_is_refused_and_can_be_accepted(sshd, run_cli):
    known = sshd.known_hosts.read_text()
    sshd.known_hosts.write_text("")
    code, _, err = run_cli("devices", "add", "board", sshd.url, *sshd.options)
    assert code == 4
    assert "is not known" in err
    fingerprint = subprocess.check_output(["ssh-keygen", "-lf", str(sshd.host_key)], text=True).split()[1]
    assert fingerprint in " ".join(err.split())
    assert registry.load_registry().devices == {}
    wrong = run_cli("devices", "add", "board", sshd.url, *sshd.options, "--host-key", "SHA256:wrong")
    assert wrong[0] == 4
    code, _, err = run_cli("devices", "add", "board", sshd.url, *sshd.options, "--host-key", fingerprint)
    assert code == 0, err
    assert sshd.known_hosts.read_text() == known


def test_a_changed_host_key_stops_everything(sshd, run_cli, tmp_path):
    add_device("board", sshd.address)
    sshd.trust(make_key(tmp_path / "another"))
    for command in (
        ["devices", "probe", "board"],
        ["devices", "doctor", "board"],
        ["devices", "remove", "board"],
    ):
        code, out, err = run_cli(*command)
        assert code == 4
        assert "CHANGED" in err + out
    with pytest.raises(DeviceError, match="CHANGED"), open_device("board", 2).up():
        pass


def test_no_key_fits(sshd, run_cli, tmp_path):
    other = make_key(tmp_path / "other")
    options = ["--identity", str(other), "--known-hosts", str(sshd.known_hosts)]
    code, _, err = run_cli("devices", "add", "board", sshd.url, *options)
    assert (code, "accepts none of your keys" in " ".join(err.split())) == (4, True)


def test_a_passphrase_is_asked_for_once_and_not_stored(sshd, tmp_path):
    locked = make_key(tmp_path / "locked", "open sesame")
    sshd.authorize(locked)
    asked = []

    def ask(prompt):
        asked.append(prompt)
        return "open sesame"

    add_device("board", parse_address(sshd.url, None, locked, sshd.known_hosts), ask)
    with open_device("board", 2).up():
        pass
    assert len(asked) == 1
    assert "sesame" not in registry.registry_path().read_text()


def test_through_a_jump_host(make_sshd):
    hop, board = make_sshd(forwarding=True), make_sshd()
    hop.authorize(board.identity)
    board.known_hosts.write_text(board.known_hosts.read_text() + hop.known_hosts.read_text())
    address = parse_address(board.url, hop.url, board.identity, board.known_hosts)
    add_device("board", address)
    device = open_device("board", 2)
    with device.up(), lease(device, LEASE_S) as session, session.deadline(20, "alive"):
        assert session.function("runtime.NumThreads")() == 2
        assert board.runners()
    assert hop.runners() == []


def test_a_wrong_key_of_the_session_is_refused(device):
    """Whoever finds the port on this machine's loopback gets nothing without the tracker's key."""
    from tvm.rpc import connect

    from edgetune.devices.session import _ask_tracker

    endpoint = device.transport.endpoint(30)
    host, port, key = _ask_tracker(device, endpoint, time.monotonic() + 30)
    assert host == "127.0.0.1"
    with pytest.raises(Exception, match=r"(?i)key|mismatch|match"):
        connect(host, port, key[:-1] + ("0" if key[-1] != "0" else "1"))
    with lease(device, LEASE_S):
        pass


def test_nothing_listens_but_on_loopback_here(device, server):
    with lease(device, LEASE_S):
        for pid in device.transport.processes():
            listening = [c for c in psutil.Process(pid).net_connections() if c.status == psutil.CONN_LISTEN]
            assert {c.laddr.ip for c in listening} == {"127.0.0.1"}
        # On the device nothing listens at all.
        assert server.runners()
        for process in server.runners():
            assert [c for c in process.net_connections() if c.status == psutil.CONN_LISTEN] == []


def test_a_crash_ends_its_session_only(device, server):
    with lease(device, LEASE_S) as session, pytest.raises(SessionLostError):
        run_library(session, libc_call("abort"), 20)
    assert not device.transport.revive(), "the device is not to blame"
    with lease(device, LEASE_S) as session, session.deadline(10, "alive"):
        assert session.function("runtime.NumThreads")() == 2


def test_a_hang_ends_with_its_deadline(device, server):
    with lease(device, LEASE_S) as session:
        hung = server.runners()
        with pytest.raises(SessionTimeoutError):
            run_library(session, libc_call("pause"), 3)
    wait_for(lambda: not any(process.is_running() for process in hung))
    with lease(device, LEASE_S) as session, session.deadline(10, "alive"):
        assert session.function("runtime.NumThreads")() == 2


def test_a_stopped_runner_is_replaced(device, server):
    """SIGSTOP to all of it, the watching process too: the next session kills what the owner left behind."""
    with lease(device, LEASE_S) as session:
        stopped = server.runners()
        for process in stopped:
            process.send_signal(signal.SIGSTOP)
        with pytest.raises(SessionTimeoutError), session.deadline(2, "asking a stopped device"):
            session.function("runtime.NumThreads")()
    started = time.monotonic()
    with lease(device, LEASE_S) as session, session.deadline(10, "alive"):
        assert session.function("runtime.NumThreads")() == 2
    assert time.monotonic() - started < 20
    wait_for(lambda: not any(process.is_running() for process in stopped))
    assert os.listdir(f"{server.cache}/edgetune/sessions") == []


def test_what_a_run_that_is_gone_left_is_ended(server):
    """As after a cut that the device did not notice: the next run of the same user need not wait for it."""
    gone = remote_device("board", server.address, 2)
    with gone.up(), lease(gone, LEASE_S):
        left = server.runners()
        for process in left:
            process.send_signal(signal.SIGSTOP)
    assert all(process.is_running() for process in left)
    again = remote_device("board", server.address, 2)
    with again.up(), lease(again, LEASE_S) as session, session.deadline(10, "alive"):
        assert session.function("runtime.NumThreads")() == 2
    wait_for(lambda: not any(process.is_running() for process in left))


def test_the_device_dies_and_comes_back(device, server):
    with lease(device, LEASE_S) as session:
        server.stop()
        with pytest.raises(SessionError), session.deadline(20, "asking a dead device"):
            session.function("runtime.NumThreads")()
    assert device.transport.revive(), "the candidate is not to blame"
    with pytest.raises(DeviceError, match=r"Last said: .*cannot be reached"):
        lease(device, 4)
    server.start()
    with lease(device, LEASE_S) as session, session.deadline(20, "alive"):
        assert session.function("runtime.NumThreads")() == 2


def test_two_users_wait_in_turn(device, server):
    other = remote_device("board", server.address, 2)
    with other.up():
        with lease(device, LEASE_S) as session:
            with pytest.raises(DeviceError, match=r"(?s)another user's session holds"):
                lease(other, 7)
            with session.deadline(10, "alive"):
                session.function("runtime.NumThreads")()
        with lease(other, LEASE_S):
            pass


class Killer(Watcher):
    """Has the device die while the third candidate is about to be measured, and come back two seconds later."""

    def __init__(self, server):
        self.server = server
        self.died = False

    def tuning(self, progress):
        if progress.trials_spent == 2 and not self.died:
            self.died = True
            self.server.stop()
            self.revival = threading.Timer(2, self.server.start)
            self.revival.start()


def test_a_device_that_dies_mid_batch_costs_no_trial(sshd, conv_file, tmp_path):
    import edgetune
    from edgetune.logs import open_logs

    add_device("board", sshd.address)
    killer = Killer(sshd)
    logs = tmp_path / "logs.sqlite"
    try:
        result = edgetune.tune(
            conv_file,
            device="board",
            trials=8,
            out=tmp_path / "bundle",
            logs=logs,
            watcher=killer,
            measure_latency=False,
        )
    finally:
        if killer.died:  # or it starts a server that nobody stops
            killer.revival.join()
    assert killer.died
    assert result.verified.passed
    assert result.trials_spent == 8
    assert result.failures == {}, "the candidate that was being measured is not to blame"
    with open_logs(logs) as opened:
        assert sum(1 for _ in opened.every()) == 8


def test_nothing_outlives_a_killed_owner(sshd, tmp_path):
    add_device("board", sshd.address)
    code = textwrap.dedent("""
        import time
        from edgetune.devices.inventory import open_device
        from edgetune.devices.session import lease
        device = open_device("board", 2)
        with device.up() as transport, lease(device, 90):
            print(*transport.processes(), flush=True)
            time.sleep(600)
    """)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as owner:
        here = [psutil.Process(int(pid)) for pid in owner.stdout.readline().split()]
        there = sshd.runners()
        assert len(here) == 2
        assert there
        owner.kill()
    wait_for(lambda: not any(process.is_running() for process in [*here, *there]))
    wait_for(lambda: os.listdir(f"{sshd.cache}/edgetune/sessions") == [])
