"""Whole tuning runs on the real local device."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edgetune.errors import DeviceError
from edgetune.logs import open_logs
from edgetune.records import Artifact, Candidate, FailureKind, Timing
from edgetune.tuning.builder import Builder
from edgetune.tuning.gate import Gate
from edgetune.tuning.interrupt import Interrupt
from edgetune.tuning.loop import tune_tasks
from edgetune.tuning.measure import DeviceMeasurer
from edgetune.tuning.options import Budget, MeasureOptions, TuningOptions
from edgetune.tuning.outcome import TaskStatus
from edgetune.tuning.reference_kernel import build_reference_kernel
from edgetune.tuning.run import Run
from edgetune.tuning.search import SearchSettings
from edgetune.tuning.search_process import SearchProcess
from edgetune.tuning.workers import WorkerPool
from tests.tuning.spaces import stock_spaces

OPTIONS = TuningOptions(
    seed=5, batch=8, first_batch=4, patience=24, measure=MeasureOptions(run_timeout_s=1.0)
)
JOB = Path(__file__).with_name("job.py")


@pytest.fixture
def logs(tmp_path):
    with open_logs(tmp_path / "logs.sqlite") as opened:
        yield opened


def test_a_run_tunes_every_task_and_the_next_one_reuses_it(device, target, logs, kernels):
    tasks = [kernels.matmul(), kernels.conv()]
    seen = []
    outcome = tune_tasks(
        tasks,
        target,
        [device],
        logs,
        spaces=stock_spaces,
        budget=Budget(trials=24),
        options=OPTIONS,
        progress=seen.append,
    )
    assert outcome.trials_spent == 24
    assert outcome.trials_reused == 0
    assert not outcome.interrupted
    assert outcome.latency_s == pytest.approx(sum(t.task.weight * t.best_s for t in outcome.tasks))
    assert outcome.drift.batches >= 3
    assert seen[-1].trials_spent == 24
    assert seen[-1].trials_per_minute > 0
    stored = logs.records([t.workload for t in tasks], target, "local")
    assert len(stored) == 24 == len({(r.workload, r.trace) for r in stored})
    for task in outcome.tasks:
        first = next(r for r in stored if r.workload == task.task.workload)
        assert task.best is not None
        assert task.best_s <= first.outcome.median_s
        assert logs.best(task.task.workload, target).trace == task.best.trace
    started = time.monotonic()
    again = tune_tasks(
        tasks, target, [device], logs, spaces=stock_spaces, budget=Budget(trials=24), options=OPTIONS
    )
    assert (again.trials_spent, again.trials_reused) == (0, 24)
    assert time.monotonic() - started < 1, "nothing needs to be started"
    assert [t.best_s for t in again.tasks] == [t.best_s for t in outcome.tasks]


class Sabotage:
    """The real builder, with the libraries of some candidates exchanged for bad ones."""

    def __init__(self, builder, libraries):
        self.builder, self.libraries = builder, list(libraries)

    def build(self, task, candidates, *, prepare):
        prepared, built = self.builder.build(task, candidates, prepare=prepare)
        for index, item in enumerate(built):
            if isinstance(item, Artifact) and self.libraries and index % 2:
                built[index] = dataclasses.replace(item, library=self.libraries.pop())
        return prepared, built


def test_candidates_that_crash_hang_and_lie_are_recorded_failures(
    device, server, pool, target, logs, kernels
):
    builder = Builder(pool, target, 60, 60)
    shapes = ((64, 64), (64, 64), (64,))

    def library(of):
        _, [artifact] = builder.build(of, [Candidate(of.workload, "")], prepare=False)
        return artifact.library

    bad = [library(kernels.libc(name, shapes=shapes)) for name in ("abort", "pause", "getpid")]
    options = dataclasses.replace(OPTIONS, first_batch=8)
    run = Run([kernels.matmul(64)], target, [device.name], logs, Budget(trials=20), options)
    reference = pool.call(build_reference_kernel, target, timeout_s=60)
    measurer = DeviceMeasurer(device, "llvm", 2, reference, options.measure, 60)
    with WorkerPool(server, 1) as searching:
        searches = SearchProcess(searching, SearchSettings(target, stock_spaces, 1, 2))
        run.measure_all(searches, Sabotage(builder, bad), {device.name: measurer}, Gate(True), Interrupt())
    measurer.close()
    outcome = run.outcome()
    assert outcome.trials_spent == 20
    assert outcome.failures == {"crash": 1, "timeout": 1, "wrong_result": 1}
    stored = logs.records([t.task.workload for t in outcome.tasks], target, "local")
    kinds = [r.outcome.kind for r in stored if not isinstance(r.outcome, Timing)]
    assert sorted(kinds) == [FailureKind.CRASH, FailureKind.TIMEOUT, FailureKind.WRONG_RESULT]
    assert all(t.best_s for t in outcome.tasks)


def test_a_task_that_cannot_be_searched_is_set_aside_and_the_others_go_on(device, target, logs, kernels):
    broken = dataclasses.replace(kernels.conv(), ir="{}", workload="0" * 16, name="broken")
    unsafe = kernels.libc("abort")
    outcome = tune_tasks(
        [broken, unsafe, kernels.matmul()],
        target,
        [device],
        logs,
        spaces=stock_spaces,
        budget=Budget(trials=6),
        options=OPTIONS,
    )
    reasons = {t.task.name: t.reason for t in outcome.set_aside}
    assert "the search failed" in reasons["broken"]
    assert "nothing can be checked" in reasons["abort"]
    [good] = [t for t in outcome.tasks if t.status is not TaskStatus.SET_ASIDE]
    assert good.best_s
    assert outcome.trials_spent == good.trials > 0


def test_a_time_budget_ends_the_run(device, target, logs, kernels):
    started = time.monotonic()
    outcome = tune_tasks(
        [kernels.conv()],
        target,
        [device],
        logs,
        spaces=stock_spaces,
        budget=Budget(time_s=6.0),
        options=OPTIONS,
    )
    assert time.monotonic() - started < 12
    assert outcome.budget_ended or outcome.tasks[0].status is TaskStatus.STOPPED


def test_a_wrong_thread_count_is_said(device, target, logs, kernels):
    with pytest.raises(DeviceError, match="--threads 7"):
        tune_tasks(
            [kernels.matmul()],
            target.with_threads(7),
            [device],
            logs,
            spaces=stock_spaces,
            budget=Budget(trials=2),
            options=OPTIONS,
        )


def start_job(path: Path, trials: int) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, str(JOB), str(path), str(trials)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )


def test_ctrl_c_ends_the_run_with_the_best_so_far(tmp_path, target):
    job = start_job(tmp_path / "logs.sqlite", 500)
    with job.stdout:
        for line in job.stdout:
            if json.loads(line).get("spent", 0) >= 3:
                break
        job.send_signal(signal.SIGINT)
        last = [json.loads(line) for line in job.stdout][-1]
    assert job.wait(20) == 0
    assert last["interrupted"]
    assert 3 <= last["spent"] < 500
    assert last["best_s"] > 0
    with open_logs(tmp_path / "logs.sqlite") as logs:
        assert len(list(logs.every())) == last["spent"]
