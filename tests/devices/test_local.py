"""The local device with its real tracker and runner."""

import socket
import subprocess
import sys
import textwrap
import time

import numpy as np
import psutil
import pytest

from edgetune.devices.inventory import open_device
from edgetune.devices.local import local_device
from edgetune.devices.session import (
    SessionError,
    SessionLostError,
    SessionTimeoutError,
    lease,
)
from edgetune.devices.transport import Device, Endpoint, Transport
from edgetune.errors import DeviceError
from tests.devices.kernels import libc_call, run_library

LEASE_S = 90.0


@pytest.fixture(scope="module")
def device():
    device = local_device(threads=2)
    with device.up():
        yield device


@pytest.fixture
def session(device):
    with lease(device, LEASE_S) as session:
        yield session


def test_the_local_device_fits_the_contract(device):
    assert isinstance(device, Device)
    assert isinstance(device.transport, Transport)
    assert device.shares_host
    assert device.name == "local"


def test_a_session_runs_functions_with_the_threads_asked_for(session):
    with session.deadline(10, "threads"):
        assert session.function("runtime.NumThreads")() == 2


def test_files_and_tensors_travel(session):
    import tvm

    values = np.arange(1000, dtype=np.float32)
    with session.deadline(10, "copying"):
        session.upload("x.bin", b"\0\1\2" * 1000)
        remote = tvm.runtime.tensor(values, device=session.tvm_device("cpu"))
        np.testing.assert_array_equal(remote.numpy(), values)
        session.remove("x.bin")


def test_both_processes_listen_on_loopback_only(device):
    for pid in device.transport.processes():
        listening = [c for c in psutil.Process(pid).net_connections() if c.status == psutil.CONN_LISTEN]
        assert listening
        assert {c.laddr.ip for c in listening} == {"127.0.0.1"}


def test_one_lease_at_a_time_and_waiting_has_an_end(device, session):
    started = time.monotonic()
    with pytest.raises(DeviceError, match="did not become free"):
        lease(device, 1.0)
    assert time.monotonic() - started < 5


def test_a_request_that_gave_up_does_not_swallow_the_device(device):
    with lease(device, LEASE_S), pytest.raises(DeviceError):
        lease(device, 0.5)
    with lease(device, 20):
        pass


def test_an_error_on_the_device_leaves_the_session_alive(session):
    with pytest.raises(SessionError, match=r"asking.*nosuchfunction"), session.deadline(10, "asking"):
        session.function("nosuchfunction")()
    assert session.is_open
    with session.deadline(10, "asking"):
        session.function("runtime.NumThreads")()


@pytest.mark.parametrize("call", [("abort",), ("raise", 11), ("_exit", 3)], ids=["abort", "segv", "exit"])
def test_a_crash_ends_the_session_and_not_the_runner(device, call):
    before = device.transport.processes()
    session = lease(device, LEASE_S)
    with pytest.raises(SessionLostError, match="the kernel"):
        run_library(session, libc_call(*call), 20)
    assert not session.is_open
    with lease(device, 20) as again, again.deadline(10, "threads"):
        assert again.function("runtime.NumThreads")() == 2
    assert device.transport.processes() == before
    assert not device.transport.revive()


def test_a_hang_ends_at_the_deadline_and_its_process_is_killed(device):
    session = lease(device, LEASE_S)
    started = time.monotonic()
    with pytest.raises(SessionTimeoutError, match="longer than 1 s"):
        run_library(session, libc_call("pause"), 1.0)
    assert time.monotonic() - started < 5
    with lease(device, 20):
        pass
    runner = psutil.Process(device.transport.processes()[1])
    wait_until(lambda: len(runner.children()) == 0)


def test_a_dead_runner_is_revived():
    device = local_device(threads=1)
    with device.up() as transport:
        session = lease(device, LEASE_S)
        runner = psutil.Process(transport.processes()[1])
        sessions = runner.children()
        runner.kill()
        # The kernel ends the sessions of a dead runner soon, not at once.
        psutil.wait_procs(sessions, timeout=10)
        with pytest.raises(SessionLostError), session.deadline(10, "threads"):
            session.function("runtime.NumThreads")()
        assert transport.revive()
        with lease(device, LEASE_S) as again, again.deadline(10, "threads"):
            assert again.function("runtime.NumThreads")() == 1


def test_leaving_the_context_ends_everything_and_entering_twice_is_once():
    device = local_device(threads=1)
    with device.up() as transport:
        with device.up():
            pids = transport.processes()
        assert transport.processes() == pids
        assert len(pids) == 2
    wait_until(lambda: not any(map(psutil.pid_exists, pids)))
    with pytest.raises(DeviceError, match="stopped"):
        lease(device, 1)


def test_nothing_survives_when_the_owner_is_killed():
    code = textwrap.dedent("""
        import sys
        from edgetune.devices.local import local_device
        from edgetune.devices.session import lease
        device = local_device(1)
        with device.up() as transport:
            session = lease(device, 90)
            print(*transport.processes(), flush=True)
            sys.stdin.read()
    """)
    owner = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        processes = [psutil.Process(int(pid)) for pid in owner.stdout.readline().split()]
        family = processes + [child for process in processes for child in process.children(recursive=True)]
        assert len(family) == 3, "tracker, runner, session"
    finally:
        owner.kill()
        owner.wait()
        owner.stdin.close()
        owner.stdout.close()
    wait_until(lambda: not any(process.is_running() for process in family))


def test_a_tracker_that_is_no_tracker():
    class Elsewhere:
        def endpoint(self, timeout_s):
            return endpoint

        def complaint(self):
            return ""

    device = Device("odd", Elsewhere(), shares_host=False, threads=1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = Endpoint("127.0.0.1", silent.getsockname()[1], "odd")
        with pytest.raises(DeviceError, match="'odd'"):
            lease(device, 1.0)
    with pytest.raises(DeviceError, match="does not answer"):
        lease(device, 1.0)


def test_the_inventory_knows_local_only():
    assert open_device(None, 1).name == "local"
    with pytest.raises(DeviceError, match="did you mean local"):
        open_device("locla", 1)


def wait_until(condition, timeout_s: float = 10.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)
