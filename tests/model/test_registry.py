"""The registry is complete, and a fetched file is the registered one or an error."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest

from edgetune.errors import ModelError, OutputError, UsageError
from edgetune.model import interface, registry
from edgetune.model.prepare import prepare
from edgetune.model.randomize import randomize_weights

NAMES = [entry.name for entry in registry.list_models()]


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGETUNE_MODELS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_issue_s_models_are_there() -> None:
    assert len([name for name in NAMES if name.startswith("ppocr-")]) == 3
    assert len([name for name in NAMES if name.startswith("silero-vad")]) == 6
    assert len([entry for entry in registry.list_models() if entry.package == "onnx"]) == 9
    assert "magika" in NAMES
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_file_is_the_registered_one_and_its_settings_fit(name: str) -> None:
    entry = registry.get(name)
    path = registry.fetch(name)
    assert sha256(path) == entry.sha256
    declared = {value.name: value for value in interface.inputs(onnx.load(path))}
    assert set(entry.shapes) | set(entry.freeze) <= set(declared)
    for input_name, value in declared.items():
        assert value.fixed or input_name in entry.shapes or input_name in entry.freeze


def test_an_installed_package_saves_the_download(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/python/here")  # any pip would fail
    assert importlib.metadata.version("onnx")
    assert registry.fetch("squeezenet") == empty_cache / "squeezenet.onnx"


def test_a_damaged_cache_entry_is_replaced(empty_cache: Path) -> None:
    path = registry.fetch("squeezenet")
    path.write_bytes(b"damaged")
    assert sha256(registry.fetch("squeezenet")) == registry.get("squeezenet").sha256


def test_unknown_names_get_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean ppocr-cls"):
        registry.fetch("ppocr-clas")


def pip_that(tmp_path: Path, body: str) -> str:
    """An executable in pip's place; the real one needs the network."""
    script = tmp_path / "python"
    script.write_text(
        f"#!{sys.executable}\nimport sys, pathlib\ndest = sys.argv[sys.argv.index('--dest') + 1]\n{body}\n"
    )
    script.chmod(0o755)
    return str(script)


def test_no_network_is_one_message(
    empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "print('ERROR: Could not find a version', file=sys.stderr); sys.exit(1)"
    monkeypatch.setattr(sys, "executable", pip_that(tmp_path, body))
    with pytest.raises(ModelError, match="could not be fetched") as error:
        registry.fetch("ppocr-cls")
    for part in (
        "rapidocr-onnxruntime==1.4.4",
        "Could not find a version",
        str(empty_cache / "ppocr-cls.onnx"),
    ):
        assert part in str(error.value)
    assert not empty_cache.exists() or not list(empty_cache.iterdir())


def test_another_file_under_the_same_name_is_refused(
    empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "other.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for entry in registry.list_models():
            if entry.package == "rapidocr-onnxruntime":
                archive.writestr(entry.file, b"something else")
    body = f"import shutil; shutil.copy({str(wheel)!r}, dest)"
    monkeypatch.setattr(sys, "executable", pip_that(tmp_path, body))
    with pytest.raises(ModelError, match="is another one"):
        registry.fetch("ppocr-cls")
    assert not list(empty_cache.glob("*"))


def test_a_wheel_gives_all_its_models_at_once(
    empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EDGETUNE_MODELS_CACHE")
    sources = {e.file: registry.fetch(e.name) for e in registry.list_models() if e.package == "silero-vad"}
    monkeypatch.setenv("EDGETUNE_MODELS_CACHE", str(empty_cache))
    wheel = tmp_path / "silero.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file, path in sources.items():
            archive.write(path, file)
    body = f"import shutil; shutil.copy({str(wheel)!r}, dest)"
    monkeypatch.setattr(sys, "executable", pip_that(tmp_path, body))
    registry.fetch("silero-vad-half")
    assert len(list(empty_cache.iterdir())) == 6


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("EDGETUNE_MODELS_CACHE", str(tmp_path / "file"))
    with pytest.raises(OutputError, match="EDGETUNE_MODELS_CACHE"):
        registry.fetch("squeezenet")


class TestRandomWeights:
    def test_outputs_depend_on_the_input(self) -> None:
        constant = prepare(registry.fetch("squeezenet"))
        assert np.ptp(constant.reference_outputs["softmaxout_1"]) < 1e-6
        random = prepare(registry.fetch("squeezenet", random_weights=True))
        spread = random.reference_outputs["softmaxout_1"]
        assert np.ptp(spread) > 1e-3
        assert spread.max() < 0.5

    def test_the_same_each_time(self) -> None:
        data = registry.fetch("squeezenet").read_bytes()
        assert randomize_weights(data) == randomize_weights(data)
        assert randomize_weights(data, seed=1) != randomize_weights(data)

    def test_the_same_operators(self) -> None:
        before = onnx.load(registry.fetch("squeezenet"))
        after = onnx.load(registry.fetch("squeezenet", random_weights=True))
        onnx.checker.check_model(after)
        kept = [n.op_type for n in before.graph.node if n.op_type != "ConstantOfShape"]
        assert [n.op_type for n in after.graph.node] == kept

    def test_other_models_are_given_as_they_are(self) -> None:
        assert registry.fetch("ppocr-cls", random_weights=True) == registry.fetch("ppocr-cls")


def command(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "edgetune.cli.main", "models", *args],
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_commands(tmp_path: Path) -> None:
    listed = json.loads(command("list", "--json").stdout)["models"]
    assert [entry["name"] for entry in listed] == NAMES
    done = command("fetch", "ppocr-cls", "--out", str(tmp_path / "here"))
    assert done.stdout.strip() == str(tmp_path / "here" / "ppocr-cls.onnx")
    assert sha256(tmp_path / "here" / "ppocr-cls.onnx") == registry.get("ppocr-cls").sha256
    wrong = command("fetch", "nothing-like-it")
    assert (wrong.returncode, wrong.stdout) == (2, "")
