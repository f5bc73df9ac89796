"""TVM's RPC to a native runner without a link: over its standard streams, or over its socket.

Bytes are copied by processes: TVM's client holds Python's lock while it waits for the end of what it frees.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from edgetune.devices.deploy import PROTOCOL


@contextlib.contextmanager
def session_of(command: Sequence[str]) -> Iterator[Any]:
    """Start ``runner serve`` and give TVM's client of its session; ends it, and checks that it ended well."""
    from tvm import rpc
    from tvm.rpc import base

    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline().startswith(PROTOCOL.encode())
        ends = process.stdout.fileno(), process.stdin.fileno()

        def carry(connection: socket.socket) -> None:
            # What the bridge says for the runner, which knows no keys.
            base.recvall(connection, 4)
            base.recvall(connection, struct.unpack("<i", base.recvall(connection, 4))[0])
            connection.sendall(struct.pack("<ii", base.RPC_CODE_SUCCESS, 8) + b"server:x")
            copy(connection, *ends)

        with _port(carry) as port:
            yield rpc.connect("127.0.0.1", port, "x")
        process.stdin.close()
        assert process.wait(20) == 0


@contextlib.contextmanager
def forwarded(path: Path) -> Iterator[int]:
    """A port of this machine's loopback that leads to a socket in the file system, as `adb forward` makes one."""

    def carry(connection: socket.socket) -> None:
        with socket.socket(socket.AF_UNIX) as inner:
            inner.connect(str(path))
            copy(connection, inner.fileno(), inner.fileno())

    with _port(carry) as port:
        yield port


def copy(connection: socket.socket, source: int, sink: int) -> None:
    """Copy in both directions until one ends."""
    ways = {connection.fileno(): sink, source: connection.fileno()}
    while True:
        for ready in select.select(list(ways), [], [])[0]:
            piece = os.read(ready, 1 << 16)
            if not piece:
                return
            while piece:
                piece = piece[os.write(ways[ready], piece) :]


@contextlib.contextmanager
def _port(carry: Callable[[socket.socket], None]) -> Iterator[int]:
    """A port whose clients are carried one after the other, by a process that ends with the context."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                connection, _ = listener.accept()
                with connection, contextlib.suppress(OSError):
                    carry(connection)

        process = multiprocessing.get_context("fork").Process(target=serve, daemon=True)
        process.start()
        try:
            yield listener.getsockname()[1]
        finally:
            process.kill()
            process.join()
