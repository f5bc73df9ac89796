"""Stdout carries the result and nothing else, whatever C++ code prints meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from enum import StrEnum
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from edgetune.cli.output import Output, counted

NOISY = """
import os
from edgetune.cli.output import Output, counted
with Output(json={json}, verbose={verbose}, quiet={quiet}) as out:
    print("from Python")
    os.write(1, b"from C++\\n")
    out.note("a note [bold]as it is[/bold]")
    out.detail("a detail")
    out.result({{"answer": 42}}, "the answer is 42")
    os.write(1, b"late\\n")
"""


def run(json: bool = False, verbose: int = 0, quiet: bool = False) -> subprocess.CompletedProcess[str]:
    code = NOISY.format(json=json, verbose=verbose, quiet=quiet)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)


def test_json_is_alone_on_stdout() -> None:
    done = run(json=True)
    assert json.loads(done.stdout) == {"answer": 42}
    assert "from Python" in done.stderr
    assert "from C++" in done.stderr
    assert "late" in done.stderr


def test_for_a_person() -> None:
    done = run()
    assert "the answer is 42" in done.stdout
    assert "42" not in done.stderr


def test_notes_are_literal_and_follow_the_verbosity() -> None:
    assert "a note [bold]as it is[/bold]" in run().stderr
    assert "a detail" not in run().stderr
    assert "a detail" in run(verbose=1).stderr
    assert "a note" not in run(quiet=True).stderr


class Colour(StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    "value, text",
    [
        (float("nan"), "null"),
        (float("inf"), "null"),
        (np.float32(0.5), "0.5"),
        (np.float64("nan"), "null"),
        (np.int64(3), "3"),
        (np.bool_(True), "true"),
        (Path("a") / "b", '"a/b"'),
        (Colour.RED, '"red"'),
        ((1, 2), "[1, 2]"),
        (None, "null"),
    ],
)
def test_values_become_json(value: object, text: str, capfd: pytest.CaptureFixture[str]) -> None:
    Output().write_json({"value": value})
    printed = capfd.readouterr().out
    assert json.loads(printed) == {"value": json.loads(text)}


def test_a_closed_pipe_is_no_traceback() -> None:
    read, write = os.pipe()
    os.close(read)
    code = "import sys; from edgetune.cli.main import main; sys.exit(main(['config', 'show', '--json']))"
    done = subprocess.run([sys.executable, "-c", code], stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert done.stderr == ""
    assert done.returncode == 1


def test_a_person_sees_names_as_they_are_and_lines_whole(capfd: pytest.CaptureFixture[str]) -> None:
    """Rich would drop ``[red]``, turn ``:tada:`` into a picture, and end with an error at ``[/b]``."""
    from rich.table import Table

    name = "[red]conv[/b] :tada: " + "long " * 200 + "end"
    table = Table("name", box=None)
    table.add_row(name)

    def human(console: Console) -> None:
        console.print(name)
        console.print(table)

    with Output() as out:
        out.note(name)
        out.result({}, human)
    shown = capfd.readouterr()
    assert [line.strip() for line in shown.out.splitlines()] == [name, "name", name]
    assert shown.err.strip() == name


def test_one_is_not_many() -> None:
    assert [counted(number, "trial") for number in (0, 1, 2)] == ["0 trials", "1 trial", "2 trials"]
