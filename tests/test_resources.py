"""Data folders, in a checkout and in an installed copy."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import edgetune
from edgetune import resources

PACKAGE = Path(edgetune.__file__).parent


@pytest.mark.parametrize("kind", resources.KINDS)
def test_checkout_has_every_kind(kind):
    assert resources.data_path(kind).is_dir()


def test_unknown_kind_is_a_bug():
    with pytest.raises(ValueError, match="unknown kind"):
        resources.data_path("nonsense")


def _installed_copy(folder: Path) -> Path:
    """The modules alone, away from the checkout, as pip would put them."""
    ignored = shutil.ignore_patterns("__pycache__", "_data")
    shutil.copytree(PACKAGE, folder / "edgetune", ignore=ignored)
    return folder / "edgetune"


def _run(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    # -S: without it, an editable install would put the checkout on the path.
    command = [sys.executable, "-S", "-c", code]
    return subprocess.run(
        command, cwd=folder, env={"PYTHONPATH": str(folder)}, capture_output=True, text=True, check=False
    )


def test_installed_copy_uses_its_own_data(tmp_path):
    package = _installed_copy(tmp_path)
    (package / "_data" / "targets").mkdir(parents=True)
    done = _run(tmp_path, "from edgetune.resources import data_path; print(data_path('targets'))")
    assert done.stdout.strip() == str(package / "_data" / "targets"), done.stderr


def test_damaged_installation_says_what_to_do(tmp_path):
    _installed_copy(tmp_path)
    done = _run(tmp_path, "from edgetune.resources import data_path; data_path('targets')")
    assert "ToolchainError" in done.stderr
    assert "pip install --force-reinstall" in done.stderr


def test_the_wheel_takes_every_kind_along():
    import tomllib

    pyproject = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())
    included = pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert {f"edgetune/_data/{kind}" for kind in resources.KINDS} <= set(included.values())
