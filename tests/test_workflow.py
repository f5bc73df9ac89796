"""The stages together: tuned, resumed, compiled from logs, refused early; by the Python API."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import edgetune
from edgetune.records import Source
from edgetune.results import Latency
from edgetune.tuning.outcome import Progress

TRIALS = 10


class Recorder(edgetune.Watcher):
    """Keeps everything it is told."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.notes: list[str] = []
        self.latency: Latency | None = None
        self.snapshots: list[Progress] = []

    def say(self, text: str) -> None:
        self.stages.append(text)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def baseline(self, latency: Latency) -> None:
        self.latency = latency

    def tuning(self, progress: Progress) -> None:
        self.snapshots.append(progress)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs") / "logs.sqlite"


@pytest.fixture(scope="module")
def watched() -> Recorder:
    return Recorder()


@pytest.fixture(scope="module")
def tuned(conv_file: Path, logs: Path, watched: Recorder, tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("tuned") / "conv"
    return edgetune.tune(conv_file, trials=TRIALS, out=out, logs=logs, seed=1, watcher=watched)


def test_the_result_of_tune(tuned: edgetune.TuneResult, watched: Recorder) -> None:
    assert tuned.model == "conv"
    assert tuned.target == tuned.device == "local"
    assert (tuned.trials_spent, tuned.trials_reused) == (TRIALS, 0)
    assert sum(task.trials for task in tuned.tasks) == TRIALS
    assert tuned.verified is not None
    assert tuned.verified.passed
    assert not tuned.interrupted
    best = [task for task in tuned.tasks if task.best_us is not None]
    assert best
    assert all(task.source is Source.RECORD for task in best)
    assert sum(tuned.failures.values()) < TRIALS
    times = tuned.latency_ms
    assert all(
        value is not None and value > 0 for value in (times.edgetune, times.onnxruntime, times.untuned)
    )
    assert tuned.speedup_vs_onnxruntime == times.onnxruntime / times.edgetune
    assert watched.latency is not None
    assert watched.latency.untuned == times.untuned
    assert watched.snapshots[-1].trials_spent == TRIALS
    baseline, tuning = (
        next(index for index, stage in enumerate(watched.stages) if word in stage)
        for word in ("untuned", "tuning")
    )
    assert baseline < tuning


def test_the_json_has_the_documented_fields(tuned: edgetune.TuneResult) -> None:
    content = tuned.to_json()
    assert content.keys() >= {
        "model", "target", "device", "bundle", "trials_spent", "trials_reused", "tasks", "latency_ms",
        "speedup_vs_onnxruntime", "verified", "wall_s", "failures",
    }  # fmt: skip
    assert content["tasks"][0].keys() >= {"name", "weight", "trials", "best_us", "gflops", "source"}
    assert content["verified"].keys() >= {"passed", "max_abs_error", "max_rel_error"}
    assert content["latency_ms"].keys() == {"edgetune", "onnxruntime", "untuned"}


def test_the_bundle_computes_what_onnx_runtime_does(tuned: edgetune.TuneResult, conv_file: Path) -> None:
    rng = np.random.default_rng(3)
    inputs = {
        "x": rng.standard_normal((1, 3, 16, 16)).astype(np.float32),
        "scale": np.array([1.5], np.float32),
    }
    outputs = edgetune.load(tuned.bundle).run(inputs)
    session = onnxruntime.InferenceSession(str(conv_file), providers=["CPUExecutionProvider"])
    expected = session.run(["y", "pooled"], inputs)
    for name, value in zip(("y", "pooled"), expected, strict=True):
        np.testing.assert_allclose(outputs[name], value, rtol=1e-4, atol=1e-5)


def test_a_second_run_measures_nothing_again(
    tuned: edgetune.TuneResult, conv_file: Path, logs: Path, tmp_path: Path
) -> None:
    again = edgetune.tune(conv_file, trials=TRIALS, out=tmp_path / "conv", logs=logs, measure_latency=False)
    assert (again.trials_spent, again.trials_reused) == (0, TRIALS)
    assert [(task.name, task.best_us) for task in again.tasks] == [
        (task.name, task.best_us) for task in tuned.tasks
    ]
    assert again.latency_ms == Latency()


def test_compile_from_the_logs(
    tuned: edgetune.TuneResult, conv_file: Path, logs: Path, tmp_path: Path
) -> None:
    result = edgetune.compile(conv_file.read_bytes(), out=tmp_path / "conv", logs=logs)
    sources = {task.name: task.source for task in tuned.tasks}
    assert {kernel.name: kernel.source for kernel in result.kernels} == sources
    assert result.verified is not None
    assert result.verified.passed
    assert result.to_json()["kernels"][0].keys() >= {"name", "source"}
    assert edgetune.load(result.bundle).name == "conv"


def test_compile_without_any_record(conv_file: Path, tmp_path: Path) -> None:
    model = onnx.load(conv_file)
    result = edgetune.compile(model, out=tmp_path / "conv.tar", archive=True)
    assert {kernel.source for kernel in result.kernels} == {Source.DEFAULT}
    assert result.bundle.is_file()
    assert edgetune.compare(result.bundle, model).passed


def test_compile_for_another_machine(conv_file: Path, tmp_path: Path) -> None:
    target = "zen5" if edgetune_arch() == "aarch64" else "raspberry-pi-5"
    result = edgetune.compile(conv_file, target=target, out=tmp_path / "conv")
    assert result.verified is None
    assert any("not verified" in note for note in result.notes)
    with pytest.raises(edgetune.BundleError, match=target):
        edgetune.load(result.bundle)


def edgetune_arch() -> str:
    from edgetune.cpu import architecture

    return architecture()


def test_a_difference_is_found_before_any_trial(conv_file: Path, tmp_path: Path) -> None:
    watcher = Recorder()
    with pytest.raises(edgetune.MismatchError, match=r"'y'|'pooled'") as caught:
        edgetune.tune(
            conv_file,
            trials=5,
            out=tmp_path / "conv",
            logs=tmp_path / "logs",
            rtol=0,
            atol=0,
            watcher=watcher,
        )
    assert caught.value.exit_code == 3
    assert not (tmp_path / "conv").exists()
    assert watcher.snapshots == []


@pytest.mark.parametrize(
    "changes, error, text",
    [
        ({"target": "zen55"}, edgetune.TargetError, "zen5"),
        ({"target": "spacemit-k1"}, edgetune.DeviceError, "--device"),
        ({"device": "lokal"}, edgetune.DeviceError, "local"),
        ({"trials": -1}, edgetune.UsageError, "0 or more"),
        ({"time": "soon"}, edgetune.UsageError, "10m"),
        ({"threads": 0}, edgetune.TargetError, "1 or more"),
        ({"shapes": {"x": (1, 3, 8)}}, edgetune.UsageError, "x"),
        ({"shapes": {"z": (1,)}}, edgetune.UsageError, "z"),
        ({"freeze": {"z": 1}}, edgetune.UsageError, "z"),
        ({"logs": "mysql://host/db"}, edgetune.LogsError, "postgresql"),
        ({"model": b"not onnx"}, edgetune.ModelError, "ONNX"),
        ({"model": "nowhere.onnx"}, edgetune.ModelError, "nowhere.onnx"),
    ],
)
def test_refused_before_anything_is_spent(
    conv_file: Path, tmp_path: Path, changes: dict[str, Any], error: type[Exception], text: str
) -> None:
    watcher = Recorder()
    arguments = {"model": conv_file, "out": tmp_path / "conv", "logs": tmp_path / "logs", "watcher": watcher}
    with pytest.raises(error, match=text):
        edgetune.tune(**(arguments | changes))
    assert not any("untuned" in stage or "tuning" in stage for stage in watcher.stages)
    assert not (tmp_path / "conv").exists()


def test_nothing_else_is_overwritten(conv_file: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("three years of work")
    with pytest.raises(edgetune.OutputError, match="not a bundle"):
        edgetune.compile(conv_file, out=tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "three years of work"


def test_where_a_bundle_goes_by_default(
    conv_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = edgetune.compile(conv_file)
    assert result.bundle == tmp_path / "edgetune-out" / "conv-local"
    model = onnx.load(conv_file)
    model.graph.name = "../../odd name"
    assert edgetune.compile(model).bundle.parent == tmp_path / "edgetune-out"


def test_a_model_that_sorts_runs_without_the_compiler(tmp_path: Path) -> None:
    """Verifying runs the bundle in a process that has only TVM's runtime."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        sorts (float[2, 9] x) => (float[2, 3] y, int64[2, 3] i) <int64[1] k = {3}> { y, i = TopK(x, k) }"""
    )
    result = edgetune.compile(model, out=tmp_path / "sorts")
    assert result.verified is None or result.verified.passed
