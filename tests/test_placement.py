"""Where and on how many threads: clusters of this machine, and the search of the fastest number."""

from __future__ import annotations

import os

import pytest

from edgetune.errors import UsageError
from edgetune.placement import fastest_threads, place
from edgetune.watcher import Watcher


class Notes(Watcher):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.mark.parametrize(
    ("most", "times", "best"),
    [
        (6, {1: 4.0, 2: 2.2, 4: 1.9, 6: 2.5}, 4),
        (4, {1: 4.0, 2: 2.2, 4: 1.9}, 4),
        (1, {1: 4.0}, 1),
        (3, {1: None, 2: None, 3: None}, 3),
    ],
)
def test_the_fastest_number_of_threads(most, times, best):
    asked: list[int] = []
    watcher = Notes()

    def time_ms(count):
        asked.append(count)
        return times[count]

    assert fastest_threads(most, time_ms, watcher) == best
    assert asked == list(times)
    assert all(f"tuning for {best} threads" in note for note in watcher.notes)


def test_a_cluster_of_this_machine_bounds_its_threads():
    first = min(os.sched_getaffinity(0))
    target, (device,) = place("local", None, None, Watcher(), cluster=str(first))
    assert (target.threads, device.threads, device.cpus) == (1, 1, (first,))
    with pytest.raises(UsageError, match=r"2 threads do not fit on cluster"):
        place("local", 2, None, Watcher(), cluster=str(first))
