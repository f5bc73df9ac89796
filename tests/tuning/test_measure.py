"""Building and measuring candidates on the real local device."""

import dataclasses
import time

import numpy as np
import pytest

from edgetune.records import Artifact, Candidate, Failure, FailureKind, Stage, Timing
from edgetune.tuning.builder import Builder, PrepareError
from edgetune.tuning.measure import DeviceMeasurer
from edgetune.tuning.options import MeasureOptions
from edgetune.tuning.reference import reference_outputs
from edgetune.tuning.reference_kernel import build_reference_kernel
from tests.tuning.spaces import stock_spaces

OPTIONS = MeasureOptions(run_timeout_s=1.0)


@pytest.fixture(scope="module")
def builder(pool, target):
    return Builder(pool, target, timeout_s=60, reference_timeout_s=60)


@pytest.fixture(scope="module")
def measurer(pool, target, device):
    reference = pool.call(build_reference_kernel, target, timeout_s=60)
    measurer = DeviceMeasurer(device, target.kind, target.threads, reference, OPTIONS, lease_timeout_s=90)
    yield measurer
    measurer.close()


def built(builder, task, *traces):
    prepared, results = builder.build(task, [Candidate(task.workload, t) for t in traces], prepare=True)
    return prepared, results


def library_for(builder, task, of):
    """An artifact of ``task`` whose library is that of another task with the same signature."""
    _, [artifact] = builder.build(of, [Candidate(of.workload, "")], prepare=False)
    return dataclasses.replace(artifact, candidate=Candidate(task.workload, "[]"))


def test_the_reference_is_what_numpy_computes(pool, kernels):
    task = kernels.matmul(24)
    specs, expected = pool.call(reference_outputs, task.workload, task.ir, timeout_s=60)
    from edgetune.tuning.arguments import random_arguments

    a, b, bias, _ = random_arguments(specs, task.workload)
    np.testing.assert_allclose(expected[3], np.maximum(a @ b + bias, 0), rtol=1e-4, atol=1e-5)


def test_a_good_candidate_is_timed_quickly(builder, measurer, kernels):
    task = kernels.add((64, 64))
    prepared, [artifact] = built(builder, task, "")
    measurer.prepare(prepared)
    assert isinstance(artifact, Artifact)
    measurer.measure(artifact, None)
    started = time.monotonic()
    timing = measurer.measure(artifact, 1.0)
    assert isinstance(timing, Timing)
    assert not timing.slow
    assert 1e-8 < timing.median_s < 0.1
    assert len(timing.times_s) >= OPTIONS.repeats
    assert time.monotonic() - started < 1.0


def test_every_design_space_gives_right_values(builder, measurer, kernels, target):
    from edgetune.metaschedule import trace_text

    task = kernels.conv()
    traces = [trace_text(space.trace) for space in stock_spaces(task, target)]
    prepared, artifacts = built(builder, task, *traces)
    measurer.prepare(prepared)
    assert len(traces) >= 2
    for artifact in artifacts:
        assert isinstance(measurer.measure(artifact, None), Timing)


def test_a_slow_candidate_is_not_timed_in_full(builder, measurer, kernels):
    task = kernels.matmul(128)
    prepared, [artifact] = built(builder, task, "")
    measurer.prepare(prepared)
    timing = measurer.measure(artifact, 1e-6)
    assert isinstance(timing, Timing)
    assert timing.slow
    assert len(timing.times_s) <= 3


def test_wrong_values_are_a_failure_even_after_right_ones(builder, measurer, kernels):
    task = kernels.add(amount=1.0)
    prepared, [right] = built(builder, task, "")
    measurer.prepare(prepared)
    assert isinstance(measurer.measure(right, None), Timing)
    failure = measurer.measure(library_for(builder, task, kernels.add(amount=2.0)), None)
    assert isinstance(failure, Failure)
    assert (failure.stage, failure.kind) == (Stage.CHECK, FailureKind.WRONG_RESULT)
    assert "1024 of 1024 values are wrong" in failure.message
    # One that writes nothing must not pass on what the one before wrote.
    lazy = measurer.measure(library_for(builder, task, kernels.libc("getpid")), None)
    assert isinstance(lazy, Failure)
    assert lazy.kind is FailureKind.WRONG_RESULT


@pytest.mark.parametrize(
    ("call", "kind"),
    [(("abort",), FailureKind.CRASH), (("raise", 11), FailureKind.CRASH), (("pause",), FailureKind.TIMEOUT)],
    ids=["abort", "segv", "hang"],
)
def test_a_candidate_that_takes_the_session_along_costs_only_itself(builder, measurer, kernels, call, kind):
    task = kernels.add()
    prepared, [right] = built(builder, task, "")
    measurer.prepare(prepared)
    failure = measurer.measure(library_for(builder, task, kernels.libc(*call)), None)
    assert isinstance(failure, Failure)
    assert (failure.stage, failure.kind) == (Stage.RUN, kind)
    assert isinstance(measurer.measure(right, None), Timing), "the session is reopened"


def test_a_library_that_does_not_load_is_a_failure(builder, measurer, kernels):
    task = kernels.add()
    prepared, _ = built(builder, task)
    measurer.prepare(prepared)
    failure = measurer.measure(Artifact(Candidate(task.workload, "[]"), b"not a library"), None)
    assert isinstance(failure, Failure)
    assert (failure.stage, failure.kind) == (Stage.LOAD, FailureKind.ERROR)


def test_failed_builds_are_failures(builder, pool, target, kernels):
    task = kernels.add()
    _, [bad, good] = built(builder, task, '[[["NoSuchInstruction",[],[],[]]],[]]', "")
    assert isinstance(bad, Failure)
    assert (bad.stage, bad.kind) == (Stage.BUILD, FailureKind.ERROR)
    assert "NoSuchInstruction" in bad.message
    assert isinstance(good, Artifact)
    impatient = Builder(pool, target, timeout_s=0.0, reference_timeout_s=60)
    _, [late] = impatient.build(kernels.matmul(96), [Candidate("x", "")], prepare=False)
    assert isinstance(late, Failure)
    assert late.kind is FailureKind.TIMEOUT


def test_a_kernel_without_a_reference_is_refused(builder, kernels):
    with pytest.raises(PrepareError, match="nothing can be checked"):
        builder.build(kernels.libc("abort"), [], prepare=True)


def test_the_reference_kernel_is_steady_enough_to_be_useful(measurer):
    reference_times_s = [measurer.time_reference_kernel() for _ in range(5)]
    assert all(1e-6 < seconds < 0.1 for seconds in reference_times_s)
