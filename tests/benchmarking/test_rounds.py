"""Benchmarks: turns, statistics, both sides under the same conditions."""

from __future__ import annotations

import statistics
from pathlib import Path

import numpy as np
import pytest

from edgetune.benchmarking.differences import largest_error
from edgetune.benchmarking.fixed_work import FixedWork, drift
from edgetune.benchmarking.results import BenchmarkResult, SideResult
from edgetune.benchmarking.rounds import benchmark
from edgetune.errors import BundleError, DeviceError, UsageError
from edgetune.machine import usable_cpus

SLEEPER = """
import json, os, time
class Side:
    def __init__(self, spec): self.spec = spec
    def run(self):
        with open({log!r}, "a") as file: file.write("s")
        time.sleep(0.002); return {{}}
    def version(self): return "sleeper " + str(self.spec.threads)
open_side = Side
"""


def test_statistics_over_all_runs():
    rng = np.random.default_rng(0)
    rounds = [list(rng.exponential(1.0, 400)) for _ in range(3)]
    side = SideResult.of("x", rounds, 0.5, (10, 5))
    everything = sorted(time_ms for times in rounds for time_ms in times)
    assert side.median_ms == pytest.approx(statistics.median(everything))
    deciles = statistics.quantiles(everything, n=100, method="inclusive")
    assert side.p90_ms == pytest.approx(deciles[89])
    assert side.p99_ms == pytest.approx(deciles[98])
    assert side.min_ms == everything[0]
    assert side.round_medians_ms == tuple(statistics.median(times) for times in rounds)


def test_speedup_is_above_one_when_the_bundle_is_faster():
    fast = SideResult.of("a", [[1.0, 1.0], [2.0, 2.0]], 0, (0, 0))
    slow = SideResult.of("b", [[2.0, 2.0], [8.0, 8.0]], 0, (0, 0))
    result = BenchmarkResult(Path("b"), 2, fast, {"onnxruntime": slow}, 2, 4, 0.0)
    assert result.speedup == pytest.approx(5.0 / 1.5)
    assert result.round_speedups == (2.0, 4.0)


def test_drift():
    assert drift([2.0, 2.0]) == 0.0
    assert drift([2.0, 3.0, 2.5]) == pytest.approx(0.5)
    assert FixedWork(2).time_ms() > 0


def test_against_onnx_runtime(shared_bundle):
    done = []
    result = benchmark(shared_bundle, rounds=2, runs=30, progress=lambda *args: done.append(args))
    assert result.edgetune.version.startswith("edgetune")
    assert result.other.version.startswith("ONNX Runtime")
    assert result.runs == 60
    assert len(result.edgetune.round_medians_ms) == len(result.other.round_medians_ms) == 2
    assert done == [(1, 2), (2, 2)]
    for side in (result.edgetune, result.other):
        assert 1 << 20 < side.model_memory_bytes < side.peak_memory_bytes
    payload = result.to_json()
    assert payload["speedup"] == payload["onnxruntime"]["median_ms"] / payload["edgetune"]["median_ms"]


def test_a_side_of_ones_own(shared_bundle, tmp_path):
    (tmp_path / "sleeper.py").write_text(SLEEPER.format(log=str(tmp_path / "log")))
    result = benchmark(shared_bundle, str(tmp_path / "sleeper.py"), threads=1, rounds=2, runs=10)
    assert result.against == "sleeper"
    assert result.other.version == "sleeper 1"
    assert result.other.min_ms >= 2.0
    assert len((tmp_path / "log").read_text()) >= result.runs == 20
    assert result.to_json()["sleeper"]["median_ms"] >= 2.0


def test_alone(stand_in, tmp_path):
    path = stand_in.write(tmp_path / "b.tar", lean=True, archive=True).path
    result = benchmark(path, None, rounds=1, runs=5)
    assert result.other is None
    assert result.to_json()["speedup"] is None


