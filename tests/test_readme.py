"""The README's commands, typed in order in an empty directory as a newcomer would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"

SHORTER = {"--time 1m": "--time 15s"}
"""The only changes to what the README says: budgets, so that the test takes less time."""


def blocks(language: str) -> list[str]:
    """The fenced blocks of one language after the two commands of the repository itself."""
    _, tour = README.read_text().split("## Five minutes")
    return re.findall(rf"```{language}\n(.*?)```", tour, re.DOTALL)


def commands() -> list[str]:
    lines = [line for block in blocks("console") for line in block.splitlines()]
    assert all(line.startswith("$ ") for line in lines)
    return [line.removeprefix("$ ") for line in lines]


def shortened(command: str) -> str:
    for text, shorter in SHORTER.items():
        command = command.replace(text, shorter)
    return command


def run(args: list[str], directory: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        args, cwd=directory, env=os.environ | {"PATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{args}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory in which the console blocks have been run, each command's output kept by it."""
    directory = tmp_path_factory.mktemp("tour")
    for index, command in enumerate(commands()):
        done = run(["bash", "-c", shortened(command)], directory)
        (directory / f"output-{index}.txt").write_text(done.stdout)
    return directory


def output(tour: Path, start: str) -> str:
    index = next(i for i, command in enumerate(commands()) if command.startswith(start))
    return (tour / f"output-{index}.txt").read_text()


def test_the_budgets_that_are_shortened_are_there() -> None:
    assert all(any(text in command for command in commands()) for text in SHORTER)


@pytest.mark.timeout(900)
def test_the_tour(tour: Path) -> None:
    assert "can be compiled" in output(tour, "edgetune check")
    assert "verified against ONNX Runtime" in output(tour, "edgetune tune")
    assert "passed" in output(tour, "edgetune compare")
    assert "speedup" in output(tour, "edgetune benchmark")
    assert (tour / "this-machine.toml").stat().st_size > 0
    assert (tour / "mine.jsonl").stat().st_size > 0
    assert (tour / "for-the-pi" / "manifest.json").exists()


@pytest.mark.timeout(300)
def test_the_python_blocks(tour: Path) -> None:
    for block in blocks("python"):
        run([sys.executable, "-c", block], tour)


def test_the_first_commands_are_targets_of_make() -> None:
    makefile = (README.parent / "Makefile").read_text()
    first = re.search(r"```console\n(.*?)```", README.read_text(), re.DOTALL)
    assert first
    names = [line.split()[1] for line in first[1].splitlines()]
    assert names == ["demo", "test"]
    assert all(re.search(rf"^{name}:", makefile, re.MULTILINE) for name in names)
