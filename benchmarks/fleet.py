"""Trials a minute with one device and with two, where measuring dominates.

    python benchmarks/fleet.py [--measure-s 1.5] [--trials 60]

The devices are stand-ins: each candidate takes them the same fixed time, and no time is real. Everything else is: the
search, the builds in worker processes, the threads of the devices, the logs. The rate counts from the first trial to
the last: starting costs the same with any number of devices.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.faults import small_model  # noqa: E402
from edgetune.graph.lower import lower  # noqa: E402
from edgetune.kernels.registry import design_spaces  # noqa: E402
from edgetune.logs import open_logs  # noqa: E402
from edgetune.model.loading import load_model  # noqa: E402
from edgetune.model.prepare import prepare  # noqa: E402
from edgetune.records import Artifact, Failure, Task, Timing  # noqa: E402
from edgetune.targets import Target, load_target  # noqa: E402
from edgetune.tuning.arguments import Prepared  # noqa: E402
from edgetune.tuning.builder import Builder  # noqa: E402
from edgetune.tuning.gate import Gate  # noqa: E402
from edgetune.tuning.interrupt import Interrupt  # noqa: E402
from edgetune.tuning.options import Budget, TuningOptions  # noqa: E402
from edgetune.tuning.outcome import BatchConditions, Progress  # noqa: E402
from edgetune.tuning.run import Run  # noqa: E402
from edgetune.tuning.search import SearchSettings  # noqa: E402
from edgetune.tuning.search_process import SearchProcess  # noqa: E402
from edgetune.tuning.workers import ForkServer, WorkerPool  # noqa: E402


class StandIn:
    """A device that takes a fixed time for each candidate, and makes up what it measured."""

    def __init__(self, measure_s: float) -> None:
        self._measure_s = measure_s

    def prepare(self, prepared: Prepared) -> None:
        """Do nothing."""

    def measure(self, artifact: Artifact, best_s: float | None) -> Timing | Failure:
        """Wait, and answer with a time drawn from the candidate's trace."""
        time.sleep(self._measure_s)
        draw = hashlib.sha256(artifact.candidate.trace.encode()).digest()[0]
        return Timing((1e-5 * (1 + draw / 255),))

    def settle(self) -> float:
        """Never be hot."""
        return self.time_reference_kernel()

    def time_reference_kernel(self) -> float:
        """Never drift."""
        return 1e-4

    def conditions(self) -> BatchConditions:
        """Have no sensors."""
        return BatchConditions()

    def close(self) -> None:
        """Do nothing."""


def rate(devices: int, tasks: tuple[Task, ...], target: Target, trials: int, measure_s: float) -> float:
    """Trials a minute with so many devices."""
    measured_s: list[float] = []

    def count(progress: Progress) -> None:
        if progress.trials_spent > len(measured_s):
            measured_s.append(time.monotonic())

    options = TuningOptions(seed=1, patience=10_000)
    measurers = {f"board{number}": StandIn(measure_s) for number in range(devices)}
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        logs = stack.enter_context(open_logs(Path(folder, "logs.sqlite")))
        server = stack.enter_context(ForkServer())
        builds = stack.enter_context(WorkerPool(server, 2))
        searching = stack.enter_context(WorkerPool(server, 1))
        run = Run(tasks, target, list(measurers), logs, Budget(trials=trials), options, count)
        run.measure_all(
            SearchProcess(searching, SearchSettings(target, design_spaces, 1, 2)),
            Builder(builds, target, options.build_timeout_s, options.reference_timeout_s),
            measurers,
            Gate(False),
            Interrupt(),
        )
    return 60 * (len(measured_s) - 1) / (measured_s[-1] - measured_s[0])


def main() -> None:
    """Print both rates."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--measure-s", type=float, default=1.5, help="seconds that a stand-in takes a candidate"
    )
    parser.add_argument("--trials", type=int, default=60)
    given = parser.parse_args()
    target = load_target("local")
    prepared = prepare(load_model(small_model()), None, None, ())
    tasks = tuple(lower(prepared, target).tasks)
    rates = [rate(devices, tasks, target, given.trials, given.measure_s) for devices in (1, 2)]
    print(f"one device {rates[0]:.1f} trials a minute, two {rates[1]:.1f}: {rates[1] / rates[0]:.2f} times")


if __name__ == "__main__":
    main()
