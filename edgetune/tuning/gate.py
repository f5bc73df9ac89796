"""Keeps this machine quiet while a device that shares its cores is measuring."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    """Host work runs in any number of threads at once; measuring runs alone.

    Measuring has precedence: once it waits, no new host work begins. For a device with cores of its own
    the gate is always open.

    Args:
        shares_host: whether the device runs on this machine's cores.
    """

    def __init__(self, shares_host: bool) -> None:
        self.shares_host = shares_host
        self._changed = threading.Condition()
        self._working = 0
        self._measuring = False
        self._waiting = 0

    @contextmanager
    def host_work(self) -> Iterator[None]:
        """Search or build inside; waits while the device measures."""
        if not self.shares_host:
            yield
            return
        with self._changed:
            self._changed.wait_for(lambda: not self._measuring and not self._waiting)
            self._working += 1
        try:
            yield
        finally:
            with self._changed:
                self._working -= 1
                self._changed.notify_all()

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Measure inside; waits until the host work under way is done."""
        if not self.shares_host:
            yield
            return
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: not self._working and not self._measuring)
            finally:
                self._waiting -= 1
            self._measuring = True
        try:
            yield
        finally:
            with self._changed:
                self._measuring = False
                self._changed.notify_all()
