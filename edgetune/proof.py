"""Where a bundle is verified and timed: on the first device of the run that answers, else on this machine.

Losing a device must not cost the bundle: it is then verified here, where this machine can run it, and says so
where it cannot.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from edgetune.benchmarking.agreement import Agreement
from edgetune.benchmarking.profile import profile
from edgetune.benchmarking.results import BenchmarkResult
from edgetune.benchmarking.rounds import benchmark
from edgetune.devices.transport import Device
from edgetune.errors import DeviceError, EdgetuneError
from edgetune.records import CompareResult
from edgetune.verify import compare
from edgetune.watcher import Watcher

_T = TypeVar("_T")


class Prover:
    """Verifies and times the bundles of one run. Not for several threads.

    Args:
        devices: other machines; none for this one.
        here: whether this machine can run the bundles.
        rtol, atol: tolerances of the verification; None for those of each output's dtype.
        watcher: told of each timing, and of devices that do not answer.
        cluster: CPUs of this machine to time bundles on; other devices know their own.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        here: bool,
        rtol: float | None,
        atol: float | None,
        watcher: Watcher,
        cluster: str | None = None,
    ) -> None:
        self._left = list(devices)
        self._elsewhere = bool(devices)
        self._here = here
        self._rtol, self._atol = rtol, atol
        self._watcher = watcher
        self._cluster = cluster

    @property
    def possible(self) -> bool:
        """Whether bundles can be run anywhere."""
        return self._here or bool(self._left)

    @property
    def elsewhere(self) -> bool:
        """Whether they are meant to run on another machine."""
        return self._elsewhere

    @property
    def note(self) -> str:
        """What a user should know of the verification; empty where it was done as meant."""
        if not self._elsewhere or self._left:
            return ""
        what = "verified on this machine, not" if self._here else "not verified"
        return f"{what} on the device, which was lost; run 'edgetune compare' with --device once it is back"

    def lose(self, names: Sequence[str]) -> None:
        """Do not ask these devices any more."""
        self._left = [device for device in self._left if device.name not in names]

    def verify(self, bundle: Path) -> CompareResult | None:
        """Compare a bundle's outputs with ONNX Runtime's; None where it cannot be run.

        Raises:
            EdgetuneError: see :func:`edgetune.verify.compare`; not for a device that is lost.
        """
        ask = functools.partial(compare, bundle, rtol=self._rtol, atol=self._atol)
        result = self._on_a_device(lambda device: ask(device=device))
        return ask() if result is None and self._here else result

    def benchmark(self, bundle: Path, model: bytes, rounds: int) -> BenchmarkResult | None:
        """Time a verified bundle where it is meant to run: on a device alone, here beside ONNX Runtime.

        None where it cannot be timed, which the watcher is told: the bundle stands all the same.
        """
        if not self.possible:
            return None
        self._watcher.say("timing it" if self._elsewhere else "timing it beside ONNX Runtime")
        try:
            if self._elsewhere:
                return self._on_a_device(
                    lambda device: benchmark(bundle, device=device, model=model, rounds=rounds)
                )
            return benchmark(bundle, model=model, rounds=rounds, cluster=self._cluster)
        except EdgetuneError as error:
            self._watcher.note(f"not timed: {error}")
            return None

    def agreement(self, bundle: Path) -> Agreement | None:
        """Whether the kernels' times add up to the latency; None where the bundle is not meant to run here."""
        if self._elsewhere or not self._here:
            return None
        self._watcher.say("adding up its kernels")
        try:
            return profile(bundle, roofline=False).agreement
        except EdgetuneError as error:
            self._watcher.note(f"kernels not timed: {error}")
            return None

    def _on_a_device(self, ask: Callable[[Device], _T]) -> _T | None:
        """The answer of the first device that gives one; None where none is left."""
        for device in list(self._left):
            try:
                return ask(device)
            except DeviceError as error:
                self._watcher.note(f"{error}")
                self.lose([device.name])
        return None
