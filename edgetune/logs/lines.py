"""Reading files of JSON lines that a crash may have cut short and that anybody may have written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from edgetune.errors import LogsError


@dataclass(frozen=True)
class Line:
    """One line of a file: its text without the line end, its number from 1, and whether it is the last."""

    text: bytes
    number: int
    last: bool


def read_lines(path: Path, limit_bytes: int) -> Iterator[Line]:
    """The lines of ``path`` that are not blank, one at a time, none longer than ``limit_bytes``.

    Raises:
        LogsError: the file cannot be read, or a line is too long.
    """
    try:
        with path.open("rb") as file:
            number, text = 0, file.readline(limit_bytes + 1)
            while text:
                number += 1
                if len(text) > limit_bytes:
                    raise LogsError(
                        f"{path}:{number}: the line is longer than {limit_bytes >> 20} MiB; "
                        "this is not a file of tuning logs"
                    )
                following = file.readline(limit_bytes + 1)
                if text.strip():
                    yield Line(text.rstrip(b"\r\n"), number, last=not following)
                text = following
    except OSError as error:
        raise LogsError(f"{path}: cannot be read ({error.strerror}); check the path") from error


def broken(path: Path, line: Line, reason: str) -> LogsError:
    """The error for a line that is wrong, naming its place."""
    return LogsError(
        f"{path}:{line.number}: {reason}; nothing was imported. "
        "Correct or delete that line, or ask for the file again"
    )