def test_archive_against_onnx_runtime(stand_in, tmp_path):
    path = stand_in.write(tmp_path / "b.tar", archive=True).path
    assert benchmark(path, rounds=1, runs=5).speedup > 0


def test_the_number_of_runs_follows_the_slower_side(shared_bundle, tmp_path):
    (tmp_path / "sleeper.py").write_text(SLEEPER.format(log=str(tmp_path / "log")))
    result = benchmark(shared_bundle, str(tmp_path / "sleeper.py"), rounds=1)
    assert 50 <= result.runs <= 250  # half a second at a little over 2 ms


def test_both_sides_get_the_same_possible_number_of_threads(shared_bundle):
    result = benchmark(shared_bundle, threads=1000, rounds=1, runs=5)
    assert result.threads == len(usable_cpus())


def test_what_is_wrong_is_said(shared_bundle, stand_in, tmp_path):
    for name in ("threads", "rounds", "runs"):
        with pytest.raises(UsageError, match=f"{name}=0 is too few"):
            benchmark(shared_bundle, **{name: 0})
    with pytest.raises(DeviceError, match="'pi4'"):
        benchmark(shared_bundle, device="pi4")
    with pytest.raises(BundleError, match="does not exist"):
        benchmark(tmp_path / "nothing")
    lean = stand_in.write(tmp_path / "lean", lean=True).path
    with pytest.raises(UsageError, match="give the model with --model"):
        benchmark(lean)


def test_several_sides_and_one_that_cannot_take_part(shared_bundle, tmp_path):
    copy = "from edgetune.sides.onnxruntime_side import *\n"
    (tmp_path / "twice.py").write_text(
        copy + "def open_side(spec):\n    side = OnnxRuntimeSide(spec)\n    once = side.run\n"
        "    side.run = lambda: {name: 2 * value for name, value in once().items()}\n    return side\n"
    )
    (tmp_path / "converts.py").write_text(
        copy + "from edgetune.sides.converting import run_converter\n"
        "def convert(spec, folder):\n    return run_converter(['cp', spec.path, 'm.onnx'], 'cp', folder / 'm.onnx')\n"
        "def open_side(spec):\n    assert spec.path.endswith('m.onnx'); return OnnxRuntimeSide(spec)\n"
    )
    (tmp_path / "broken.py").write_text(
        copy + "from edgetune.sides.converting import run_converter\n"
        "def convert(spec, folder):\n    return run_converter(['ls', 'no-such-model'], 'Broken', folder / 'x')\n"
    )
    paths = [str(tmp_path / f"{name}.py") for name in ("twice", "converts", "broken")]
    result = benchmark(shared_bundle, ["onnxruntime", *paths], rounds=1, runs=5)
    assert list(result.others) == ["onnxruntime", "twice", "converts"]
    assert list(result.refused) == ["broken"]
    assert "Broken cannot convert the model" in result.refused["broken"]
    assert "no-such-model" in result.refused["broken"]
    assert result.others["twice"].error == pytest.approx(1.0)
    assert result.others["converts"].error == 0.0
    assert 0.0 <= result.edgetune.error < 1e-5
    assert result.to_json()["speedups"].keys() == result.others.keys()


def test_largest_error():
    expected = {"a": np.array([[1.0, -4.0], [np.nan, np.inf]]), "b": np.zeros(3)}
    assert largest_error(expected, {"a": np.array([1.0, -4.0, np.nan, np.inf]), "b": np.zeros(3)}) == 0.0
    assert largest_error(expected, {"a": np.array([1.0, -3.0, np.nan, np.inf]), "b": np.zeros(3)}) == 0.25
    assert largest_error(expected, {"a": expected["a"], "b": np.array([0, 0, 0.5])}) == 0.5
    for wrong in (np.array([1.0, np.nan, np.nan, np.inf]), np.ones(3)):
        assert largest_error(expected, {"a": wrong, "b": np.zeros(3)}) == np.inf
    assert largest_error(expected, {"a": expected["a"]}) == np.inf
