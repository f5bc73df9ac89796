"""The errors a user can meet, and the exit code of each.

    EdgetuneError                 1  expected problem; its text says what happened, to what, and what to do
    ├── UsageError                2  an option or setting is wrong
    ├── ModelError                1  the file is not a usable ONNX model
    │   └── UnsupportedModelError 1  valid ONNX, but edgetune cannot compile it
    │       └── NotStandaloneError 1 it can be compiled, but needs TVM's virtual machine to run
    ├── TargetError               1  unknown or invalid target
    ├── ToolchainError            1  a linker, compiler or pinned package is missing or wrong
    ├── BundleError               1  a bundle is damaged or made for another machine
    ├── LogsError                 1  the tuning database cannot be used
    ├── OutputError               1  a result cannot be written
    ├── TuningError               1  no task could be tuned or built
    ├── MismatchError             3  outputs differ from the reference
    ├── DeviceError               4  a device is unavailable
    └── BudgetError               5  the budget ended before the stated goal was met

A bug is not an EdgetuneError: it keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LISTED = 40
"""Names that a message lists at most: models have thousands of tensors. The last ones, nearest to the outputs."""


class EdgetuneError(Exception):
    """An expected problem. ``str(error)`` is one message that says how to fix it."""

    exit_code = 1


class UsageError(EdgetuneError):
    """An option, argument or setting is wrong."""

    exit_code = 2


class ModelError(EdgetuneError):
    """The file is not a usable ONNX model."""


class UnsupportedModelError(ModelError):
    """The model is valid ONNX, but edgetune cannot compile it."""


class NotStandaloneError(UnsupportedModelError):
    """The model can be compiled, but not as a standalone library; the message says why."""


class TargetError(EdgetuneError):
    """The target is unknown or its description is invalid."""


class ToolchainError(EdgetuneError):
    """A linker, a compiler or a pinned package is missing or has the wrong version."""


class BundleError(EdgetuneError):
    """The bundle is damaged, incomplete or made for another machine."""


class LogsError(EdgetuneError):
    """The tuning database cannot be read or written."""


class OutputError(EdgetuneError):
    """A result cannot be written to where it was asked for."""


class TuningError(EdgetuneError):
    """No task could be tuned or no kernel could be built."""


class MismatchError(EdgetuneError):
    """The outputs differ from the reference by more than the tolerance."""

    exit_code = 3


class DeviceError(EdgetuneError):
    """The device is unavailable."""

    exit_code = 4


class BudgetError(EdgetuneError):
    """The budget ended before the stated goal was met; the best so far is saved."""

    exit_code = 5


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an "unknown name" message: the nearest known names, or all of them where they are few."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    if close:
        return f"did you mean {' or '.join(close)}?"
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"known: {', '.join(names[-_LISTED:])}{more}"


def first_line(error: BaseException) -> str:
    """What an error of a library says in one line: its first, or its kind where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def last_line(error: BaseException) -> str:
    """The last line of an error, where TVM puts the reason; its kind where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()
