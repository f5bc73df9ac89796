"""The search: defaults first, no duplicates, the end of small spaces, learning."""

import numpy as np
import pytest

from edgetune.metaschedule import apply_trace, trace_text
from edgetune.records import Failure, FailureKind, Stage, Timing
from edgetune.tuning.build import entry_module
from edgetune.tuning.cost_model import CostModel
from edgetune.tuning.search import EvolutionarySearch, SearchSettings
from edgetune.tuning.search_process import SearchError, SearchProcess
from tests.tuning.spaces import stock_spaces

FAILED = Failure(Stage.BUILD, FailureKind.ERROR, "no")


@pytest.fixture
def settings(target):
    return SearchSettings(target, stock_spaces, seed=3, threads=2)


def start(settings, task, known=()):
    return EvolutionarySearch(settings, CostModel(1, 2), task, known)


def module_of(task):
    import tvm

    return entry_module(tvm.ir.load_json(task.ir))


def test_the_first_candidate_is_the_first_space_s_own(settings, kernels, target):
    import tvm_ffi

    task = kernels.matmul()
    default = stock_spaces(task, target)[0]
    [first] = start(settings, task).propose(1)
    scheduled = apply_trace(first.trace, module_of(task))
    # Postprocessing adds instructions at the end; the decisions are the space's.
    begin = trace_text(default.trace)
    assert tvm_ffi.structural_equal(apply_trace(begin, module_of(task)).mod, default.mod)
    assert first.trace.startswith(begin.split("]],[[")[0])
    assert first.workload == task.workload
    assert scheduled is not None


def test_candidates_are_distinct_in_trace_and_code_and_apply(settings, kernels):
    import tvm_ffi

    task = kernels.conv()
    search = start(settings, task)
    seen = []
    for _ in range(3):
        batch = search.propose(8)
        assert len(batch) == 8
        search.learn([(c, Timing((1e-3 * (i + 1),)) if i % 3 else FAILED) for i, c in enumerate(batch)])
        seen += batch
    assert len({c.trace for c in seen}) == 24
    codes = {tvm_ffi.structural_hash(apply_trace(c.trace, module_of(task)).mod) for c in seen}
    assert len(codes) == 24


def test_what_was_measured_before_is_not_proposed_again(settings, kernels):
    task = kernels.matmul()
    before = start(settings, task).propose(16)
    known = [(c, Timing((1e-3,))) for c in before]
    after = start(settings, task, known).propose(16)
    assert len(after) == 16
    assert not {c.trace for c in before} & {c.trace for c in after}


def test_a_record_that_no_longer_fits_does_no_harm(settings, kernels):
    from edgetune.records import Candidate

    task = kernels.matmul()
    foreign = start(settings, kernels.conv()).propose(1)[0]
    known = [
        (Candidate(task.workload, foreign.trace), Timing((1e-9,))),
        (Candidate(task.workload, "{"), FAILED),
    ]
    assert start(settings, task, known).propose(4)


def test_a_small_space_ends(settings, kernels):
    search = start(settings, kernels.add((8,)))
    found = []
    while batch := search.propose(16):
        found += batch
        assert len(found) < 200
    assert len({c.trace for c in found}) == len(found) >= 1
    assert search.propose(16) == []


def split_in_two(task, target):
    """One space: every way to write 64 as a product of two."""
    import tvm
    from tvm.s_tir import Schedule

    schedule = Schedule(entry_module(tvm.ir.load_json(task.ir)))
    [block] = schedule.get_child_blocks(schedule.get_sblock("root"))
    [loop] = schedule.get_loops(block)
    schedule.split(loop, schedule.sample_perfect_tile(loop, 2, 64))
    return [schedule]


@pytest.mark.parametrize("count", [1, 3, 12])
def test_a_small_space_is_searched_to_its_end(target, kernels, count):
    """However few are asked for at a time, though MetaSchedule picks more, and no pick twice."""
    search = start(SearchSettings(target, split_in_two, seed=3, threads=2), kernels.add((64,)))
    found = []
    while batch := search.propose(count):
        assert len(batch) <= count
        search.learn([(c, Timing((1e-3,))) for c in batch])
        found += batch
    assert len({c.trace for c in found}) == len(found) == 7


def test_the_same_seed_gives_the_same_search(target, kernels):
    settings = SearchSettings(target, stock_spaces, seed=11, threads=1)

    def run():
        search = start(settings, kernels.matmul())
        first = search.propose(8)
        search.learn([(c, Timing((1e-3 + 1e-4 * len(c.trace),))) for c in first])
        return [c.trace for c in first + search.propose(8)]

    assert run() == run()


def test_the_cost_model_learns_what_is_fast():
    draw = np.random.default_rng(0)
    features = [draw.random(20).astype(np.float32) for _ in range(300)]
    times = [1e-3 * (1 + 4 * float(f[3])) for f in features]
    model = CostModel(1, 2)
    assert not model.is_trained
    assert len(model.guess(5)) == 5
    model.add("w", features[:200], times[:200])
    assert model.is_trained
    scores = model.predict(features[200:])
    assert np.corrcoef(scores, [1 / t for t in times[200:]])[0, 1] > 0.75


def test_failures_teach_the_cost_model_too():
    draw = np.random.default_rng(0)
    features = [draw.random(8).astype(np.float32) for _ in range(200)]
    times = [None if f[0] > 0.5 else 1e-3 for f in features]
    model = CostModel(1, 2)
    model.add("w", features, times)
    scores = model.predict(features)
    good = [s for s, t in zip(scores, times, strict=True) if t]
    bad = [s for s, t in zip(scores, times, strict=True) if not t]
    assert min(good) > np.median(bad)


def test_only_failures_are_no_reason_to_fail():
    model = CostModel(1, 1)
    model.add("w", [np.ones(4, np.float32)] * 50, [None] * 50)
    assert not model.is_trained


@pytest.fixture(scope="module")
def remote(server):
    from edgetune.tuning.workers import WorkerPool

    with WorkerPool(server, 1) as pool:
        yield pool


def test_a_search_in_its_process_goes_on_after_the_process_died(remote, settings, kernels):
    import os
    import signal

    search = SearchProcess(remote, settings)(kernels.matmul(), [])
    first = search.propose(4)
    search.learn([(c, Timing((1e-3,))) for c in first])
    for worker in list(remote._idle):
        os.kill(worker.pid, signal.SIGKILL)
    second = search.propose(4)
    assert len(second) == 4
    assert not {c.trace for c in first} & {c.trace for c in second}


def test_a_task_without_spaces_is_a_search_error(remote, target, kernels):
    settings = SearchSettings(target, stock_spaces, seed=1, threads=1)
    broken = kernels.matmul()
    import dataclasses

    broken = dataclasses.replace(broken, ir="{}", workload="00")
    with pytest.raises(SearchError, match="the search failed"):
        SearchProcess(remote, settings)(broken, []).propose(1)


def test_hints_come_right_after_the_default(settings, kernels):
    task = kernels.conv()
    elsewhere = start(settings, task).propose(12)[-1]
    search = EvolutionarySearch(settings, CostModel(1, 2), task, [], ["[", elsewhere.trace])
    first, second, *_ = search.propose(4)
    assert first.trace == start(settings, task).propose(1)[0].trace
    assert second.trace == elsewhere.trace
