"""How a caller follows a run: the command line shows it, a notebook may draw it, a test may check it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgetune.results import Latency
    from edgetune.tuning.outcome import Progress


class Watcher:
    """Is told how ``tune`` and ``compile`` go on; this one says nothing. Override what is of interest.

    Called in the thread that runs the workflow, which waits: be quick.
    """

    def say(self, text: str) -> None:
        """A stage begins; ``text`` names it."""

    def note(self, text: str) -> None:
        """Something went another way than usual."""

    def baseline(self, latency: Latency) -> None:
        """How fast ONNX Runtime and the untuned model are, known before tuning begins."""

    def tuning(self, progress: Progress) -> None:
        """A snapshot of the tuning, after each measured candidate and each batch."""
