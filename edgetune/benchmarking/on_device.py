"""Times a bundle, or its kernels, on a device that is another machine, alone."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from edgetune.benchmarking.fixed_work import drift
from edgetune.benchmarking.results import BenchmarkResult, SideResult
from edgetune.benchmarking.roofline import UNKNOWN, WORKING_SETS_BYTES, Roofline
from edgetune.benchmarking.surroundings import POWER_S, surroundings
from edgetune.bundle.reader import Bundle
from edgetune.devices.inventory import cpus_of, open_device
from edgetune.devices.transport import Device
from edgetune.errors import DeviceError, ToolchainError
from edgetune.sides.device_side import device_side

log = logging.getLogger(__name__)

_ROUND_S = 0.5
_MIN_RUNS, _MAX_RUNS = 5, 2000
_WARM_UP_RUNS = 3


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
) -> BenchmarkResult:
    """Time single runs of a bundle by the device's own clock.

    The arrays lie on the device already: unlike in a benchmark of this machine, their copying is not timed.
    ``drift`` is that of the bundle's own median from round to round.

    Args and errors are those of :func:`edgetune.benchmarking.rounds.benchmark`.
    """
    count = device.threads if isinstance(device, Device) else threads or bundle.manifest.threads
    times_ms: list[list[float]] = []
    opened = device if isinstance(device, Device) else open_device(device, count, cpus_of(device, cluster))
    with surroundings(opened, fix_clocks) as around, device_side(bundle, inputs, opened, count) as side:
        typical_ms = statistics.median(side.run(_WARM_UP_RUNS))
        number = runs or int(min(_MAX_RUNS, max(_MIN_RUNS, _ROUND_S * 1e3 / max(typical_ms, 1e-6))))
        for done in range(rounds):
            side.run(_WARM_UP_RUNS)
            times_ms.append(side.run(number))
            if progress is not None:
                progress(done + 1, rounds)
        result = SideResult.of(side.version, times_ms, side.load_s, side.memory_bytes())
        power_w = around.watts({"edgetune": lambda: side.run(_WARM_UP_RUNS, POWER_S)})["edgetune"]
    return BenchmarkResult(
        bundle=bundle.path,
        threads=count,
        edgetune=replace(result, power_w=power_w),
        others={},
        rounds=rounds,
        runs=rounds * number,
        drift=drift(list(result.round_medians_ms)),
        conditions=around.to_json(),
        notes=around.notes,
    )


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
