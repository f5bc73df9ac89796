"""Times a bundle on a device that is another machine, beside ONNX Runtime where the device has it, or its kernels."""

from __future__ import annotations

import contextlib
import functools
import logging
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from edgetune.benchmarking.differences import with_errors
from edgetune.benchmarking.fixed_work import drift
from edgetune.benchmarking.results import BenchmarkResult, SideResult
from edgetune.benchmarking.roofline import UNKNOWN, WORKING_SETS_BYTES, Roofline
from edgetune.benchmarking.surroundings import POWER_S, surroundings
from edgetune.bundle.reader import Bundle
from edgetune.devices.inventory import cpus_of, open_device
from edgetune.devices.transport import Device
from edgetune.errors import DeviceError, EdgetuneError, ToolchainError
from edgetune.sides.device_onnxruntime import DeviceOnnxRuntime, onnxruntime_on
from edgetune.sides.device_side import DeviceSide, device_side
from edgetune.sides.files import Model, side_files

log = logging.getLogger(__name__)

_ROUND_S = 0.5
_MIN_RUNS, _MAX_RUNS = 5, 2000
_WARM_UP_RUNS = 3
_REFERENCE = "onnxruntime"
_ONLY_HERE = "it runs on this machine alone; on another device, ONNX Runtime does"


def benchmark_on_device(
    bundle: Bundle,
    inputs: Mapping[str, np.ndarray],
    device: str | Device,
    threads: int | None,
    rounds: int,
    runs: int | None,
    progress: Callable[[int, int], None] | None,
    cluster: str | None = None,
    fix_clocks: bool = False,
    against: Sequence[str] = (),
    model: Model | None = None,
) -> BenchmarkResult:
    """Time single runs of a bundle by the device's own clock, and of ONNX Runtime there, in turns.

    The arrays lie on the device already: unlike in a benchmark of this machine, their copying is not timed, for
    neither side. ``drift`` is that of the bundle's own median from round to round.

    Args and errors are those of :func:`edgetune.benchmarking.rounds.benchmark`; ``against`` are the names of the other
    sides, and what does not run on the device is in the result's ``refused``.
    """
    count = device.threads if isinstance(device, Device) else threads or bundle.manifest.threads
    opened = device if isinstance(device, Device) else open_device(device, count, cpus_of(device, cluster))
    with contextlib.ExitStack() as stack:
        around = stack.enter_context(surroundings(opened, fix_clocks))
        own = stack.enter_context(device_side(bundle, inputs, opened, count))
        turns = _Turns({"edgetune": own})
        turns.refused |= {name: _ONLY_HERE for name in against if name != _REFERENCE}
        if _REFERENCE in against:
            files = stack.enter_context(side_files(bundle, model, inputs))
            turns.add(_REFERENCE, lambda: stack.enter_context(onnxruntime_on(opened, files, inputs, count)))
        turns.take(rounds, runs, progress)
        results = turns.results()
        power_w = around.watts(
            {name: functools.partial(turns.sides[name].run, _WARM_UP_RUNS, POWER_S) for name in results}
        )
    results = {name: replace(result, power_w=power_w[name]) for name, result in results.items()}
    result = results.pop("edgetune")
    return BenchmarkResult(
        bundle=bundle.path,
        threads=count,
        edgetune=result,
        others=results,
        rounds=rounds,
        runs=sum(map(len, turns.times_ms["edgetune"])),
        drift=drift(list(result.round_medians_ms)),
        refused=turns.refused,
        conditions=around.to_json(),
        notes=around.notes,
    )


