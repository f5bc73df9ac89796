"""Writing bundles: complete, in one step, and never over something else."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from edgetune import atomic
from edgetune.bundle.assemble import records_digest
from edgetune.bundle.manifest import ALIGNMENT_BYTES
from edgetune.bundle.reader import open_bundle
from edgetune.errors import MismatchError, OutputError, UnsupportedModelError
from edgetune.records import Choice, CompareResult, OutputDifference, Source, Task, TensorSpec


def test_files_and_manifest(stand_in, shared_bundle):
    assert sorted(path.name for path in shared_bundle.iterdir()) == [
        "manifest.json",
        "model.onnx",
        "model.so",
        "reference.npz",
        "weights.bin",
    ]
    content = json.loads((shared_bundle / "manifest.json").read_text())
    assert content["model"] == {
        "name": "conv",
        "sha256": stand_in.prepared.sha256,
        "params": 0,
        "flops": 0,
    }
    assert content["inputs"][0] == {"name": "x", "dtype": "float32", "shape": [1, 3, 16, 16]}
    assert [item["name"] for item in content["outputs"]] == ["y", "pooled"]
    assert content["target"]["mcpu"] == stand_in.target.mcpu
    assert content["target"]["mtriple"] == stand_in.target.mtriple
    assert content["target"]["cpu_features"]
    assert content["threads"] == stand_in.target.threads
    assert content["versions"]["tvm"] == "0.27.0.post1"
    assert content["verification"]["passed"] is True
    assert content["kernels"] == [
        {
            "name": "conv2d",
            "workload": "0123456789abcdef",
            "kind": "generic",
            "source": "record",
            "calls": 1,
            "flops": 8 * 16 * 16 * 27 * 2,
            "best_us": 10.0,
            "symbols": ["conv2d"],
        }
    ]
    for name, entry in content["files"].items():
        assert entry["size"] == (shared_bundle / name).stat().st_size
        assert entry["optional"] == (name in ("model.onnx", "reference.npz"))


def test_weights_lie_aligned_in_one_file(stand_in, shared_bundle):
    data = (shared_bundle / "weights.bin").read_bytes()
    entries = open_bundle(shared_bundle).manifest.weights
    assert len(entries) == len(stand_in.compiled.weights) == 3
    for entry, array in zip(entries, stand_in.compiled.weights, strict=True):
        assert entry.offset % ALIGNMENT_BYTES == 0
        stored = np.frombuffer(data, entry.dtype, array.size, entry.offset).reshape(entry.shape)
        np.testing.assert_array_equal(stored, array)


def test_any_weight_can_be_stored(stand_in, tmp_path):
    weights = (
        np.float32(1.5).reshape(()),
        np.zeros((0, 3), np.int64),
        np.array([True, False]),
        np.arange(6, dtype=np.float16).reshape(2, 3).T,
    )
    compiled = dataclasses.replace(stand_in.compiled, weights=weights)
    path = dataclasses.replace(stand_in, compiled=compiled).write(tmp_path / "b").path
    data = (path / "weights.bin").read_bytes()
    for entry, array in zip(open_bundle(path).manifest.weights, weights, strict=True):
        stored = np.frombuffer(data, entry.dtype, array.size, entry.offset).reshape(entry.shape)
        np.testing.assert_array_equal(stored, array)


def test_same_input_gives_same_bytes(stand_in, tmp_path):
    first = stand_in.write(tmp_path / "a.tar", archive=True).path
    second = stand_in.write(tmp_path / "b.tar", archive=True).path
    assert first.read_bytes() == second.read_bytes()


def test_lean_bundle(stand_in, tmp_path):
    path = stand_in.write(tmp_path / "b", lean=True).path
    assert sorted(entry.name for entry in path.iterdir()) == ["manifest.json", "model.so", "weights.bin"]
    opened = open_bundle(path)
    assert opened.model() is None
    assert opened.reference() is None


def test_reference_run_is_recorded(stand_in, shared_bundle):
    inputs, outputs = open_bundle(shared_bundle).reference()
    np.testing.assert_array_equal(inputs["x"], stand_in.prepared.reference_inputs["x"])
    np.testing.assert_array_equal(outputs["pooled"], stand_in.prepared.reference_outputs["pooled"])


def test_frozen_inputs_are_recorded(stand_in, tmp_path):
    frozen = {"sr": np.array(16000, np.int64), "mask": np.array([[True, False]])}
    prepared = dataclasses.replace(stand_in.prepared, frozen=frozen)
    path = dataclasses.replace(stand_in, prepared=prepared).write(tmp_path / "b").path
    recorded = open_bundle(path).manifest.frozen_inputs()
    assert recorded.keys() == frozen.keys()
    for name, value in frozen.items():
        assert recorded[name].dtype == value.dtype
        np.testing.assert_array_equal(recorded[name], value)


def test_check_sees_the_finished_bundle_before_it_is_published(stand_in, tmp_path):
    out = tmp_path / "b"
    seen = []

    def check(path: Path) -> CompareResult:
        assert not out.exists()
        seen.append(open_bundle(path).manifest)
        return CompareResult(True, (), "ONNX Runtime")

    written = stand_in.write(out, check=check)
    assert written.path == out
    assert written.verification.passed
    assert seen[0].verification is None
    assert open_bundle(out).manifest.verification.reference == "ONNX Runtime"


def test_a_bundle_that_fails_its_check_is_not_written(stand_in, bundle):
    before = (bundle / "manifest.json").read_bytes()
    failed = OutputDifference(
        "pooled", False, 0.5, 0.25, 1e-3, 1e-4, size=8, failed=1, position=(0, 3), value=1.5, expected=2.0
    )
    passed = OutputDifference("y", True, 0.0, 0.0, 1e-3, 1e-4, size=8)
    with pytest.raises(MismatchError, match=r"output 'pooled' differs in 1 of 8 values, first at \[0, 3\]"):
        stand_in.write(bundle, check=lambda _: CompareResult(False, (passed, failed), "ONNX Runtime"))
    assert (bundle / "manifest.json").read_bytes() == before
    assert os.listdir(bundle.parent) == [bundle.name]


def test_a_failing_check_leaves_nothing_behind(stand_in, tmp_path):
    def check(_: Path) -> CompareResult:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stand_in.write(tmp_path / "b", check=check)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("archive", [False, True])
def test_an_older_bundle_is_replaced(stand_in, bundle, archive):
    (bundle / "extra").write_text("from an older version")
    stand_in.write(bundle, archive=archive)
    assert bundle.is_file() == archive
    assert "extra" not in open_bundle(bundle).storage.files
    assert os.listdir(bundle.parent) == [bundle.name]


def test_replaced_in_two_steps_where_names_cannot_be_exchanged(stand_in, bundle, monkeypatch):
    monkeypatch.setattr(atomic.sys, "platform", "darwin")
    (bundle / "extra").write_text("from an older version")
    stand_in.write(bundle)
    assert not (bundle / "extra").exists()
    assert os.listdir(bundle.parent) == [bundle.name]


def test_a_damaged_bundle_may_be_replaced(stand_in, bundle):
    (bundle / "model.so").write_bytes(b"")
    stand_in.write(bundle)
    open_bundle(bundle)


def test_an_empty_directory_may_be_used(stand_in, tmp_path):
    (tmp_path / "b").mkdir()
    open_bundle(stand_in.write(tmp_path / "b").path)


def test_a_link_to_a_bundle_is_followed(stand_in, bundle, tmp_path):
    (tmp_path / "link").symlink_to(bundle)
    (bundle / "extra").write_text("")
    assert stand_in.write(tmp_path / "link").path == bundle
    assert (tmp_path / "link").is_symlink()
    assert not (bundle / "extra").exists()


def test_other_things_are_never_overwritten(stand_in, tmp_path):
    folder, file = tmp_path / "folder", tmp_path / "file"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    file.write_text("years of work")
    for path in (folder, file):
        with pytest.raises(OutputError, match="is not a bundle, so it is not overwritten"):
            stand_in.write(path)
    assert (folder / "thesis.txt").read_text() == file.read_text() == "years of work"


def test_folders_on_the_way_are_made(stand_in, tmp_path):
    open_bundle(stand_in.write(tmp_path / "a" / "b" / "c").path)


def test_out_below_a_file(stand_in, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"cannot write the bundle .*file/b: a part of the path is a file"):
        stand_in.write(tmp_path / "file" / "b")


def test_full_disk(stand_in, bundle, tmp_path):
    """A limit on the size of files gives the same kind of error, in a real write."""
    before = sorted((path.name, path.read_bytes()) for path in bundle.iterdir())
    code = textwrap.dedent(
        """
        import resource, signal, sys
        from pathlib import Path
        from edgetune.atomic import publish, staging, writing
        from edgetune.errors import OutputError
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        out = Path(sys.argv[1])
        try:
            with staging(out) as work, writing(out):
                (work / "bundle").mkdir()
                (work / "bundle" / "weights.bin").write_bytes(bytes(10_000))
                publish(work / "bundle", out)
        except OutputError as error:
            print(error)
        """
    )
    said = subprocess.check_output([sys.executable, "-c", code, str(bundle)], text=True)
    assert "cannot write the bundle" in said
    assert sorted((path.name, path.read_bytes()) for path in bundle.iterdir()) == before
    assert os.listdir(bundle.parent) == [bundle.name]


def test_no_space_is_said_plainly(tmp_path):
    with pytest.raises(OutputError, match="no space is left on the disk"), atomic.writing(tmp_path / "b"):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_what_a_killed_process_left_is_swept_away(stand_in, tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    stale = tmp_path / f".b.tmp-{ended.pid}-0123abcd"
    running = tmp_path / f".b.tmp-{os.getpid()}-0123abcd"
    stale.mkdir()
    (stale / "weights.bin").write_text("half")
    running.mkdir()
    stand_in.write(tmp_path / "b")
    assert not stale.exists()
    assert running.exists()


def test_killed_while_replacing_leaves_one_whole_bundle(stand_in, bundle):
    """Exchanging names is one step of the kernel: at no moment is there nothing under the name."""
    code = textwrap.dedent(
        """
        import os, shutil, sys
        from pathlib import Path
        from edgetune.atomic import publish, staging
        out = Path(sys.argv[1])
        print("ready", flush=True)
        while True:
            with staging(out) as work:
                shutil.copytree(out, work / "bundle")
                publish(work / "bundle", out)
        """
    )
    for _ in range(5):
        child = subprocess.Popen([sys.executable, "-c", code, str(bundle)], stdout=subprocess.PIPE)
        child.stdout.readline()
        for _ in range(50):
            open_bundle(bundle, check_files=False)
        child.kill()
        child.wait()
        child.stdout.close()
        open_bundle(bundle)


def test_dtypes_of_no_numbers_are_refused(stand_in, tmp_path):
    compiled = dataclasses.replace(stand_in.compiled, outputs=(TensorSpec("y", "object", (2,)),))
    with pytest.raises(UnsupportedModelError, match="'y' has dtype object"):
        dataclasses.replace(stand_in, compiled=compiled).write(tmp_path / "b")
    assert os.listdir(tmp_path) == []


def test_records_digest_depends_on_records_alone():
    def choice(source: Source, trace: str | None, workload: str = "a" * 16) -> Choice:
        return Choice(Task("t", workload, "{}"), source, trace)

    record = choice(Source.RECORD, "trace")
    other = choice(Source.TRANSFERRED, "other", "b" * 16)
    default = choice(Source.DEFAULT, None, "c" * 16)
    assert records_digest([record, other]) == records_digest([other, default, record])
    assert records_digest([record]) != records_digest([choice(Source.RECORD, "another")])
