"""Allocation, budget, resume and drift, judged on recorded timings."""

import hashlib
import random

import pytest

from edgetune.devices.replay import ReplayDevice
from edgetune.devices.sensors import State
from edgetune.errors import DeviceError
from edgetune.logs import open_logs
from edgetune.records import Failure, FailureKind, Record, Stage, Task, Timing
from edgetune.targets import load_target
from edgetune.tuning.options import Budget, TuningOptions
from edgetune.tuning.outcome import TaskStatus
from edgetune.tuning.replay import replay_run

OPTIONS = TuningOptions(batch=8, first_batch=4, patience=32)


@pytest.fixture(scope="module")
def target():
    return load_target("local")


@pytest.fixture
def logs():
    with open_logs("sqlite://") as opened:
        yield opened


def task(name, weight=1, flops=1e6, kind="generic"):
    return Task(name, hashlib.sha256(name.encode()).hexdigest()[:16], "", weight, flops, kind)


def recording(of, times):
    """Records of a task: seconds, or None for a failure."""
    failure = Failure(Stage.BUILD, FailureKind.ERROR, "no")
    return [
        Record(of.workload, "t", "d", f'["{of.name}",{i}]', Timing((t,)) if t else failure)
        for i, t in enumerate(times)
    ]


def falling(start, factor, count):
    """A task that gets better with every candidate by a factor."""
    return [start * factor**i for i in range(count)]


def replay(tasks, records, logs, target, options=OPTIONS, reference_times_s=(1e-4,), **budget):
    device = ReplayDevice(records, reference_times_s=reference_times_s)
    return replay_run(tasks, target, device, logs, Budget(**budget), options), device


def trials(outcome):
    return {t.task.name: t.trials for t in outcome.tasks}


def test_every_task_gets_a_first_batch_the_heaviest_first(logs, target):
    tasks = [task("light", 1, 1e3), task("heavy", 1, 1e9), task("middle", 2, 1e6)]
    records = [r for t in tasks for r in recording(t, [1e-3] * 50)]
    outcome, device = replay(tasks, records, logs, target, trials=24)
    order = list(dict.fromkeys(c.workload for c in device.measured))
    assert order == [tasks[1].workload, tasks[2].workload, tasks[0].workload]
    assert all(count >= 4 for count in trials(outcome).values())
    assert outcome.trials_spent == 24
    assert outcome.budget_ended


def test_a_budget_below_the_number_of_tasks_goes_to_the_heaviest(logs, target):
    tasks = [task(f"t{i}", 1, 10.0**i) for i in range(8)]
    records = [r for t in tasks for r in recording(t, [1e-3] * 20)]
    outcome, _ = replay(tasks, records, logs, target, trials=3)
    assert trials(outcome) == {f"t{i}": int(i >= 5) for i in range(8)}


def test_the_rest_goes_where_the_model_gains_most(logs, target):
    improving, flat, tiny = task("improving"), task("flat"), task("tiny", flops=1e2)
    records = recording(improving, falling(1e-3, 0.97, 200)) + recording(flat, [1e-3] * 200)
    records += recording(tiny, falling(1e-7, 0.97, 200))
    outcome, _ = replay([improving, flat, tiny], records, logs, target, trials=120)
    got = trials(outcome)
    assert got["improving"] > 2 * got["flat"]
    assert got["improving"] > 4 * got["tiny"]


def test_weight_counts_like_time(logs, target):
    often, seldom = task("often", weight=20), task("seldom", weight=1)
    records = recording(often, falling(1e-4, 0.99, 200)) + recording(seldom, falling(1e-4, 0.99, 200))
    outcome, _ = replay([often, seldom], records, logs, target, trials=100)
    assert trials(outcome)["often"] > 4 * trials(outcome)["seldom"]


def test_a_task_that_stops_improving_stops_and_the_run_ends_early(logs, target):
    one, two = task("one"), task("two")
    records = recording(one, [1e-3] * 500) + recording(two, falling(1e-3, 0.9, 10) + [4e-4] * 400)
    outcome, _ = replay([one, two], records, logs, target, trials=10_000)
    assert [t.status for t in outcome.tasks] == [TaskStatus.STOPPED] * 2
    assert outcome.trials_spent < 120
    assert not outcome.budget_ended
    assert outcome.tasks[1].best_s == pytest.approx(1e-3 * 0.9**9)


def test_steps_below_one_percent_are_no_improvement(logs, target):
    one = task("one")
    outcome, _ = replay([one], recording(one, falling(1e-3, 0.99999, 500)), logs, target, trials=500)
    assert outcome.tasks[0].status is TaskStatus.STOPPED
    assert outcome.trials_spent <= 60  # it stops at 33, with up to three batches under way


def test_a_task_without_a_working_candidate_is_set_aside_with_its_reason(logs, target):
    good, bad = task("good"), task("bad")
    records = recording(good, [1e-3] * 20) + recording(bad, [None] * 100)
    outcome, _ = replay([good, bad], records, logs, target, trials=60)
    [aside] = outcome.set_aside
    assert aside.task is bad
    assert "12 candidates failed" in aside.reason
    assert "no" in aside.reason
    assert outcome.failures == {"error": aside.trials}
    assert outcome.tasks[0].status is TaskStatus.EXHAUSTED
    assert outcome.tasks[0].trials == 20
    assert outcome.latency_s == pytest.approx(1e-3)


