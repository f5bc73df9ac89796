"""Runtimes that may be missing, and the programs that turn an ONNX file into what they read."""

from __future__ import annotations

import importlib
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from edgetune.errors import ModelError, UsageError

TIMEOUT_S = 280.0
"""Less than what a side's process is waited for, so that the converter is named when it takes too long."""

_TELLING = re.compile(r"error|fail|unsupported|not support|no such|cannot|abort", re.IGNORECASE)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LONGEST = 300


def import_peer(name: str, runtime: str) -> ModuleType:
    """Import another runtime's package.

    Args:
        name: of the module.
        runtime: its name for people.

    Raises:
        UsageError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(
            f"{runtime} cannot be imported ({error}); install it with \"pip install 'edgetune[peers]'\""
        ) from error


def run_converter(command: Sequence[str | Path], runtime: str, made: Path) -> Path:
    """Run a converter and return the file that it was to make.

    Args:
        command: program and arguments.
        runtime: whose converter it is, for messages.
        made: the file that is there afterwards if it worked: not every converter says so by its exit code.

    Raises:
        ModelError: it failed, with the line of its output that says most, or took too long.
    """
    try:
        done = subprocess.run(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=made.parent,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ModelError(f"{runtime} did not convert the model within {TIMEOUT_S:.0f} s") from error
    except OSError as error:
        raise ModelError(f"{runtime}'s converter {command[0]} cannot be started: {error.strerror}") from error
    if done.returncode or not made.is_file():
        said = telling_line(done.stdout.decode("utf-8", "replace").replace(f"{made.parent}/", ""))
        raise ModelError(f"{runtime} cannot convert the model: {said or f'exit code {done.returncode}'}")
    return made


def telling_line(text: str) -> str:
    """The first line of a program's output that speaks of an error, else the last one; shortened."""
    lines = [_COLOUR.sub("", line).strip() for line in re.split(r"[\r\n]+", text)]
    lines = [line for line in lines if line and not line.startswith("Traceback")]
    found = next((line for line in lines if _TELLING.search(line)), lines[-1] if lines else "")
    return found[:_LONGEST]
