"""Times a bundle beside another runtime: two processes, taking turns, under the same conditions.

Each side lives in a process of its own for the whole benchmark. In each round both run for about
half a second, one while the other sleeps: a side starts only when the thread pool of the other has
stopped spinning. The order changes from round to round, so that a slow drift of the machine hits
both alike. Both run the same number of times, on the same inputs and on as many threads.
"""

from __future__ import annotations

import contextlib
import logging
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgetune.benchmarking.fixed_work import FixedWork, drift
from edgetune.benchmarking.on_device import benchmark_on_device
from edgetune.benchmarking.results import BenchmarkResult, SideResult
from edgetune.bundle.inputs import choose_inputs
from edgetune.bundle.reader import check_loadable, open_bundle
from edgetune.devices.transport import Device
from edgetune.errors import UsageError
from edgetune.machine import usable_cpus
from edgetune.sides.device_side import is_remote
from edgetune.sides.files import Model, side_files
from edgetune.sides.process import SideProcess

log = logging.getLogger(__name__)

ROUNDS = 5
ROUND_S = 0.5
_MIN_RUNS, _MAX_RUNS = 5, 2000
_WARM_UP_S = 0.1
_WARM_UP_RUNS = 3

Progress = Callable[[int, int], None]
"""Called with the number of finished rounds and of all."""


def benchmark(
    bundle: str | Path,
    against: str | None = "onnxruntime",
    threads: int | None = None,
    device: str | Device | None = None,
    *,
    model: Model | None = None,
    inputs: str | Path | Mapping[str, Any] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    rounds: int = ROUNDS,
    runs: int | None = None,
    progress: Progress | None = None,
) -> BenchmarkResult:
    """Time a bundle on this machine, alone or in alternation with another runtime.

    Args:
        bundle: the bundle.
        against: the other side: ``onnxruntime``, the path of a ``.py`` file with a side of one's own
            (``edgetune/sides/base.py``), or None for none.
        threads: threads of both sides, the bundle's own number by default.
        device: where to run, by name or a device that is at hand; this machine by default. On another machine
            the bundle runs alone, whatever ``against`` says: what runs here cannot be compared with it.
        model: the ONNX model for the other side, in place of the one in the bundle.
        inputs: a ``.npz`` file or arrays by name; the recorded ones by default.
        shapes: of the recorded inputs, for a bundle of several sizes; its largest by default.
        rounds: how often the sides take turns.
        runs: timed runs of each side in a round; by default as many as half a second allows.
        progress: told after each round.

    Raises:
        UsageError: a number is less than one, there is no such side, or the inputs do not fit.
        BundleError: the bundle is damaged or for another machine.
        DeviceError: the device is unavailable.
        EdgetuneError: a side crashed or did not answer.
    """
    for name, number in (("threads", threads), ("rounds", rounds), ("runs", runs)):
        if number is not None and number < 1:
            raise UsageError(f"{name}={number} is too few; give 1 or more")
    opened = open_bundle(bundle)
    chosen = choose_inputs(opened, inputs, shapes=shapes)
    if device is not None and is_remote(device):
        return benchmark_on_device(opened, chosen, device, threads, rounds, runs, progress)
    check_loadable(opened)
    count = min(threads or opened.manifest.threads, len(usable_cpus()))
    names = ["edgetune"] if against is None else ["edgetune", against]
    with side_files(opened, model, chosen) as files, contextlib.ExitStack() as stack:
        sides = [stack.enter_context(SideProcess(files.spec(name, count))) for name in names]
        times_ms, fixed_ms = _take_turns(sides, count, rounds, runs, progress)
        results = [
            SideResult.of(side.version, rounds_ms, side.load_s, side.memory_bytes())
            for side, rounds_ms in zip(sides, times_ms, strict=True)
        ]
    return BenchmarkResult(
        bundle=Path(bundle),
        threads=count,
        edgetune=results[0],
        other=results[1] if against else None,
        against=Path(against).stem if against else None,
        rounds=rounds,
        runs=sum(len(round_ms) for round_ms in times_ms[0]),
        drift=drift(fixed_ms),
    )


def _take_turns(
    sides: Sequence[SideProcess], threads: int, rounds: int, runs: int | None, progress: Progress | None
) -> tuple[list[list[list[float]]], list[float]]:
    """The times of every run, by side and round, and of the fixed work before and after the rounds."""
    count = runs or _runs_for(sides)
    times_ms: list[list[list[float]]] = [[] for _ in sides]
    work = FixedWork(threads)
    fixed_ms = [work.time_ms()]
    for number in range(rounds):
        order = range(len(sides)) if number % 2 == 0 else reversed(range(len(sides)))
        for index in order:
            sides[index].run(_WARM_UP_RUNS, _WARM_UP_S)
            times_ms[index].append(sides[index].run(count))
            sides[index].wait_quiet()
        fixed_ms.append(work.time_ms())
        if progress is not None:
            progress(number + 1, rounds)
    return times_ms, fixed_ms


def _runs_for(sides: Sequence[SideProcess]) -> int:
    """How many runs of the slowest side take half a second, within bounds; warms the sides up too."""
    slowest_ms = 0.0
    for side in sides:
        slowest_ms = max(slowest_ms, statistics.median(side.run(_WARM_UP_RUNS, 2 * _WARM_UP_S)))
        side.wait_quiet()
    return int(min(_MAX_RUNS, max(_MIN_RUNS, ROUND_S * 1e3 / slowest_ms)))