def test_some_failures_are_only_counted(logs, target):
    one = task("one")
    outcome, _ = replay([one], recording(one, [None] * 8 + [1e-3] * 8), logs, target, trials=16)
    assert outcome.tasks[0].best_s == 1e-3
    assert outcome.tasks[0].failures == 8
    assert outcome.tasks[0].trials == 16


def test_a_second_identical_run_spends_nothing(logs, target):
    tasks = [task("a"), task("b", 3)]
    records = [r for t in tasks for r in recording(t, falling(1e-3, 0.98, 100))]
    first, _ = replay(tasks, records, logs, target, trials=50)
    second, device = replay(tasks, records, logs, target, trials=50)
    assert (first.trials_spent, first.trials_reused) == (50, 0)
    assert (second.trials_spent, second.trials_reused) == (0, 50)
    assert device.measured == []
    assert [t.best_s for t in first.tasks] == [t.best_s for t in second.tasks]
    third, device = replay(tasks, records, logs, target, trials=60)
    assert (third.trials_spent, third.trials_reused) == (10, 50)
    stored = logs.records([t.workload for t in tasks], target, "replay")
    assert len(stored) == 60 == len({(r.workload, r.trace) for r in stored})


def test_stopped_and_set_aside_tasks_stay_so_in_the_next_run(logs, target):
    one, bad = task("one"), task("bad")
    records = recording(one, [1e-3] * 500) + recording(bad, [None] * 100)
    replay([one, bad], records, logs, target, trials=1000)
    again, device = replay([one, bad], records, logs, target, trials=1000)
    assert again.trials_spent == 0
    assert device.measured == []
    assert [t.status for t in again.tasks] == [TaskStatus.STOPPED, TaskStatus.SET_ASIDE]


def test_another_device_s_records_are_not_this_one_s(logs, target):
    one = task("one")
    records = recording(one, [1e-3] * 8)
    replay_run([one], target, ReplayDevice(records, name="other"), logs, Budget(trials=4), OPTIONS)
    outcome, _ = replay([one], records, logs, target, trials=4)
    assert (outcome.trials_spent, outcome.trials_reused) == (4, 0)


def test_no_time_no_trials(logs, target):
    one = task("one")
    outcome, device = replay([one], recording(one, [1e-3] * 8), logs, target, time_s=0.0)
    assert outcome.trials_spent == 0
    assert device.measured == []
    assert outcome.budget_ended


def test_drift_is_reported_and_the_batch_measured_again_once(logs, target):
    one = task("one")
    reference_times_s = [1e-4, 1.5e-4, 1.5e-4, 1.5e-4, 1e-4, 1e-4]
    outcome, device = replay(
        [one], recording(one, [1e-3] * 8), logs, target, reference_times_s=reference_times_s, trials=8
    )
    assert outcome.drift.batches == 2
    assert outcome.drift.remeasured == 1
    assert outcome.drift.unsteady == 0
    assert outcome.drift.spread == pytest.approx(0.5)
    assert len(device.measured) == 12, "the first batch of four was measured twice"
    assert outcome.trials_spent == 8


COOL = State(mhz={0: 2400.0}, limit_mhz={0: 2400.0}, temperatures_c={"cpu-thermal": 60.0})
HOT = State(
    mhz={0: 1500.0}, limit_mhz={0: 1500.0}, temperatures_c={"cpu-thermal": 85.0}, throttled=("it is hot",)
)


def test_a_hot_device_cools_down_before_it_measures_again(logs, target):
    """The sensors say why the reference kernel is slower: waiting helps, and the second times count."""
    one = task("one")
    # Before the batch, after it, twice while it cools, cool again, and after the second measurement.
    device = ReplayDevice(
        recording(one, [1e-3] * 4),
        reference_times_s=[1e-4, 1.6e-4, 1.6e-4, 1.4e-4, 1e-4, 1e-4],
        states=[COOL, HOT, HOT, HOT, COOL, COOL],
    )
    outcome = replay_run([one], target, device, logs, Budget(trials=4), OPTIONS)
    drift = outcome.drift
    assert (drift.remeasured, drift.unsteady, drift.uncontrolled) == (1, 0, 0)
    assert drift.cooled_s == 1.0 + 2.0
    assert drift.conditions[0].to_json()["after"]["hottest_c"] == 60.0
    assert any("cool down" in note for note in outcome.notes)


def test_what_stays_hot_is_marked_and_waiting_is_bounded(logs, target):
    one = task("one")
    device = ReplayDevice(
        recording(one, [1e-3] * 16), reference_times_s=[1e-4, *[1.6e-4] * 500], states=[COOL, *[HOT] * 500]
    )
    outcome = replay_run([one], target, device, logs, Budget(trials=16), OPTIONS)
    assert outcome.drift.uncontrolled == outcome.drift.batches > 1
    assert 20 < outcome.drift.cooled_s <= OPTIONS.measure.cool_down_s
    assert outcome.drift.slowed == ("it is hot",)
    assert not outcome.drift.to_json()["controlled"]
    assert outcome.trials_spent == 16


