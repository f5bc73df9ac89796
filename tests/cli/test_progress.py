"""What a person sees of a tuning run."""

import io
import re

import pytest
from rich.console import Console

from edgetune.cli.output import Output
from edgetune.cli.progress import TuningProgress, duration, summary
from edgetune.records import Task
from edgetune.results import Latency
from edgetune.tuning.outcome import DriftReport, Progress, TaskOutcome, TaskStatus


def snapshot(spent=10, **changes):
    tasks = tuple(
        TaskOutcome(Task(f"conv{i}", f"{i:016x}", "", 2, 2e6), TaskStatus.TUNING, 5, 1, None, 1e-3 / (i + 1))
        for i in range(3)
    )
    values = {
        "tasks": tasks,
        "trials_spent": spent,
        "trials_reused": 3,
        "failures": {"timeout": 1, "wrong_result": 2},
        "elapsed_s": 30.0,
        "left_s": 95.0,
        "trials_left": 20,
        "trials_per_minute": 20.0,
        "drift": DriftReport(bound=0.2),
    }
    return Progress(**{**values, **changes})


def shown(console, *snapshots, quiet=False):
    output = Output(quiet=quiet)
    if not quiet:
        output._stderr = console
    with TuningProgress(output) as progress:
        for one in snapshots:
            progress.tuning(one)
    return console.file.getvalue()


def test_one_line_says_it_all():
    line = summary(snapshot(), Latency(onnxruntime=1.5))
    for part in ("10 trials", "3 reused", "20 a minute", "3.667 ms", "ONNX Runtime 1.500 ms", "95 s left"):
        assert part in line
    assert "1 timeout" in line
    assert "2 wrong result" in line


def test_no_estimate_before_every_task_has_a_time():
    waiting = TaskOutcome(Task("new", "0", ""), TaskStatus.WAITING, 0, 0)
    line = summary(snapshot(tasks=(*snapshot().tasks, waiting), left_s=None, failures={}), None)
    assert " ms" not in line
    assert "failed" not in line
    assert "left" not in line


def test_plain_lines_without_a_terminal():
    text = shown(Console(file=io.StringIO(), width=200), *(snapshot(spent) for spent in range(50)))
    lines = text.splitlines()
    assert len(lines) == 2, "the first and, at the end, the last: not one for each trial"
    assert "49 trials" in lines[-1]
    assert "\x1b" not in text


def test_a_table_on_a_terminal_the_heaviest_tasks_first():
    text = shown(Console(file=io.StringIO(), width=120, force_terminal=True), snapshot())
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
    assert "GFLOP/s" in text
    assert text.index("conv0") < text.index("conv1") < text.index("conv2")


def test_quiet_is_quiet(capsys):
    shown(Console(file=io.StringIO()), snapshot(), quiet=True)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (99, "99 s"), (187, "3 min"), (9000, "2.5 h")])
def test_durations(seconds, text):
    assert duration(seconds) == text
