"""The power that a device draws while something runs: its own sensors, read again and again on the device.

Intel's and AMD's RAPL counts energy of the package; the INA3221 of Jetson boards tells power, and its rail that feeds
all others is that of the whole module. What a sensor covers is said by its name. Sources: see ``sensors.py``.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from edgetune.devices.link import Link, Stream
from edgetune.devices.sensors import PowerReading, parse_power, power_script

PERIOD_S = 0.05
_LAST_SAMPLE_S = 2.0


@dataclass(frozen=True)
class Sample:
    """All power sensors at one moment, in seconds of the device's uptime."""

    at_s: float
    readings: tuple[PowerReading, ...]


class PowerMeter:
    """A context in which power can be measured. One thread may measure.

    Args:
        link: to the device; its owner closes it.
        root: what stands before the paths of the kernel's files.
    """

    def __init__(self, link: Link, root: str = "") -> None:
        self._link = link
        self._root = root
        self._stream: Stream | None = None
        self._samples: list[Sample] = []
        self._offset_s = float("inf")
        self._changed = threading.Condition()

    def __enter__(self) -> Self:
        """Begin to read.

        Raises:
            DeviceError: the connection is gone.
        """
        self._stream = self._link.stream(power_script(self._root, PERIOD_S))
        threading.Thread(target=self._read, args=(self._stream,), daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the reading on the device."""
        if self._stream is not None:
            self._stream.close()

    def watts(self, work: Callable[[], object]) -> float | None:
        """Do the work, which should take a second, and return the mean power; None where no sensor tells.

        Raises:
            Exception: whatever the work raises.
        """
        with self._changed:
            self._changed.wait_for(lambda: bool(self._samples), _LAST_SAMPLE_S)
        start_s = time.monotonic()
        work()
        end_s = time.monotonic()
        with self._changed:
            self._changed.wait_for(
                lambda: bool(self._samples) and self._samples[-1].at_s + self._offset_s >= end_s,
                _LAST_SAMPLE_S,
            )
            samples, offset_s = tuple(self._samples), self._offset_s
        return mean_watts(samples, start_s - offset_s, end_s - offset_s)

    def _read(self, stream: Stream) -> None:
        text = b""
        with contextlib.suppress(OSError, EOFError, ValueError):
            while piece := stream.receive(4096):
                arrived_s = time.monotonic()
                *whole, text = (text + piece).split(b"end\n")
                for part in whole:
                    self._add(part.decode("utf-8", "replace"), arrived_s)

    def _add(self, text: str, arrived_s: float) -> None:
        first, _, rest = text.partition("\n")
        with contextlib.suppress(ValueError):
            sample = Sample(float(first.removeprefix("@ ")), parse_power(rest))
            with self._changed:
                # The quickest sample tells best how the device's clock stands to this machine's.
                self._offset_s = min(self._offset_s, arrived_s - sample.at_s)
                self._samples.append(sample)
                self._changed.notify_all()


def mean_watts(samples: Sequence[Sample], start_s: float, end_s: float) -> float | None:
    """Return the mean power between two moments, the sum of all sensors; None where too few samples tell it.

    Args:
        samples: in the order of time. start_s, end_s: in the same clock.
    """
    # One sample on each side of the time asked for, where there is one.
    inside = [i for i, sample in enumerate(samples) if start_s <= sample.at_s <= end_s]
    if len(inside) < 2:
        return None
    window = samples[max(0, inside[0] - 1) : inside[-1] + 2]
    names = set.intersection(*({reading.name for reading in sample.readings} for sample in window))
    total = 0.0
    for name in sorted(names):
        points = [(s.at_s, next(r for r in s.readings if r.name == name)) for s in window]
        total += _watts_of(points, start_s, end_s)
    return total if names else None


def _watts_of(points: Sequence[tuple[float, PowerReading]], start_s: float, end_s: float) -> float:
    """The mean power by one sensor: between its neighbouring readings, power or the rise of energy is even."""
    joules = time_s = 0.0
    for (before_s, before), (after_s, after) in itertools.pairwise(points):
        overlap_s = min(after_s, end_s) - max(before_s, start_s)
        if after_s <= before_s or overlap_s <= 0:
            continue
        if before.joules is not None and after.joules is not None:
            rise_j = after.joules - before.joules
            if rise_j < 0:
                rise_j += before.wraps_j
            watts = rise_j / (after_s - before_s)
        else:
            watts = ((before.watts or 0.0) + (after.watts or 0.0)) / 2
        joules += watts * overlap_s
        time_s += overlap_s
    return joules / time_s if time_s else 0.0
