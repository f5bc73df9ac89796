"""A stand-in for the adb server with one device, this machine: speaks adb's protocol on loopback.

After ``SERVICES.TXT``, ``OVERVIEW.TXT`` and ``SYNC.TXT`` of the Android debug bridge: four hexadecimal digits and a
request, ``OKAY`` or ``FAIL``; then a service's own bytes.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import socketserver
import struct
import subprocess
import threading
from collections.abc import Iterator

SERIAL = "stand-in"


class _Connection(socketserver.BaseRequestHandler):
    request: socket.socket

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                wanted = self._read(int(self._read(4), 16)).decode()
                if wanted == "host:version":
                    self._block(b"0029")
                    return
                if wanted in ("host:devices", "host:devices-l"):
                    self._block(f"{SERIAL}\tdevice\n".encode())
                    return
                if wanted == f"host:tport:serial:{SERIAL}":
                    self.request.sendall(b"OKAY" + struct.pack("<Q", 1))
                elif wanted == f"host:transport:{SERIAL}":
                    self.request.sendall(b"OKAY")
                elif wanted.startswith("exec:"):
                    self._exec(wanted.removeprefix("exec:"))
                    return
                elif wanted == "sync:":
                    self.request.sendall(b"OKAY")
                    self._sync()
                    return
                else:
                    self.request.sendall(b"FAIL" + b"%04x" % len(wanted) + wanted.encode())
                    return

    def _exec(self, command: str) -> None:
        """As adbd does: the command's input and output are one socket pair, which ends with the connection."""
        self.request.sendall(b"OKAY")
        ours, theirs = socket.socketpair()
        with subprocess.Popen(["sh", "-c", command], stdin=theirs, stdout=theirs, stderr=theirs) as process:
            theirs.close()
            up = threading.Thread(target=_copy, args=(self.request, ours), daemon=True)
            up.start()
            _copy(ours, self.request)
            ours.close()
            process.wait()

    def _sync(self) -> None:
        while True:
            kind, length = self._read(4), struct.unpack("<I", self._read(4))[0]
            if kind == b"STAT":
                path = self._read(length).decode()
                with contextlib.suppress(OSError):
                    found = os.stat(path)
                    self.request.sendall(b"STAT" + struct.pack("<III", found.st_mode, found.st_size, 1))
                    continue
                self.request.sendall(b"STAT" + struct.pack("<III", 0, 0, 0))
            elif kind == b"SEND":
                path, _, mode = self._read(length).decode().rpartition(",")
                with open(path, "wb") as file:
                    while (kind := self._read(4)) == b"DATA":
                        file.write(self._read(struct.unpack("<I", self._read(4))[0]))
                    self._read(4)
                os.chmod(path, int(mode) & 0o777)
                self.request.sendall(b"OKAY" + struct.pack("<I", 0))
            else:
                return

    def _block(self, data: bytes) -> None:
        self.request.sendall(b"OKAY" + b"%04x" % len(data) + data)

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.request.recv(size - len(data))
            if not piece:
                raise ConnectionError
            data += piece
        return data


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(65536):
            target.sendall(piece)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


@contextlib.contextmanager
def adb_server() -> Iterator[int]:
    """Run the server in a process of its own, since TVM's client holds Python's lock; gives its port."""
    with _Server(("127.0.0.1", 0), _Connection) as server:
        process = multiprocessing.get_context("fork").Process(target=server.serve_forever, daemon=True)
        process.start()
        try:
            yield server.server_address[1]
        finally:
            process.kill()
            process.join()
