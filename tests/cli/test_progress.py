"""What a person sees of a tuning run."""

import io
import re

import pytest
from rich.console import Console

from edgetune.cli.progress import TuningProgress, duration, summary_line, task_table
from edgetune.records import Task
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
        "failures": {"timeout": 1, "crash": 2},
        "elapsed_s": 30.0,
        "left_s": 95.0,
        "trials_left": 20,
        "trials_per_minute": 20.0,
        "drift": DriftReport(bound=0.2),
    }
    return Progress(**{**values, **changes})


def test_one_line_says_it_all():
    line = summary_line(snapshot(), 1.5)
    assert line == (
        "estimated 3.67 ms (ONNX Runtime 1.5 ms); 10 trials (+3 reused), 20 left; 20 a minute; "
        "failed: 2 crash, 1 timeout; 30 s gone; about 1:35 min left"
    )


def test_no_estimate_before_every_task_has_a_time():
    waiting = TaskOutcome(Task("new", "0", ""), TaskStatus.WAITING, 0, 0)
    line = summary_line(snapshot(tasks=(*snapshot().tasks, waiting), left_s=None, failures={}))
    assert line.startswith("3 of 4 tasks timed")
    assert "failed" not in line
    assert "left" not in line.split(";")[-1]


def test_drift_is_mentioned_when_it_matters():
    assert "unsteady device (50% drift)" in summary_line(snapshot(drift=DriftReport(worst=0.5, bound=0.2)))


def test_plain_lines_without_a_terminal():
    stream = io.StringIO()
    with TuningProgress(Console(file=stream, width=200)) as shown:
        for spent in range(50):
            shown.update(snapshot(spent))
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2, "the first and, at the end, the last: not one for each trial"
    assert "49 trials" in lines[-1]
    assert "\x1b" not in stream.getvalue()


def test_a_table_on_a_terminal():
    stream = io.StringIO()
    with TuningProgress(Console(file=stream, width=120, force_terminal=True)) as shown:
        shown.update(snapshot())
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())
    assert "GFLOP/s" in text
    assert "conv2" in text


def test_the_table_shows_the_heaviest_tasks_first():
    stream = io.StringIO()
    Console(file=stream, width=120).print(task_table(snapshot()))
    rows = [line.split()[0] for line in stream.getvalue().splitlines()]
    assert rows == ["task", "conv0", "conv1", "conv2"]


def test_quiet_is_quiet():
    stream = io.StringIO()
    with TuningProgress(Console(file=stream, quiet=True)) as shown:
        shown.update(snapshot())
    assert stream.getvalue() == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1:00 min"), (187, "3:07 min"), (3725, "1:02 h")],
)
def test_durations(seconds, text):
    assert duration(seconds) == text