def test_without_signs_of_heat_nothing_is_waited_for(logs, target):
    one = task("one")
    device = ReplayDevice(recording(one, [1e-3] * 8), reference_times_s=[1e-4, *[2e-4] * 100], states=[COOL])
    outcome = replay_run([one], target, device, logs, Budget(trials=8), OPTIONS)
    assert outcome.drift.cooled_s == 0
    assert outcome.drift.uncontrolled == outcome.drift.batches


def test_a_device_that_never_steadies_does_not_loop(logs, target):
    one = task("one")
    reference_times_s = [1e-4, 2e-4] * 100
    outcome, device = replay(
        [one], recording(one, [1e-3] * 16), logs, target, reference_times_s=reference_times_s, trials=16
    )
    assert outcome.trials_spent == 16
    assert len(device.measured) == 32
    assert outcome.drift.unsteady == outcome.drift.remeasured == outcome.drift.batches


def test_an_unknown_candidate_is_the_device_s_error(logs, target):
    one = task("one")
    device = ReplayDevice([])
    device._traces[one.workload] = ["[]"]
    with pytest.raises(DeviceError, match="no recording"):
        replay_run([one], target, device, logs, Budget(trials=1), OPTIONS)


def test_progress_tells_the_state(logs, target):
    one = task("one", weight=3, flops=2e6)
    seen = []
    replay_run(
        [one],
        target,
        ReplayDevice(recording(one, [2e-3, 1e-3, None, 1e-3])),
        logs,
        Budget(trials=4),
        OPTIONS,
        progress=seen.append,
    )
    last = seen[-1]
    assert last.trials_spent == 4
    assert last.trials_left == 0
    assert last.failures == {"error": 1}
    assert last.latency_s == pytest.approx(3e-3)
    assert last.tasks[0].gflops == pytest.approx(2.0)
    assert [p.trials_spent for p in seen] == sorted(p.trials_spent for p in seen)


def test_the_policy_beats_equal_shares(logs, target):
    """On tasks with very different prospects the model gets faster than with a round robin."""
    draw = random.Random(1)
    bests = [10 ** draw.uniform(-5, -3) for _ in range(10)]
    # All can reach the same speed.
    tasks = [task(f"t{i}", draw.randint(1, 8), best * 1e11) for i, best in enumerate(bests)]
    records = []
    for t, best in zip(tasks, bests, strict=True):
        spread = draw.choice([1.1, 8.0])
        records += recording(t, [best * draw.uniform(1, spread) for _ in range(200)])
    outcome, _device = replay(tasks, records, logs, target, trials=300)
    table = {t.workload: [r.outcome.median_s for r in records if r.workload == t.workload] for t in tasks}
    equal = sum(t.weight * min(table[t.workload][:30]) for t in tasks)
    assert outcome.latency_s <= equal


def test_second_measurements_take_the_place_of_the_first(logs, target):
    """A candidate that looked fast while the device sped up does not stay the best."""

    class Lucky(ReplayDevice):
        def outcome(self, candidate):
            outcome = super().outcome(candidate)
            first_time = sum(c == candidate for c in self.measured) == 1
            return Timing((1e-5,)) if candidate.trace.endswith("2]") and first_time else outcome

    one = task("one")
    device = Lucky(recording(one, [3e-3, 2e-3, 4e-3, 5e-3]), reference_times_s=[1e-4, 2e-4, 1e-4])
    outcome = replay_run([one], target, device, logs, Budget(trials=8), OPTIONS)
    assert outcome.tasks[0].best_s == 2e-3
    assert outcome.tasks[0].trials == outcome.trials_spent == 4
    assert logs.best(one.workload, target).outcome.median_s == 2e-3


def test_a_result_that_is_wrong_the_second_time_is_wrong(logs, target):
    class Flaky(ReplayDevice):
        def outcome(self, candidate):
            outcome = super().outcome(candidate)
            if sum(c == candidate for c in self.measured) == 2 and candidate.trace.endswith("0]"):
                return Failure(Stage.CHECK, FailureKind.WRONG_RESULT, "a race")
            return outcome

    one = task("one")
    device = Flaky(recording(one, [1e-3, 2e-3]), reference_times_s=[1e-4, 2e-4, 1e-4])
    outcome = replay_run([one], target, device, logs, Budget(trials=4), OPTIONS)
    assert outcome.tasks[0].best_s == 2e-3
    assert outcome.failures == {"wrong_result": 1}
    assert logs.best(one.workload, target).outcome.median_s == 2e-3


def test_tasks_that_compute_nothing_do_not_take_the_budget(logs, target):
    busy, moving = task("busy"), task("moving", flops=0.0)
    records = recording(busy, falling(1e-3, 0.97, 200)) + recording(moving, [1e-3] * 200)
    outcome, _ = replay([busy, moving], records, logs, target, trials=100)
    assert trials(outcome)["moving"] <= 20
