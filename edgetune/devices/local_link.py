"""A link to this machine: the same questions as to another one, answered by its own shell."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

from edgetune.devices.link import Output
from edgetune.errors import DeviceError


class LocalLink:
    """Runs commands here; see :class:`edgetune.devices.link.Link`."""

    address = "this machine"
    home = '"${XDG_CACHE_HOME:-$HOME/.cache}/edgetune"'

    def run(self, command: str, timeout_s: float = 30.0) -> Output:
        """Run a command and wait for its end."""
        try:
            done = subprocess.run(
                ["sh", "-c", command],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise DeviceError(
                f"This machine did not end a command within {timeout_s:.0f} s. Is it overloaded?"
            ) from error
        except OSError as error:
            raise DeviceError(
                f"This machine cannot start a shell: {error.strerror}. Check its limits."
            ) from error
        return Output(done.returncode, done.stdout, done.stderr)

    def push(self, data: bytes, path: str, timeout_s: float = 300.0) -> None:
        """Write a file."""
        try:
            Path(path).write_bytes(data)
            os.chmod(path, 0o700)
        except OSError as error:
            raise DeviceError(f"{path} cannot be written: {error.strerror}. Free space there.") from error

    def stream(self, command: str) -> LocalStream:
        """Start a command and return its streams."""
        try:
            return LocalStream(
                subprocess.Popen(
                    ["sh", "-c", command],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    # Ctrl-C in the terminal is for edgetune, which then ends this in order.
                    start_new_session=True,
                )
            )
        except OSError as error:
            raise DeviceError(
                f"This machine cannot start a shell: {error.strerror}. Check its limits."
            ) from error

    def alive(self) -> bool:
        """Always."""
        return True

    def close(self) -> None:
        """Nothing to do."""


class LocalStream:
    """A child process and its pipes."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        self._input, self._output = process.stdin, process.stdout

    def send(self, data: bytes) -> None:
        """Write all of ``data``."""
        self._input.write(data)
        self._input.flush()

    def receive(self, size: int) -> bytes:
        """Wait for output."""
        return os.read(self._output.fileno(), size)

    def complaint(self) -> str:
        """Nothing: standard error is not kept."""
        return ""

    def close(self) -> None:
        """Close its input and output; it ends by itself, and is reaped here if it does so soon."""
        for pipe in (self._input, self._output):
            with contextlib.suppress(OSError, ValueError):
                pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
