"""Whether a device is as fast as it was: waits for a hot one to cool down, and says what was out of control.

The reference kernel (``reference_kernel.py``) tells how fast the device is; its sensors tell why it is slower. Only
where they show heat or a lowered clock does waiting help, so only then is it done, and for no more than a part of
the run.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from edgetune.devices.sensors import State
from edgetune.tuning.options import MeasureOptions

_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 8.0
_WARMER_C = 5.0
_SLOWER_CLOCK = 0.95


class Steadiness:
    """Follows one device through a run. Not for several threads.

    Args:
        read: gives the device's state.
        options: how far the reference kernel may drift, how long to wait.
        sleep, clock: of the operating system; tests have their own.
    """

    def __init__(
        self,
        read: Callable[[], State],
        options: MeasureOptions,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._options = options
        self._sleep = sleep
        self._clock = clock
        self._started_s = clock()
        self._best_s = float("inf")
        self._calm = State()
        self._states: list[State] = []
        self.cooled_s = 0.0

    def time_reference_kernel(self, run_kernel: Callable[[], float]) -> float:
        """Return the reference kernel's seconds, and read the state."""
        # In this order: a device that does not run the kernel is not waited for a second time.
        seconds = run_kernel()
        state = self._read()
        self._states.append(state)
        if seconds < self._best_s:
            self._best_s, self._calm = seconds, state
        return seconds

    def settle(self, run_kernel: Callable[[], float]) -> float:
        """The same before a batch: waits as long as the device is slower for heat, and time is left for it."""
        self._states.clear()
        seconds = self.time_reference_kernel(run_kernel)
        pause_s = _PAUSE_S
        while self.is_slow(seconds) and self._is_hot() and self._may_wait(pause_s):
            self._sleep(pause_s)
            self.cooled_s += pause_s
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            self._states.clear()
            seconds = self.time_reference_kernel(run_kernel)
        return seconds

    def is_slow(self, seconds: float) -> bool:
        """Whether a time of the reference kernel is beyond the bound of the best one of the run."""
        return seconds > self._best_s * (1 + self._options.drift_bound)

    def states(self) -> tuple[State, State]:
        """Return the state before the batch that was just measured, and the one after it."""
        return self._states[0], self._states[-1]

    def _is_hot(self) -> bool:
        """Whether its sensors say that it is slower for heat than when it was fastest."""
        now, calm = self._states[-1], self._calm
        if now.throttled and now.throttled != calm.throttled:
            return True
        warmest_c = None if calm.hottest_c is None else calm.hottest_c + _WARMER_C
        if now.hottest_c is not None and warmest_c is not None and now.hottest_c > warmest_c:
            return True
        shared = now.limit_mhz.keys() & calm.limit_mhz.keys()
        return any(now.limit_mhz[cpu] < _SLOWER_CLOCK * calm.limit_mhz[cpu] for cpu in shared)

    def _may_wait(self, seconds: float) -> bool:
        run_s = self._clock() - self._started_s
        allowed_s = max(self._options.cool_down_s, self._options.cool_down_part * run_s)
        return self.cooled_s + seconds <= allowed_s
