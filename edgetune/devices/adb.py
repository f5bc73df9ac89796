"""adb: the connection to an Android device over the adb server of this machine.

Commands run through adb's ``exec:`` service, which leaves bytes as they are; files go through its
``sync:`` service. The package adbutils is an extra: it needs an image library.
"""

from __future__ import annotations

import contextlib
import io
import re
import socket
from typing import Any

from edgetune.devices.link import Output
from edgetune.errors import DeviceError

_EXIT = re.compile(rb"\n?--edgetune-exit (\d+)\n?\Z")


class AdbLink:
    """A connection to one Android device; each command is a connection of its own to the adb server."""

    home = "/data/local/tmp/edgetune"

    def __init__(self, serial: str, server: tuple[str, int] | None = None) -> None:
        """Look for the device.

        Args:
            serial: as ``adb devices`` names it.
            server: where the adb server listens; one is started if there is none. By default port
                ``ANDROID_ADB_SERVER_PORT``, as for adb itself, else 5037, of this machine.

        Raises:
            DeviceError: the package adbutils or the device is missing, or it does not trust this machine yet.
        """
        self.address = f"adb://{serial}"
        self._serial = serial
        try:
            import adbutils
        except ImportError as error:
            raise DeviceError(
                f"{self.address} needs the package adbutils; run `pip install 'edgetune[adb]'`."
            ) from error
        host, port = server or (None, None)
        self._client = adbutils.AdbClient(host=host, port=port)
        try:
            states = {info.serial: info.state for info in self._client.list()}
        except Exception as error:
            raise DeviceError(
                f"The adb server does not answer: {error}. Install adb and run `adb devices`."
            ) from error
        state = states.get(serial, "missing")
        if state != "device":
            known = ", ".join(f"{name} ({what})" for name, what in states.items()) or "none"
            raise DeviceError(
                f"adb has no usable device {serial}: it is {state}; it knows {known}. Plug it in, allow USB "
                "debugging on its screen, and look at `adb devices`."
            )
        self._device = self._client.device(serial)

    def run(self, command: str, timeout_s: float = 30.0) -> Output:
        """Run a command; standard error is part of the output."""
        with self._guarded("run a command", timeout_s):
            script = f"( {command}\n) 2>&1 </dev/null; code=$?; echo; echo --edgetune-exit $code"
            connection = self._exec(script, timeout_s)
            with contextlib.closing(connection):
                pieces = []
                while piece := connection.recv(65536):
                    pieces.append(piece)
        text = b"".join(pieces)
        code = _EXIT.search(text)
        if code is None:
            raise DeviceError(f"The connection to {self.address} broke. Check the cable and `adb devices`.")
        return Output(int(code[1]), text[: code.start()])

    def push(self, data: bytes, path: str, timeout_s: float = 300.0) -> None:
        """Write a file."""
        with self._guarded(f"store {path}", timeout_s):
            self._device.sync.push(io.BytesIO(data), path, 0o755)

    def stream(self, command: str) -> AdbStream:
        """Start a command and return its streams."""
        with self._guarded("start a command", 30.0):
            # Standard error would run into the session's bytes.
            return AdbStream(self._exec(f"{command} 2>/dev/null", 30.0))

    def alive(self) -> bool:
        """Whether the adb server still knows the device."""
        try:
            return any(i.serial == self._serial and i.state == "device" for i in self._client.list())
        except Exception:
            return False

    def close(self) -> None:
        """Nothing to do: no connection is kept."""

    def _exec(self, command: str, timeout_s: float) -> socket.socket:
        connection = self._device.open_transport(timeout=timeout_s)
        connection.send_command(f"exec:{command}")
        connection.check_okay()
        found: socket.socket = connection.conn
        found.settimeout(timeout_s)
        return found

    @contextlib.contextmanager
    def _guarded(self, what: str, timeout_s: float) -> Any:
        try:
            yield
        except DeviceError:
            raise
        except TimeoutError as error:
            raise DeviceError(
                f"{self.address} did not {what} within {timeout_s:.0f} s. Is the device overloaded?"
            ) from error
        except Exception as error:
            raise DeviceError(
                f"{self.address} cannot {what}: {error}. Check the cable, its free space and `adb devices`."
            ) from error


class AdbStream:
    """A command's connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        connection.settimeout(None)

    def send(self, data: bytes) -> None:
        """Write all of ``data``."""
        self._connection.sendall(data)

    def receive(self, size: int) -> bytes:
        """Wait for output."""
        return self._connection.recv(size)

    def complaint(self) -> str:
        """Nothing: adb's ``exec:`` has no standard error."""
        return ""

    def close(self) -> None:
        """Close the connection: the command's input ends."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()
