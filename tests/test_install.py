"""The wheel, installed away from the checkout: its data travels with it, its commands work."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--quiet",
        "--wheel-dir",
        str(folder),
        str(ROOT),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("edgetune-*.whl")
    return path


@pytest.fixture(scope="module")
def edgetune(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command in a fresh environment that has edgetune from the wheel and borrows its dependencies."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--quiet",
        "--no-deps",
        str(wheel),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    own = next((folder / "lib").glob("python*/site-packages"))
    # A plain path, after the environment's own: .pth files in there, the checkout's among them, are not read.
    (own / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "edgetune"


def run(command: Path, *args: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(command), *map(str, args)], capture_output=True, text=True, cwd=cwd)


@pytest.mark.parametrize(
    "name",
    [
        "edgetune/_data/targets/raspberry-pi-4.toml",
        "edgetune/_data/tuning_logs/README.md",
        "edgetune/_data/rpc/runner.py",
        "edgetune/_data/models/registry.toml",
        "edgetune/py.typed",
        "edgetune/standalone/c/edgetune.h",
        "edgetune/standalone/c/pool.c",
    ],
)
def test_the_wheel_holds_the_data(wheel: Path, name: str) -> None:
    assert name in zipfile.ZipFile(wheel).namelist()


@pytest.mark.parametrize("folder", ["targets", "tuning_logs", "rpc", "models"])
def test_nothing_of_the_data_is_left_behind(wheel: Path, folder: str) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tracked = subprocess.run(["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode:
        pytest.skip("not a git checkout")
    assert {f"edgetune/_data/{name}" for name in tracked.stdout.split()} <= set(names)


def test_the_wheel_holds_no_tests(wheel: Path) -> None:
    assert not [
        name for name in zipfile.ZipFile(wheel).namelist() if name.startswith(("tests/", "benchmarks/"))
    ]


def test_it_is_not_the_checkout(edgetune: Path, tmp_path: Path) -> None:
    code = "import edgetune; print(edgetune.__file__)"
    done = subprocess.run(
        [str(edgetune.parent / "python"), "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert str(edgetune.parents[1]) in done.stdout


def test_targets(edgetune: Path, tmp_path: Path) -> None:
    done = run(edgetune, "targets", "list", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    names = {target["name"] for target in json.loads(done.stdout)["targets"]}
    assert names == {path.stem for path in (ROOT / "targets").glob("*.toml")}


def test_check_and_compile(edgetune: Path, conv_file: Path, tmp_path: Path) -> None:
    done = run(edgetune, "check", conv_file, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["supported"]
    logs = ("--logs", tmp_path / "logs.sqlite")
    done = run(edgetune, "tune", conv_file, "--trials", 2, "--out", "bundle", *logs, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verified"]["passed"]
    done = run(edgetune, "run", "bundle", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