class _Turns:
    """The sides on a device, one after the other. One beside the bundle that fails is left out, with its reason."""

    def __init__(self, sides: Mapping[str, DeviceSide | DeviceOnnxRuntime]) -> None:
        self.sides = dict(sides)
        self.refused: dict[str, str] = {}
        self.times_ms: dict[str, list[list[float]]] = {name: [] for name in sides}

    def add(self, name: str, open_side: Callable[[], DeviceOnnxRuntime]) -> None:
        """Open another side."""
        with self._guarded(name):
            self.sides[name] = open_side()
            self.times_ms[name] = []

    def take(self, rounds: int, runs: int | None, progress: Callable[[int, int], None] | None) -> None:
        """Run all of them in every round, for about half a second or ``runs`` times."""
        counts = dict.fromkeys(self.sides, runs) if runs else self._counts()
        for number in range(rounds):
            names = list(self.sides) if number % 2 == 0 else list(reversed(self.sides))
            for name in names:
                with self._guarded(name):
                    self.sides[name].run(_WARM_UP_RUNS)
                    self.times_ms[name].append(self.sides[name].run(counts[name] or 1))
                self._rest()
            if progress is not None:
                progress(number + 1, rounds)

    def results(self) -> dict[str, SideResult]:
        """Those of the sides that are left, with their difference from ONNX Runtime's outputs."""
        found: dict[str, SideResult] = {}
        for name, side in list(self.sides.items()):
            with self._guarded(name):
                found[name] = SideResult.of(
                    side.version, self.times_ms[name], side.load_s, side.memory_bytes()
                )
        with self._guarded(_REFERENCE):
            found = with_errors(found, self.sides)
        return {name: found[name] for name in self.sides}

    def _counts(self) -> dict[str, int | None]:
        typical_ms = {}
        for name, side in list(self.sides.items()):
            with self._guarded(name):
                typical_ms[name] = statistics.median(side.run(_WARM_UP_RUNS))
            self._rest()
        slowest_ms = max(typical_ms.values())
        number = int(min(_MAX_RUNS, max(_MIN_RUNS, _ROUND_S * 1e3 / max(slowest_ms, 1e-6))))
        return dict.fromkeys(self.sides, number)

    def _rest(self) -> None:
        """Wait until the threads of the side that ran are at rest."""
        if (other := self.sides.get(_REFERENCE)) is not None:
            with self._guarded(_REFERENCE):
                other.wait_quiet()

    @contextlib.contextmanager
    def _guarded(self, name: str) -> Iterator[None]:
        """Leave a side out if it fails; the bundle's own failure is an error."""
        try:
            yield
        except EdgetuneError as error:
            if name == "edgetune":
                raise
            self.refused[name] = str(error)
            self.sides.pop(name, None)


@dataclass(frozen=True)
class Observed:
    """What :func:`observe_on_device` found.

    Attributes:
        threads: that it ran on. latency_ms: median of unobserved runs.
        runs: of every observed one, and each kernel, and instruction of a virtual machine, in its order, the name,
            nanoseconds and bytes.
        machine: the device's limits; UNKNOWN where they were not measured.
    """

    threads: int
    latency_ms: float
    runs: list[list[tuple[str, int, int]]]
    machine: Roofline


def observe_on_device(
    bundle: Bundle,
    inputs: Mapping[str, np.ndarray],
    device: str | Device,
    threads: int | None,
    runs: int,
    *,
    roofline: bool,
) -> Observed:
    """Time the kernels of a bundle on a device, and the device itself.

    Args and errors are those of :func:`edgetune.benchmarking.profile.profile`.
    """
    count = device.threads if isinstance(device, Device) else threads or bundle.manifest.threads
    with device_side(bundle, inputs, device, count) as side:
        typical_ms = statistics.median(side.run(_WARM_UP_RUNS, _ROUND_S))
        observed = side.observe(runs + _WARM_UP_RUNS)[_WARM_UP_RUNS:]
        machine = UNKNOWN
        if roofline:
            try:
                peak, bandwidth = side.limits(count, WORKING_SETS_BYTES)
                machine = Roofline(peak, tuple(bandwidth))
            except (ToolchainError, DeviceError) as error:
                log.warning("the limits of the device are unknown: %s", error)
    return Observed(count, typical_ms, observed, machine)
