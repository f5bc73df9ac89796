"""Other users of this machine reach its loopback, and must get nothing there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import psutil
import pytest

from edgetune.devices.local import local_device
from edgetune.devices.remote import remote_device
from edgetune.devices.session import lease
from tests.devices.sshd import SSHD, Sshd

LEASE_S = 90.0
NOBODY = 65534

# What a stranger can try, with nothing but the standard library, since he may not read ours.
STRANGER = r"""
import json, socket, struct, sys

tracker_magic, rpc_magic, request, summary, names, ports, pids = json.loads(sys.argv[1])


def receive(connection):
    head = connection.recv(4)
    if len(head) < 4:
        return "closed"
    size = struct.unpack("<i", head)[0]
    return connection.recv(size).decode() if 0 < size < 1 << 20 else size


def ask_tracker(port, message):
    with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
        connection.sendall(struct.pack("<i", tracker_magic))
        connection.recv(4)
        data = json.dumps(message).encode()
        connection.sendall(struct.pack("<i", len(data)) + data)
        return receive(connection)


def ask_runner(port, key):
    with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
        connection.sendall(struct.pack("<ii", rpc_magic, len(key)) + key.encode())
        return struct.unpack("<i", connection.recv(4))[0] - rpc_magic, len(connection.recv(1))


def trying(function, *arguments):
    try:
        return function(*arguments)
    except (OSError, struct.error) as error:
        return type(error).__name__


def read(path):
    with open(path, "rb") as file:
        return file.read().decode(errors="replace")


print(json.dumps({
    "summaries": [trying(ask_tracker, port, [summary]) for port in ports],
    "leases": [trying(ask_tracker, port, [request, name, "", 1]) for port in ports for name in names],
    "sessions": [trying(ask_runner, port, "client:" + name + ":0" * 32) for port in ports for name in names],
    "commands": [trying(read, f"/proc/{pid}/cmdline") for pid in pids],
    "secrets": [trying(read, f"/proc/{pid}/{kind}") for pid in pids for kind in ("environ", "mem", "fd/0")],
}))
"""


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    """A device behind an SSH server."""
    if SSHD is None:
        pytest.skip("no OpenSSH server is installed")
    folder = tmp_path_factory.mktemp("board")
    server = Sshd(folder, str(folder / "cache"))
    server.start()
    try:
        yield remote_device("board", server.address, 2)
    finally:
        server.stop()


def strangers_findings(device):
    """What another user finds out about a device that is up, and what he gets of it."""
    from tvm.rpc import base

    assert os.getuid() == 0
    pids = device.transport.processes()
    ports = [
        connection.laddr.port
        for pid in pids
        for connection in psutil.Process(pid).net_connections()
        if connection.status == psutil.CONN_LISTEN
    ]
    assert len(ports) == 2
    # A Python that he may start: the tests' own may lie in a folder of root's.
    found = [
        path for path in (shutil.which("python3", path="/usr/bin:/usr/local/bin"), sys.executable) if path
    ]
    python = next((path for path in found if not os.path.realpath(path).startswith("/root/")), None)
    if python is None:
        pytest.skip("every Python here is in root's own folder")
    codes = [base.RPC_TRACKER_MAGIC, base.RPC_MAGIC, base.TrackerCode.REQUEST, base.TrackerCode.SUMMARY]
    done = subprocess.run(
        ["/usr/bin/env", "-i", python, "-I", "-c", STRANGER, json.dumps([*codes, [device.name], ports, pids])],
        capture_output=True, text=True, user=NOBODY, group=NOBODY, extra_groups=[], cwd="/",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(done.stdout)


@pytest.mark.skipif(os.getuid() != 0, reason="only root may become another user")
@pytest.mark.parametrize("kind", ["local", "ssh"])
def test_another_user_of_this_machine_gets_no_session(kind, request):
    device = local_device(2) if kind == "local" else request.getfixturevalue("board")
    with device.up():
        with lease(device, LEASE_S):
            pass
        text, found = strangers_findings(device)
        assert device.transport.key not in text
        assert device.transport.key.removeprefix(f"{device.name}-") not in text
        answers = [json.loads(answer) for answer in found["summaries"] if answer.startswith("[")]
        assert answers == [[0, {"queue_info": {}, "server_info": []}]], "the tracker tells nobody its keys"
        assert set(found["leases"]) <= {"TimeoutError", "closed", "ConnectionResetError"}
        assert [2, 0] in found["sessions"], "the runner refuses a wrong key, and hangs up"
        assert not [session for session in found["sessions"] if isinstance(session, list) and session[0] == 0]
        assert set(found["secrets"]) == {"PermissionError"}
        with lease(device, LEASE_S) as session, session.deadline(10, "alive"):
            assert session.function("runtime.NumThreads")() == 2
