"""Times a bundle beside other runtimes: a process each, taking turns, under the same conditions.

Each side lives in a process of its own for the whole benchmark. In each round all run for about
half a second, one while the others sleep: a side starts only when the thread pool of the one before has
stopped spinning. The order changes from round to round, so that a slow drift of the machine hits
all alike. They run on the same inputs and on as many threads; two sides run the same number of times, and of
several each as often as its half second allows, since the slowest may be a hundred times slower than the fastest.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgetune.benchmarking.differences import with_errors
from edgetune.benchmarking.fixed_work import FixedWork, drift
from edgetune.benchmarking.on_device import benchmark_on_device
from edgetune.benchmarking.results import BenchmarkResult, SideResult
from edgetune.benchmarking.surroundings import POWER_S, surroundings
from edgetune.bundle.inputs import choose_inputs
from edgetune.bundle.reader import check_loadable
from edgetune.devices.inventory import cpus_of, open_device
from edgetune.devices.transport import Device
from edgetune.errors import EdgetuneError, UsageError
from edgetune.machine import usable_cpus
from edgetune.sides.base import SideSpec
from edgetune.sides.device_side import is_remote, open_for
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
    against: str | Sequence[str] | None = "onnxruntime",
    threads: int | None = None,
    device: str | Device | None = None,
    *,
    model: Model | None = None,
    inputs: str | Path | Mapping[str, Any] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    rounds: int = ROUNDS,
    runs: int | None = None,
    progress: Progress | None = None,
    cluster: str | None = None,
    fix_clocks: bool = False,
) -> BenchmarkResult:
    """Time a bundle on this machine, alone or in alternation with other runtimes.

    Where ONNX Runtime is among them, the outputs of all are compared with its own afterwards.

    Args:
        bundle: the bundle.
        against: the other side: a name of ``edgetune.sides.base.SIDES``, such as ``onnxruntime``, the path of a
            ``.py`` file with a side of one's own (``edgetune/sides/base.py``), or None for none. Of several,
            one that is not installed or cannot take the model is left out, with its reason in ``refused``.
        threads: threads of all sides, the bundle's own number by default.
        device: where to run, by name or a device that is at hand; this machine by default. On another machine
            ONNX Runtime alone runs beside the bundle, in that machine's own Python, and where that has none the
            bundle runs alone: what runs here cannot be compared with it. The reason is in ``refused``.
        model: the ONNX model for the other side, in place of the one in the bundle.
        inputs: a ``.npz`` file or arrays by name; the recorded ones by default.
        shapes: of the recorded inputs, for a bundle of several sizes; its largest by default.
        rounds: how often the sides take turns.
        runs: timed runs of each side in a round; by default as many as half a second allows.
        progress: told after each round.
        cluster: the device's CPUs to run on, by name or as a list (``devices/clusters.py``); any by default, or
            those of a device that is at hand.
        fix_clocks: let them run with the ``performance`` governor meanwhile, where the user of the device may
            say so; it is put back whatever happens.

    Raises:
        UsageError: a number is less than one, there is no such side, or the inputs do not fit.
        BundleError: the bundle is damaged or for another machine.
        DeviceError: the device is unavailable.
        EdgetuneError: a side crashed or did not answer.
    """
    for name, number in (("threads", threads), ("rounds", rounds), ("runs", runs)):
        if number is not None and number < 1:
            raise UsageError(f"{name}={number} is too few; give 1 or more")
    several = against is not None and not isinstance(against, str)
    wanted = ((against,) if isinstance(against, str) else against) or ()
    opened = open_for(bundle, device)
    chosen = choose_inputs(opened, inputs, shapes=shapes)
    if device is not None and is_remote(device):
        return benchmark_on_device(
            opened, chosen, device, threads, rounds, runs, progress, cluster, fix_clocks, wanted, model
        )
    check_loadable(opened)
    here = device if isinstance(device, Device) else open_device(None, 1, cpus_of(None, cluster))
    count = min(threads or opened.manifest.threads, len(here.cpus or usable_cpus()))
    refused: dict[str, str] = {}
    with side_files(opened, model, chosen) as files, contextlib.ExitStack() as stack:
        around = stack.enter_context(surroundings(here, fix_clocks))

        def spec(name: str) -> SideSpec:
            return replace(files.spec(name, count), cpus=here.cpus)

        sides = {"edgetune": stack.enter_context(SideProcess(spec("edgetune")))}
        for name in wanted:
            try:
                sides[Path(name).stem] = _opened(spec(name), stack)
            except EdgetuneError as error:
                if not several:
                    raise
                refused[Path(name).stem] = str(error)
        times_ms, fixed_ms = _take_turns(list(sides.values()), count, rounds, runs, progress)
        results = {
            name: SideResult.of(side.version, rounds_ms, side.load_s, side.memory_bytes())
            for (name, side), rounds_ms in zip(sides.items(), times_ms, strict=True)
        }
        results = with_errors(results, sides)
        power_w = around.watts(
            {name: functools.partial(side.run, 1, POWER_S) for name, side in sides.items()}
        )
        results = {name: replace(result, power_w=power_w[name]) for name, result in results.items()}
    return BenchmarkResult(
        bundle=Path(bundle),
        threads=count,
        edgetune=results.pop("edgetune"),
        others=results,
        rounds=rounds,
        runs=sum(len(round_ms) for round_ms in times_ms[0]),
        drift=drift(fixed_ms),
        refused=refused,
        conditions=around.to_json(),
        notes=around.notes,
    )


def _opened(spec: SideSpec, stack: contextlib.ExitStack) -> SideProcess:
    """A side that has run once: some refuse a model only then."""
    with contextlib.ExitStack() as trial:
        side = trial.enter_context(SideProcess(spec))
        side.run(1)
        stack.push(trial.pop_all())
    return side


def _take_turns(
    sides: Sequence[SideProcess], threads: int, rounds: int, runs: int | None, progress: Progress | None
) -> tuple[list[list[list[float]]], list[float]]:
    """The times of every run, by side and round, and of the fixed work before and after the rounds."""
    counts = [runs] * len(sides) if runs else _runs_for(sides)
    times_ms: list[list[list[float]]] = [[] for _ in sides]
    work = FixedWork(threads)
    fixed_ms = [work.time_ms()]
    for number in range(rounds):
        order = range(len(sides)) if number % 2 == 0 else reversed(range(len(sides)))
        for index in order:
            sides[index].run(_WARM_UP_RUNS, _WARM_UP_S)
            times_ms[index].append(sides[index].run(counts[index]))
            sides[index].wait_quiet()
        fixed_ms.append(work.time_ms())
        if progress is not None:
            progress(number + 1, rounds)
    return times_ms, fixed_ms


def _runs_for(sides: Sequence[SideProcess]) -> list[int]:
    """How many runs take half a second, within bounds: of two sides the slower one's; warms the sides up too."""
    typical_ms = []
    for side in sides:
        typical_ms.append(statistics.median(side.run(_WARM_UP_RUNS, 2 * _WARM_UP_S)))
        side.wait_quiet()
    if len(sides) <= 2:
        typical_ms = [max(typical_ms)] * len(sides)
    return [int(min(_MAX_RUNS, max(_MIN_RUNS, ROUND_S * 1e3 / time_ms))) for time_ms in typical_ms]
