"""Ctrl-C as a request to finish, not as an exception in the middle of something."""

from __future__ import annotations

import signal
import threading
from types import FrameType


class Interrupt:
    """Inside the context, the first Ctrl-C sets ``requested``; the second raises KeyboardInterrupt.

    Outside the main thread Python delivers no signals, and nothing changes.
    """

    def __init__(self) -> None:
        self.requested = False

    def __enter__(self) -> Interrupt:
        """Take over the signal, if this is the main thread."""
        self._is_main = threading.current_thread() is threading.main_thread()
        if self._is_main:
            self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        """Give the signal back."""
        if self._is_main:
            signal.signal(signal.SIGINT, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
