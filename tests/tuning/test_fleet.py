"""Several devices in one run: who measures what, and what becomes of those that fail."""

import hashlib
import threading
import time

import pytest

from edgetune.devices.replay import ReplayDevice
from edgetune.errors import DeviceError
from edgetune.logs import open_logs
from edgetune.records import Failure, FailureKind, Record, Task, Timing
from edgetune.targets import load_target
from edgetune.tuning.gate import Gate
from edgetune.tuning.interrupt import Interrupt
from edgetune.tuning.measure import DeviceLostError
from edgetune.tuning.options import Budget, TuningOptions
from edgetune.tuning.replay import RecordedSearch, ReplayBuilder, ReplayMeasurer
from edgetune.tuning.run import Run

OPTIONS = TuningOptions(batch=4, first_batch=4, patience=1000, retry_s=0.01, device_timeout_s=0.3)
TASK = Task("one", hashlib.sha256(b"one").hexdigest()[:16], "", 1, 1e6)
RECORDS = [Record(TASK.workload, "t", "d", f"[{i}]", Timing((1e-3 / (i + 1),))) for i in range(200)]


class Station(ReplayMeasurer):
    """Replays, takes its time, and fails when it is told to."""

    def __init__(self, seconds: float = 0.002) -> None:
        super().__init__(ReplayDevice(RECORDS), OPTIONS.measure)
        self.seconds = seconds
        self.measured: list[str] = []
        self.answers = True
        self.room = True
        self.poison = ""
        self.reference_runs = 0
        self.closed = threading.Event()

    def measure(self, artifact, best_s):
        if not self.answers:
            raise DeviceError("it does not answer.")
        if not self.room:
            raise DeviceError("its disk is full.")
        if artifact.candidate.trace == self.poison:
            raise DeviceLostError("it was lost.")
        time.sleep(self.seconds)
        self.measured.append(artifact.candidate.trace)
        return super().measure(artifact, best_s)

    def settle(self):
        super().settle()
        return self.time_reference_kernel()

    def time_reference_kernel(self):
        self.reference_runs += 1
        if not self.answers:
            raise DeviceError("it does not answer.")
        return 1e-4

    def close(self):
        self.closed.set()


@pytest.fixture
def logs(tmp_path):
    with open_logs(tmp_path / "logs.sqlite") as opened:
        yield opened


@pytest.fixture
def tune(logs):
    """Tunes on stations by name; returns the outcome, the records by trace, and what was said."""

    def run(stations, trials, progress=lambda _: None):
        news = []
        options = OPTIONS
        run = Run(
            [TASK],
            load_target("local"),
            list(stations),
            logs,
            Budget(trials=trials),
            options,
            progress,
            news=news.append,
        )
        searched = ReplayDevice(RECORDS)
        run.measure_all(
            lambda task, known: RecordedSearch(searched, task, known),
            ReplayBuilder(),
            stations,
            Gate(False),
            Interrupt(),
        )
        assert all(station.closed.wait(5) for station in stations.values())
        records = list(logs.every())
        assert len(records) == len({r.trace for r in records}), "a candidate was measured twice"
        return run.outcome(), {r.trace: r for r in records}, news

    return run


def test_work_is_spread_and_records_say_where(tune):
    stations = {"a": Station(), "b": Station()}
    outcome, records, news = tune(stations, 80)
    assert outcome.trials_spent == len(records) == 80
    for name, station in stations.items():
        assert len(station.measured) >= 16
        assert {r.trace for r in records.values() if r.device == name} == set(station.measured)
    assert {d.name: d.trials for d in outcome.devices} == {n: len(s.measured) for n, s in stations.items()}
    assert {state["device"] for state in outcome.drift.to_json()["states"]} == {"a", "b"}
    assert news == []
    assert outcome.lost == ""
    again, _, _ = tune(stations, 80)
    assert (again.trials_spent, again.trials_reused) == (0, 80)


def test_a_failing_device_is_quarantined_and_its_work_done_by_the_other(tune):
    stations = {"a": Station(), "b": Station()}

    def fail(progress):
        if progress.trials_spent == 10:
            stations["b"].answers = False

    outcome, records, news = tune(stations, 60, fail)
    assert outcome.trials_spent == len(records) == 60
    assert outcome.failures == {}
    assert outcome.lost == ""
    [_, quarantine] = news
    assert "'b' failed 3 times in a row" in quarantine
    assert [d.problem for d in outcome.devices] == ["", "it does not answer."]


def test_a_device_that_comes_back_is_used_again(tune):
    stations = {"a": Station(0.01), "b": Station(0.01)}

    def fail_and_mend(progress):
        b = stations["b"]
        if progress.trials_spent == 10:
            b.answers = False
            b.before = b.reference_runs
        if not b.answers and b.reference_runs > b.before + 2:
            b.answers = True
            b.before = len(b.measured)

    outcome, records, news = tune(stations, 100, fail_and_mend)
    assert len(records) == 100
    assert "works again" in news[-1]
    assert len(stations["b"].measured) > stations["b"].before
    assert [d.problem for d in outcome.devices] == ["", ""]


def test_a_device_that_answers_but_cannot_work_is_quarantined_too(tune):
    stations = {"a": Station(), "b": Station()}
    stations["b"].room = False
    outcome, records, news = tune(stations, 40)
    assert {r.device for r in records.values()} == {"a"}
    assert outcome.trials_spent == 40
    assert any("its disk is full" in line and "left out" in line for line in news)


def test_a_candidate_that_takes_devices_along_is_tried_twice(tune):
    stations = {"a": Station(), "b": Station()}
    for station in stations.values():
        station.poison = "[5]"
    outcome, records, _ = tune(stations, 40)
    assert len(records) == 40
    assert outcome.failures == {"crash": 1}
    poison = records["[5]"].outcome
    assert isinstance(poison, Failure)
    assert poison.kind is FailureKind.CRASH


@pytest.mark.parametrize("count", [1, 2])
def test_the_last_device_s_loss_ends_the_run_with_what_is_known(tune, count):
    stations = {name: Station() for name in "ab"[:count]}

    def fail(progress):
        if progress.trials_spent == 10:
            for station in stations.values():
                station.answers = False

    started = time.monotonic()
    outcome, records, _ = tune(stations, 100, fail)
    assert time.monotonic() - started > OPTIONS.device_timeout_s, "it had time to come back"
    assert 10 <= outcome.trials_spent == len(records) < 12
    assert outcome.tasks[0].best_s == min(r.outcome.median_s for r in records.values())
    assert outcome.lost == " ".join(["it does not answer."] * count)


def test_a_device_that_never_worked_is_an_error_at_once(tune):
    station = Station()
    station.answers = False
    with pytest.raises(DeviceError, match="does not answer"):
        tune({"a": station}, 10)
    assert station.reference_runs == 3
