"""What a command prints: results on stdout, everything else on stderr.

With ``--json`` stdout carries exactly one JSON object. TVM and LLVM print from C++, past
``sys.stdout``, so file descriptor 1 itself is pointed at stderr while a command works; the object
goes to a saved copy of it.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from rich.console import Console

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it (128 + SIGINT)."""

QUIET, NORMAL, VERBOSE, DEBUG = -1, 0, 1, 2
_LEVELS = {QUIET: logging.ERROR, NORMAL: logging.WARNING, VERBOSE: logging.INFO, DEBUG: logging.DEBUG}

_UNFOLDED = 100_000
"""Columns of what is no terminal."""

_current: Output | None = None
"""The output of the running command: how ``main`` knows what was asked for when an error arrives."""


def reset() -> None:
    """Forget the output of an earlier command of this process."""
    global _current
    _current = None


def result_printed() -> bool:
    """Whether the running command has printed its result."""
    return _current is not None and _current.printed


def verbosity() -> int:
    """How much the running command was asked to say: QUIET to DEBUG."""
    return NORMAL if _current is None else _current.verbosity


class Output:
    """Prints for one command; also sets up logging. Use it as a context manager.

    Not for use from several threads: one command, one output.
    """

    def __init__(self, *, json: bool = False, verbose: int = 0, quiet: bool = False) -> None:
        self.json = json
        self.verbosity = QUIET if quiet else min(verbose, DEBUG)
        self.printed = False
        self._stdout_fd: int | None = None
        self._stderr: Console | None = None

    def __enter__(self) -> Self:
        global _current
        _current = self
        logging.basicConfig(
            stream=sys.stderr, level=_LEVELS[self.verbosity], format="%(name)s: %(message)s", force=True
        )
        if self.json:
            sys.stdout.flush()
            self._stdout_fd = os.dup(1)
            os.dup2(2, 1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stdout_fd is None:
            return
        sys.stdout.flush()
        os.dup2(self._stdout_fd, 1)
        os.close(self._stdout_fd)
        self._stdout_fd = None

    @property
    def stderr(self) -> Console:
        """The rich console for notes and progress; plain text where stderr is no terminal."""
        if self._stderr is None:
            from rich.console import Console

            self._stderr = Console(
                stderr=True,
                quiet=self.verbosity == QUIET,
                highlight=False,
                markup=False,
                emoji=False,
                soft_wrap=True,
            )
        return self._stderr

    def note(self, text: str) -> None:
        """One line for the person, on stderr; silent with ``-q``. No markup is read in ``text``."""
        self.stderr.print(text)

    def detail(self, text: str) -> None:
        """A line on stderr that only ``-v`` shows."""
        if self.verbosity >= VERBOSE:
            self.note(text)

    def result(self, payload: Mapping[str, Any], human: str | Callable[[Console], None]) -> None:
        """The command's result: ``payload`` as the one JSON object, or ``human`` for a person.

        ``human`` is a text, or a function that prints tables to the console it is given.
        """
        self.printed = True
        if self.json:
            self.write_json(payload)
            return
        if isinstance(human, str):
            print(human)
            return
        from rich.console import Console

        # Names of files, tensors and devices may look like rich's markup: none is read. Not a terminal: so wide that
        # no line and no cell of a table is folded.
        width = None if sys.stdout.isatty() else _UNFOLDED
        human(Console(highlight=False, markup=False, emoji=False, width=width))

    def write_json(self, payload: Mapping[str, Any]) -> None:
        """Write one JSON object and a newline to the real stdout. NaN and infinity become null."""
        self.printed = True
        data = (json.dumps(_plain(payload), indent=2, allow_nan=False) + "\n").encode()
        fd = 1 if self._stdout_fd is None else self._stdout_fd
        while data:
            data = data[os.write(fd, data) :]


def counted(number: int, noun: str) -> str:
    """``1 trial``, ``2 trials``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def byte_size(number: int) -> str:
    """``3.4 MiB``, to three digits."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number} B"


def _plain(value: Any) -> Any:
    """``value`` as JSON knows it: strings for paths and enums, lists for tuples, null for NaN."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if value - value == 0 else None
    if hasattr(value, "item") and not isinstance(value, str):
        return _plain(value.item())
    return str(value)
