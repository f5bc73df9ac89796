"""TVM's exceptions as errors of ours, at the one boundary where models meet the compiler."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from edgetune.errors import UnsupportedModelError

REFUSALS = (RuntimeError, ValueError, TypeError)
"""What TVM raises for what it cannot do (InternalError and ScheduleError are RuntimeErrors); other types are bugs."""


@contextmanager
def refusing(deed: str) -> Iterator[None]:
    """Turn a refusal by TVM into an UnsupportedModelError.

    Args:
        deed: what cannot be done, as in "the model cannot be {deed}".

    Raises:
        UnsupportedModelError: TVM raised within the block.
    """
    try:
        yield
    except REFUSALS as error:
        raise UnsupportedModelError(
            f"the model cannot be {deed}: TVM says {reason(error)!r}. Run with -vv for the whole story; a model "
            "without the operator that this names can be compiled"
        ) from error


def reason(error: BaseException) -> str:
    """The telling line of one of TVM's messages, which end in it or are followed by listings."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "rror" in line or "heck failed" in line]
    text = (telling or lines or [type(error).__name__])[0]
    return text if len(text) <= 200 else text[:200] + "…"
