"""A leased RPC session on a device, with one deadline for each operation.

TVM's RPC client has no timeouts: ``tracker.request`` waits for ever where no device is free, and a call
waits for ever where the kernel does not end. Here the tracker is asked over a socket with a timeout,
and around every other operation a watchdog shuts the connection down when the deadline passes; the
blocked call then fails at once, and the runner, seeing its client gone, kills the kernel.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from edgetune.devices.fitting import check_library
from edgetune.devices.transport import Device, Endpoint
from edgetune.elf import MAGIC
from edgetune.errors import DeviceError, EdgetuneError, last_line

if TYPE_CHECKING:
    import tvm

_NOT_STORED = "the file cannot be stored"
"""What every runner says before the reason."""
_connecting: dict[tuple[str, int], threading.Lock] = {}
"""One connection at a time to each address: a new one is told by being the only new one."""


class SessionError(Exception):
    """An operation on a session failed; the device's own words are in the message.

    Not an EdgetuneError: whoever uses the session decides whose fault it is.
    """


class SessionTimeoutError(SessionError):
    """The operation's deadline passed; the session is over."""


class SessionLostError(SessionError):
    """The connection broke in the middle of the operation; the session is over."""


class Session:
    """A lease on a device: nobody else runs anything on it meanwhile.

    Threads: one at a time. Ownership: whoever opened it closes it; the runner ends it by itself
    when this process dies.
    """

    def __init__(self, device: Device, rpc: Any, connection: socket.socket) -> None:
        self.device = device
        self.rpc = rpc
        self._connection = connection
        self._open = True
        self._timed_out = False
        self._sent: set[str] = set()

    @property
    def is_open(self) -> bool:
        """Whether operations can still succeed."""
        return self._open

    @contextlib.contextmanager
    def deadline(self, timeout_s: float, what: str) -> Iterator[None]:
        """Bound the operations in the block by one deadline and translate their errors.

        Raises:
            SessionTimeoutError: ``what`` was not done after ``timeout_s`` seconds.
            SessionLostError: the connection broke.
            SessionError: the device answered with an error; the session goes on.
        """
        if not self._open:
            raise SessionLostError(f"{what}: the session is over")
        try:
            with _watchdog(timeout_s, self._expire):
                yield
        except (SessionError, EdgetuneError):
            raise
        except Exception as error:
            raise self._translated(error, what, timeout_s) from error
        if self._timed_out:
            # It ended while the watchdog was already closing the connection.
            self.abandon()
            raise SessionTimeoutError(f"{what} took longer than {timeout_s:g} s")

    def upload(self, name: str, data: bytes) -> None:
        """Store a file in the session's folder on the device.

        Raises:
            DeviceError: it is a library that the device cannot load, or the device has no room for it.
        """
        if data[:4] == MAGIC and not self.device.shares_host:
            check_library(name, data, self.device.name, self.device.probe(), self._sent)
        try:
            self.rpc.upload(bytearray(data), name)
        except Exception as error:
            _, stored, reason = last_line(error).partition(_NOT_STORED)
            if not stored:
                raise
            raise DeviceError(
                f"Device '{self.device.name}' cannot store {name} ({len(data)} bytes){reason}. Free some space there, "
                "on the file system of edgetune's folder."
            ) from error
        self._sent.add(name)

    def load(self, name: str) -> tvm.runtime.Module:
        """Load an uploaded library on the device."""
        return self.rpc.load_module(name)

    def download(self, name: str) -> bytes:
        """Return the content of an uploaded file."""
        return bytes(self.rpc.download(name))

    def remove(self, name: str) -> None:
        """Delete an uploaded file."""
        self.rpc.remove(name)

    def function(self, name: str) -> Any:
        """Return a global function of the device's TVM runtime."""
        return self.rpc.get_function(name)

    def tvm_device(self, kind: str) -> tvm.runtime.Device:
        """Return the remote ``cpu`` or ``cuda`` device."""
        return self.rpc.device(kind, 0)

    def abandon(self) -> None:
        """Give the session up without waiting for the device."""
        self._open = False
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def close(self) -> None:
        """End the session; the device is free for the next lease."""
        if self._open:
            self.abandon()

    def __enter__(self) -> Session:
        """Return self."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the session."""
        self.close()

    def _expire(self) -> None:
        self._timed_out = True
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def _translated(self, error: Exception, what: str, timeout_s: float) -> SessionError:
        if self._timed_out:
            self.abandon()
            return SessionTimeoutError(f"{what} took longer than {timeout_s:g} s")
        if not self._answers():
            self.abandon()
            return SessionLostError(f"{what}: the connection to the device broke")
        return SessionError(f"{what}: {last_line(error)[:500]}")

    def _answers(self) -> bool:
        """Whether the device still answers, after an error that may have been its end."""
        try:
            with _watchdog(5.0, self._expire):
                self.rpc.get_function("runtime.NumThreads")()
        except Exception:
            return False
        return not self._timed_out


