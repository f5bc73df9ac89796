"""The bridge: a process of this machine that stands in for the runner of a device elsewhere.

``python -m edgetune.devices.bridge`` reads a :class:`Plan` from the first line of its standard input, connects
to the device, registers with the tracker, and listens on this machine's loopback. For each session it starts
the native runner on the device as a command over the link, and copies bytes between the client and that command's
standard streams. So nothing listens on the device, and no other user of it can reach a session; here, a client
needs the session's random key, which only the tracker gives.

It ends with its standard input, and the link with it, and the runner on the device with the link.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import shlex
import socket
import sys
import threading
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from edgetune.devices.address import Address, Secrets, open_link
from edgetune.devices.deploy import PROTOCOL
from edgetune.devices.link import Link, Stream
from edgetune.devices.owners import owner_of
from edgetune.errors import DeviceError
from edgetune.resources import data_path

BUSY_WAIT_S = 5.0
"""How long a session waits on the device for another user's to end, before its client is told to ask again."""
_PING_S = 5.0
_PIECE_BYTES = 1 << 16
_HANGUP = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)


class Plan(BaseModel):
    """What the bridge is to do.

    Attributes:
        address, secrets: how to reach the device.
        command: the shell words that start the runner there. home: edgetune's folder there.
        threads: how many threads kernels run on. cpus: on which CPUs; any, where none are named.
        tracker: host and port. key: under which clients ask for the device.
    """

    address: Address
    secrets: Secrets
    command: str
    home: str
    threads: int
    cpus: tuple[int, ...] = ()
    tracker: tuple[str, int]
    key: str


def _load_runner() -> Any:
    """``rpc/runner.py``: a file for devices without edgetune, not a module of this package."""
    spec = importlib.util.spec_from_file_location("edgetune_rpc_runner", data_path("rpc") / "runner.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_runner: Any = _load_runner()

if TYPE_CHECKING:
    _Runner = Any
else:
    _Runner = _runner.Runner


class Bridge(_Runner):
    """Registers and greets clients as ``rpc/runner.py`` does, and hands each one to the device."""

    def __init__(self, listener: socket.socket, plan: Plan, link: Link, owner: str) -> None:
        super().__init__(listener, plan.tracker, plan.key, "127.0.0.1")
        self._plan = plan
        self._link: Link | None = link
        self._owner = owner
        self._stream: Stream | None = None
        self._first = b""

    def _register(self) -> None:
        """Offer the device to clients, as soon as it can be reached."""
        if self._link is None:
            try:
                self._link = open_link(self._plan.address, self._plan.secrets)
            except DeviceError as error:
                raise OSError(str(error)) from error
        super()._register()

    def _prepare(self, connection: socket.socket, options: list[str]) -> bool:
        """Start the runner on the device, and wait until it has the device's lock."""
        limit = next((option[9:] for option in options if option.startswith("-timeout=")), "0")
        found: list[Stream] = []

        def start() -> None:
            with contextlib.suppress(DeviceError, OSError, EOFError):
                found.append(self._start(limit))

        starting = threading.Thread(target=start, daemon=True)
        starting.start()
        while starting.is_alive():
            if connection.fileno() in self._wait({connection.fileno(): _HANGUP}, 0.05):
                break
        starting.join(BUSY_WAIT_S + _PING_S)
        if not found:
            self._check_link()
            return False
        self._stream = found[0]
        return True

    def _start(self, limit: str) -> Stream:
        assert self._link is not None
        plan = self._plan
        stream = self._link.stream(
            f"exec {plan.command} serve --threads {plan.threads} --home {shlex.quote(plan.home)} "
            f"{f'--cpus {numbers} ' if (numbers := ','.join(map(str, plan.cpus))) else ''}"
            f"--owner {self._owner} --wait {BUSY_WAIT_S:g} --limit {float(limit):g}"
        )
        line = self._line(stream)
        if b" waiting " in line:
            _runner.log("another user's session holds the device")
            line = self._line(stream)
        if not line.decode(errors="replace").startswith(PROTOCOL):
            stream.close()
            if b" busy " not in line:
                _runner.log(f"the runner on the device said {line!r}")
            raise OSError("no session")
        return stream

    def _line(self, stream: Stream) -> bytes:
        """Read the next line that the runner says before the session's bytes begin."""
        line = b""
        while not line.endswith(b"\n"):
            piece = stream.receive(1)
            if not piece:
                said = stream.complaint() or line.decode(errors="replace")
                _runner.log(f"the runner on the device ended: {said}")
                raise OSError("no runner")
            line += piece
        return line

    def _serve(self, connection: socket.socket, options: list[str]) -> None:
        """Copy bytes in both directions until one side ends."""
        stream = self._stream
        assert stream is not None
        client_left = threading.Event()
        threads = [
            threading.Thread(target=_upward, args=(connection, stream, client_left), daemon=True),
            threading.Thread(target=_downward, args=(connection, stream), daemon=True),
        ]
        for thread in threads:
            thread.start()
        try:
            while all(thread.is_alive() for thread in threads):
                self._wait({}, 0.05)
            if not client_left.is_set():
                # The device's side ended first. Who asks afterwards whether the device is to blame must be
                # told before the client's connection closes.
                self._check_link()
        finally:
            stream.close()
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            self._stream = None
            for thread in threads:
                thread.join(_PING_S)

    def _check_link(self) -> None:
        """Find out whether the device still answers; if not, say so and forget the connection."""
        try:
            if self._link is not None and self._link.run("true", _PING_S).code == 0:
                return
        except DeviceError as error:
            _runner.log(str(error))
        if self._link is not None:
            self._link.close()
        self._link = None
        print(json.dumps({"lost": True}), flush=True)


def _upward(connection: socket.socket, stream: Stream, client_left: threading.Event) -> None:
    while True:
        try:
            piece = connection.recv(_PIECE_BYTES)
        except OSError:
            piece = b""
        if not piece:
            client_left.set()
            return
        try:
            stream.send(piece)
        except (OSError, EOFError):
            return


def _downward(connection: socket.socket, stream: Stream) -> None:
    with contextlib.suppress(OSError, EOFError):
        while piece := stream.receive(_PIECE_BYTES):
            connection.sendall(piece)


def _read_plan() -> Plan:
    text = b""
    while not text.endswith(b"\n"):
        piece = os.read(sys.stdin.fileno(), 1 << 16)
        if not piece:
            raise SystemExit(1)
        text += piece
    return Plan.model_validate_json(text)


def main() -> None:
    """Read the plan and serve; prints ``{"port": N}`` when the device is connected."""
    plan = _read_plan()
    try:
        link = open_link(plan.address, plan.secrets)
    except DeviceError as error:
        _runner.log(str(error))
        raise SystemExit(1) from error
    os.environ.setdefault("TVM_USE_RUNTIME_LIB", "1")
    with socket.create_server(("127.0.0.1", 0)) as listener, owner_of(f"{plan.address} {plan.home}") as owner:
        bridge = Bridge(listener, plan, link, owner)
        print(json.dumps({"port": bridge.port}), flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            bridge.run(sys.stdin.fileno())


if __name__ == "__main__":
    main()
