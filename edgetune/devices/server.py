"""A child process that serves on a loopback port and ends with this one.

It prints ``{"port": N}`` when it listens, and ends with its standard input, a pipe that this process
holds: however this process dies, the kernel closes the pipe. Nothing needs to be cleaned up after a
``kill -9``.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import IO, Any

from edgetune.errors import DeviceError

START_TIMEOUT_S = 120.0
"""Importing TVM takes seconds, and a busy machine makes them many."""
_STOP_TIMEOUT_S = 2.0


class Server:
    """One such process.

    Args:
        name: for messages, as ``the runner of the local device``.
        command: is given ``--with-owner`` as its last argument.
        first_line: is written to its standard input; for what other users must not see in a list
            of processes.
    """

    def __init__(self, name: str, command: Sequence[str], first_line: bytes = b"") -> None:
        self.name = name
        self._port: int | None = None
        self._rest = b""
        # A file, not a pipe: nobody needs to read it for the child to go on.
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "PYTHONUNBUFFERED": "1",
            # Interpreter start-up must not depend on what the caller set for edgetune itself.
            "TVM_USE_RUNTIME_LIB": "1",
        }
        try:
            self._process = subprocess.Popen(
                [*command, "--with-owner"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=environment,
                # Ctrl-C in the terminal is for edgetune, which then stops these in order.
                start_new_session=True,
            )
        except OSError as error:
            raise DeviceError(
                f"Cannot start {name}: {error.strerror}. "
                "Check that this Python can start processes (limits, memory)."
            ) from error
        if first_line:
            assert self._process.stdin is not None
            with contextlib.suppress(OSError):  # if it died at once, waiting for its port says why
                self._process.stdin.write(first_line + b"\n")
                self._process.stdin.flush()

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def port(self, deadline: float) -> int:
        """Wait until it listens and return the port.

        Raises:
            DeviceError: it ended, or did not get so far before ``deadline`` (of the monotonic clock).
        """
        if self._port is None:
            self._port = self._read_port(deadline)
        return self._port

    def _read_port(self, deadline: float) -> int:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        text = b""
        while not text.endswith(b"\n"):
            left = max(0.0, deadline - time.monotonic())
            if not select.select([descriptor], [], [], left)[0]:
                raise DeviceError(
                    f"{self._capital()} did not start in time. Is the machine overloaded? "
                    f"It said: {self.said()}"
                )
            piece = os.read(descriptor, 4096)
            if not piece:
                raise DeviceError(
                    f"{self._capital()} ended at once. Check the installation with "
                    f"`pip check`. It said: {self.said()}"
                )
            text += piece
        # A process that says more may have said it already.
        first, _, self._rest = text.partition(b"\n")
        return int(json.loads(first)["port"])

    def events(self) -> list[dict[str, Any]]:
        """Return what it has printed since it listens, or since the last call: JSON objects, one a line."""
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while self._port is not None and select.select([descriptor], [], [], 0)[0]:
            piece = os.read(descriptor, 4096)
            if not piece:
                break
            self._rest += piece
        *lines, self._rest = self._rest.split(b"\n")
        return [json.loads(line) for line in lines if line]

    def _capital(self) -> str:
        return self.name[0].upper() + self.name[1:]

    def said(self) -> str:
        """Return the end of the process's standard error."""
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        return " | ".join(lines[-3:]) or "nothing"

    def stop(self) -> None:
        """End the process and everything below it."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()
