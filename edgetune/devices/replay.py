"""A device that replays recorded timings: for policies, which can be judged without compiling anything.

It knows the outcome of every candidate that was recorded, and nothing else. Its reference kernel can be
told to drift, and its candidates to take (simulated) time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

from edgetune.devices.sensors import State
from edgetune.errors import DeviceError
from edgetune.records import Candidate, Failure, Record, Timing


class ReplayDevice:
    """Answers with what was recorded.

    Args:
        records: the recordings; of several records for one candidate the last counts.
        name: as which device it appears in the logs.
        reference_times_s: seconds of the reference kernel, one for each time it is run; the last one goes on.
        states: what its sensors tell, one for each time they are asked; the last one goes on.
    """

    shares_host = False

    def __init__(
        self,
        records: Iterable[Record],
        name: str = "replay",
        reference_times_s: Iterable[float] = (1e-4,),
        states: Iterable[State] = (),
    ) -> None:
        self.name = name
        self._outcomes: dict[tuple[str, str], Timing | Failure] = {}
        self._traces: dict[str, list[str]] = {}
        for record in records:
            if (record.workload, record.trace) not in self._outcomes:
                self._traces.setdefault(record.workload, []).append(record.trace)
            self._outcomes[record.workload, record.trace] = record.outcome
        self._reference_times_s = itertools.chain(reference_times_s)
        self._reference_s = 1e-4
        self._states = itertools.chain(states)
        self._state = State()
        self._waited_s = 0.0
        self.measured: list[Candidate] = []
        """Every candidate that was asked for, in order: what tests look at."""

    def traces(self, workload: str) -> tuple[str, ...]:
        """Return the recorded candidates of a task, in the order of their records."""
        return tuple(self._traces.get(workload, ()))

    def best_s(self) -> Mapping[str, float]:
        """Return the best recorded seconds of each task: what a perfect policy would find."""
        best: dict[str, float] = {}
        for (workload, _), outcome in self._outcomes.items():
            if isinstance(outcome, Timing):
                best[workload] = min(outcome.median_s, best.get(workload, float("inf")))
        return best

    def outcome(self, candidate: Candidate) -> Timing | Failure:
        """Return what was recorded for a candidate.

        Raises:
            DeviceError: nothing was.
        """
        self.measured.append(candidate)
        try:
            return self._outcomes[candidate.workload, candidate.trace]
        except KeyError:
            raise DeviceError(
                f"Replay device '{self.name}' has no recording of this candidate of {candidate.workload}. "
                "Record it on a real device first."
            ) from None

    def time_reference_kernel(self) -> float:
        """Return the next seconds of the reference kernel."""
        self._reference_s = next(self._reference_times_s, self._reference_s)
        return self._reference_s

    def state(self) -> State:
        """Return what its sensors tell next."""
        self._state = next(self._states, self._state)
        return self._state

    def wait(self, seconds: float) -> None:
        """Let simulated time pass."""
        self._waited_s += seconds

    def clock(self) -> float:
        """Return the simulated seconds that have passed."""
        return self._waited_s
