"""What a link is: a connection to another machine that runs commands there and carries the bytes of a session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Output:
    """What a command on a device gave: exit code, standard output and standard error."""

    code: int
    stdout: bytes
    stderr: bytes = b""

    @property
    def text(self) -> str:
        """Standard output as text, without white space around it."""
        return self.stdout.decode("utf-8", "replace").strip()

    @property
    def complaint(self) -> str:
        """The last line of what it said went wrong."""
        lines = (self.stderr or self.stdout).decode("utf-8", "replace").strip().splitlines()
        return lines[-1].strip() if lines else f"exit code {self.code}"


class Stream(Protocol):
    """A running command on a device: its standard input and output. One thread may send, one receive."""

    def send(self, data: bytes) -> None:
        """Write all of ``data`` to its input.

        Raises:
            OSError: it has ended, or the connection is gone.
        """
        ...

    def receive(self, size: int) -> bytes:
        """Wait for output and return up to ``size`` bytes of it; nothing when it has ended.

        Raises:
            OSError: the connection is gone.
        """
        ...

    def complaint(self) -> str:
        """Return the last line of what it wrote to standard error so far."""
        ...

    def close(self) -> None:
        """End the command by closing its input and output. May be called from any thread, and again."""
        ...


class Link(Protocol):
    """A connection to a device that is another machine. Not for several threads, streams apart.

    Attributes:
        address: whom it reaches, for messages.
        home: the folder for edgetune's files on the device, as a word of the device's shell.
    """

    address: str
    home: str

    def run(self, command: str, timeout_s: float = 30.0) -> Output:
        """Run a command of a POSIX shell and wait for its end.

        Raises:
            DeviceError: the connection broke, or the command took longer than ``timeout_s`` seconds.
        """
        ...

    def push(self, data: bytes, path: str, timeout_s: float = 300.0) -> None:
        """Write an executable file of the user's own.

        Raises:
            DeviceError: the connection broke, or the device cannot store it.
        """
        ...

    def stream(self, command: str) -> Stream:
        """Start a command and return the streams to it.

        Raises:
            DeviceError: the connection is gone.
        """
        ...

    def alive(self) -> bool:
        """Whether the connection stands, as far as is known here."""
        ...

    def close(self) -> None:
        """Close the connection; commands that run end with it."""
        ...
