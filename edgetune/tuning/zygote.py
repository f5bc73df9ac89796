"""A warm process that forks workers: ``python -m edgetune.tuning.zygote FD``.

It imports TVM once, stays single-threaded, and forks a worker in a few milliseconds whenever it is asked
for one; forking the tuning process itself, with its threads, would not be safe. A worker is a loop that
receives ``(function, arguments)`` and answers ``(ok, result)``.

The zygote ends when its owner's end of the control connection closes, however the owner died, and the
kernel kills the workers with it. Its temporary folder (``TMPDIR``) belongs to it alone and goes with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import resource
import shutil
import signal
import socket
import sys
from multiprocessing.connection import Connection
from typing import Any

FORK = "fork"
REAP = "reap"


def serve(control: socket.socket, preload: list[str]) -> None:
    """Fork a worker for each connection that arrives on ``control``; never returns normally.

    Messages are one line: ``fork`` with a descriptor attached, answered by the worker's process id;
    ``reap PID``, which ends the worker and is answered by its exit status (as ``os.waitpid`` gives it).
    """
    for name in preload:
        importlib.import_module(name)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # crashes are expected, their core files not wanted
    control.sendall(b"ready\n")
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 256, 1)
        if not message:
            return
        for line in message.decode().splitlines():
            command, _, argument = line.partition(" ")
            if command == FORK:
                _fork(control, descriptors.pop())
            elif command == REAP:
                control.sendall(f"{_reap(int(argument))}\n".encode())


def _fork(control: socket.socket, descriptor: int) -> None:
    parent = os.getpid()
    worker = os.fork()
    if worker == 0:
        control.close()
        _die_with(parent)
        try:
            _work(Connection(descriptor))
        finally:
            os._exit(0)
    os.close(descriptor)
    control.sendall(f"{worker}\n".encode())


def _work(connection: Connection) -> None:
    """Answer calls until the owner closes the connection."""
    while True:
        try:
            function, arguments = connection.recv()
        except (EOFError, OSError):
            return
        reply: tuple[bool, Any]
        try:
            reply = (True, function(*arguments))
        except Exception as error:
            reply = (False, _described(error))
        connection.send(reply)


def _described(error: Exception) -> str:
    """Return an exception's type and the end of its text: TVM puts the reason last."""
    lines = [line.rstrip() for line in str(error).strip().splitlines() if line.strip()]
    return f"{type(error).__name__}: " + "\n".join(lines[-12:])[-4000:]


def _reap(worker: int) -> int:
    with contextlib.suppress(ProcessLookupError):
        os.kill(worker, signal.SIGKILL)
    try:
        return os.waitpid(worker, 0)[1]
    except ChildProcessError:
        return 0


def _die_with(parent: int) -> None:
    """Have Linux kill this process when the zygote dies, even in the middle of a build."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


if __name__ == "__main__":
    try:
        serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
    finally:
        shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True)