@contextlib.contextmanager
def _watchdog(seconds: float, bark: Callable[[], None]) -> Iterator[None]:
    """Call ``bark`` in a thread of its own if the block takes longer."""
    timer = threading.Timer(seconds, bark)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def lease(device: Device, timeout_s: float) -> Session:
    """Lease a device, waiting until it is up and free.

    Raises:
        DeviceError: it was not free, or did not answer, within ``timeout_s`` seconds.
    """
    deadline = time.monotonic() + timeout_s
    endpoint = device.transport.endpoint(timeout_s)
    quick_failures = 0
    while True:
        host, port, key = _ask_tracker(device, endpoint, deadline)
        started = time.monotonic()
        try:
            return _connect(device, host, port, key, deadline)
        except Exception as error:
            # A key is good for one session; a runner that restarted leaves a stale one behind. A refusal that
            # takes its time is another user's session on the device: that is waited for.
            quick_failures += time.monotonic() - started < 1.0
            if quick_failures >= 5 or time.monotonic() > deadline:
                raise DeviceError(
                    f"Device '{device.name}' is registered at {host}:{port} but does not answer: "
                    f"{last_line(error)[:500]}. Check that the runner still runs and that a firewall lets "
                    f"the connection through.{_complaint(device)}"
                ) from error


def _complaint(device: Device) -> str:
    said = device.transport.complaint()
    return f" Last said: {said}" if said not in ("", "nothing") else ""


def _ask_tracker(device: Device, endpoint: Endpoint, deadline: float) -> tuple[str, int, str]:
    from tvm.rpc import base

    try:
        with _tracker_socket(endpoint, deadline) as tracker:
            base.sendjson(tracker, [base.TrackerCode.REQUEST, endpoint.key, "", 1])
            # The answer comes when a device is free: that is the wait.
            tracker.settimeout(max(0.1, deadline - time.monotonic()))
            code, value = base.recvjson(tracker)
    except TimeoutError as error:
        raise DeviceError(
            f"Device '{device.name}' did not become free in time (tracker {endpoint}). Another run may hold "
            f"it, or its runner is down: see `edgetune devices doctor {device.name}`.{_complaint(device)}"
        ) from error
    except OSError as error:
        raise DeviceError(
            f"The tracker of device '{device.name}' at {endpoint.host}:{endpoint.port} does not answer: "
            f"{error}. Start one with `edgetune tracker`."
        ) from error
    if code != base.TrackerCode.SUCCESS:
        raise DeviceError(f"The tracker refused to lease device '{device.name}': {value}. Restart it.")
    return str(value[0]), int(value[1]), str(value[2])


def _tracker_socket(endpoint: Endpoint, deadline: float) -> socket.socket:
    from tvm.rpc import base

    timeout_s = max(0.1, deadline - time.monotonic())
    tracker = socket.create_connection((endpoint.host, endpoint.port), timeout=timeout_s)
    try:
        tracker.sendall(struct.pack("<i", base.RPC_TRACKER_MAGIC))
        if struct.unpack("<i", base.recvall(tracker, 4))[0] != base.RPC_TRACKER_MAGIC:
            raise OSError("it is not a TVM RPC tracker")
    except BaseException:
        tracker.close()
        raise
    return tracker


def _connect(device: Device, host: str, port: int, key: str, deadline: float) -> Session:
    from tvm.rpc import connect

    address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4]
    peer = (str(address[0]), port)
    with _connecting.setdefault(peer, threading.Lock()):
        known = _sockets_to(peer)

        def give_up() -> None:
            for descriptor in _sockets_to(peer) - known:
                _shut_down(descriptor)

        with _watchdog(max(0.1, deadline - time.monotonic()), give_up):
            rpc = connect(peer[0], port, key)
        new = _sockets_to(peer) - known
    if len(new) != 1:
        raise SessionLostError("the connection is gone")
    # A second descriptor of TVM's own socket: shutting it down ends a call that waits on the first.
    connection = socket.socket(fileno=os.dup(new.pop()))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Session(device, rpc, connection)


def _sockets_to(peer: tuple[str, int]) -> set[int]:
    """Return this process's descriptors of connections to an address."""
    found = set()
    for name in os.listdir("/dev/fd"):
        descriptor = int(name)
        try:
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue
            copy = socket.socket(fileno=os.dup(descriptor))
        except OSError:
            continue
        with copy, contextlib.suppress(OSError):
            name_of_peer = copy.getpeername()
            if isinstance(name_of_peer, tuple) and tuple(name_of_peer[:2]) == peer:
                found.add(descriptor)
    return found


def _shut_down(descriptor: int) -> None:
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as copy:
        copy.shutdown(socket.SHUT_RDWR)
