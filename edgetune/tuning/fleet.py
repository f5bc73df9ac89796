"""The devices of a run: each measures in a thread of its own, and may fail without the run failing.

    turn -> fails -> a pause, then the reference kernel -> turn ...
         -> third failure in a row -> quarantined: the others do its work -> answers again -> turn

A turn leaves what it could not measure to the others. A run ends early only when no device is left: all are
quarantined, and those that have worked before had time to come back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from edgetune.errors import DeviceError
from edgetune.tuning.gate import Gate
from edgetune.tuning.measure import Measurer
from edgetune.tuning.options import TuningOptions
from edgetune.tuning.outcome import DeviceOutcome

FAILURES = 3
"""A device that fails so often, with nothing measured in between, is quarantined."""
_POLL_S = 0.2
_LONGEST_PAUSE = 16

News = Callable[[str], None]
"""Is told what becomes of devices; may be called in any thread."""


class _State(Enum):
    WORKING = auto()
    FAILING = auto()
    QUARANTINED = auto()
    DONE = auto()


@dataclass
class Station:
    """A device of a run, and how it fares.

    Attributes:
        name: as in the logs. measurer: its own.
        trials: recorded by this run.
        worked: whether anything was measured on it.
        failures: in a row. failing_since_s: since when, on the monotonic clock.
        problem: the last one.
        left_out: whether it was said to be quarantined, and not yet to be used again.
    """

    name: str
    measurer: Measurer
    trials: int = 0
    worked: bool = False
    failures: int = 0
    failing_since_s: float = 0.0
    problem: str = ""
    left_out: bool = False
    state: _State = _State.WORKING

    def works(self) -> None:
        """Something was measured on it: what failed before is forgotten."""
        self.worked = True
        self.failures = 0


class Fleet:
    """The devices of a run.

    Args:
        measurers: of each device, by name.
        options: of the run.
        gate: when devices may measure.
        news: is told of failures, quarantines and returns.
    """

    def __init__(
        self, measurers: Mapping[str, Measurer], options: TuningOptions, gate: Gate, news: News
    ) -> None:
        self._stations = [Station(name, measurer) for name, measurer in measurers.items()]
        self._options = options
        self._gate = gate
        self._news = news
        self._changed = threading.Condition()
        self._ended = False
        self._error: BaseException | None = None

    @property
    def lost(self) -> str:
        """Why no device is left to measure on; empty while there is one."""
        if not all(self._is_lost(station) for station in self._stations):
            return ""
        return " ".join(station.problem for station in self._stations)

    def outcome(self) -> tuple[DeviceOutcome, ...]:
        """Return how the devices fared."""
        return tuple(
            DeviceOutcome(s.name, s.trials, s.problem if s.state is not _State.DONE and s.failures else "")
            for s in self._stations
        )

    def run(self, turn: Callable[[Station], bool], stop: Callable[[], bool]) -> None:
        """Have every device take turns until one finds nothing more to do, or no device is left.

        Returns when no device measures any more; a thread that waits for a device to answer ends later, by itself.

        Args:
            turn: measures some work on a device; False when there is none. Raises DeviceError when the device fails,
                once the work is left to others.
            stop: whether the run should end.

        Raises:
            Exception: what ended a turn, if not the device.
        """
        for station in self._stations:
            name = f"edgetune-{station.name}"
            threading.Thread(target=self._serve, args=(station, turn, stop), name=name, daemon=True).start()
        with self._changed:
            try:
                while not self._is_over(stop):
                    self._changed.wait(_POLL_S)
            finally:
                self._ended = True
        if self._error is not None:
            raise self._error

    def _is_over(self, stop: Callable[[], bool]) -> bool:
        states = {station.state for station in self._stations}
        if self._error is not None:
            return True
        return _State.WORKING not in states and (_State.DONE in states or bool(self.lost) or stop())

    def _serve(self, station: Station, turn: Callable[[Station], bool], stop: Callable[[], bool]) -> None:
        try:
            while not self._ended:
                try:
                    if not turn(station):
                        self._set(station, _State.DONE)
                        return
                    self._welcome(station)
                except DeviceError as error:
                    self._failed(station, error)
                    if not self._answers_again(station, stop):
                        return
        except BaseException as error:
            with self._changed:
                self._error = self._error or error
                self._changed.notify_all()
        finally:
            station.measurer.close()

    def _answers_again(self, station: Station, stop: Callable[[], bool]) -> bool:
        """Try until the device runs the reference kernel; False when the run ends before that."""
        while self._pause(station, stop):
            try:
                with self._gate.measuring():
                    station.measurer.time_reference_kernel()
            except DeviceError as error:
                self._failed(station, error)
                continue
            self._set(station, _State.WORKING)
            return not self._ended
        return False

    def _pause(self, station: Station, stop: Callable[[], bool]) -> bool:
        """Wait a moment, a longer one after each failure; False when the run ends."""
        length = min(_LONGEST_PAUSE, 2 ** max(0, station.failures - FAILURES)) * self._options.retry_s
        end = time.monotonic() + length
        with self._changed:
            while (left := end - time.monotonic()) > 0 and not (self._ended or stop()):
                self._changed.wait(min(left, _POLL_S))
            return not (self._ended or stop())

    def _failed(self, station: Station, error: DeviceError) -> None:
        if self._ended:
            return
        with self._changed:
            if not station.failures:
                station.failing_since_s = time.monotonic()
            station.failures += 1
            station.problem = str(error)
        if station.failures < FAILURES:
            self._set(station, _State.FAILING)
            if station.failures == 1:
                self._news(
                    f"{error} What it was to measure is left to others, or measured once it answers again"
                )
        elif station.state is not _State.QUARANTINED:
            self._set(station, _State.QUARANTINED)
            if not station.left_out:
                station.left_out = True
                self._news(
                    f"device '{station.name}' failed {station.failures} times in a row and is left out until it works "
                    f"again: {error}"
                )

    def _welcome(self, station: Station) -> None:
        """Say that a device is used again: not when it answers, but when something was measured on it."""
        if station.left_out and not station.failures:
            station.left_out = False
            self._news(f"device '{station.name}' works again, and is used again")

    def _is_lost(self, station: Station) -> bool:
        if station.state is not _State.QUARANTINED:
            return False
        patience_s = self._options.device_timeout_s if station.worked else 0.0
        return time.monotonic() - station.failing_since_s >= patience_s

    def _set(self, station: Station, state: _State) -> None:
        with self._changed:
            station.state = state
            self._changed.notify_all()
