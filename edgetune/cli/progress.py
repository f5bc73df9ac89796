"""Shows a tuning run to a person: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from edgetune.tuning.outcome import Progress, TaskOutcome

LINE_INTERVAL_S = 10.0
"""Between two plain lines."""
REFRESH_S = 0.5
"""Between two drawings of the table: drawing takes time from the cores that measure."""
ROWS = 20
"""Tasks shown in the table: those that take most of the model's time."""


class TuningProgress:
    """Draws the snapshots that ``tune_tasks`` gives to its callback.

    ::

        with TuningProgress(out.stderr) as shown:
            tune_tasks(..., progress=shown.update)

    Args:
        console: where to draw, standard error.
        reference_ms: ONNX Runtime's latency for the whole model, None where it was not measured.
    """

    def __init__(self, console: Console, reference_ms: float | None = None) -> None:
        self._console = console
        self._reference_ms = reference_ms
        self._live: Any = None
        self._last: Progress | None = None
        self._drawn_s = float("-inf")

    def __enter__(self) -> Self:
        """Begin to draw."""
        if self._console.is_terminal and not self._console.quiet:
            from rich.live import Live

            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave the last state on the screen."""
        if self._live is not None:
            self._live.stop()
        if self._last is not None:
            self._console.print(summary_line(self._last, self._reference_ms), markup=False)

    def update(self, progress: Progress) -> None:
        """Draw a snapshot, unless the last one was drawn a moment ago."""
        self._last = progress
        now = time.monotonic()
        if now - self._drawn_s < (LINE_INTERVAL_S if self._live is None else REFRESH_S):
            return
        self._drawn_s = now
        if self._live is None:
            self._console.print(summary_line(progress, self._reference_ms), markup=False)
        else:
            self._live.update(self._drawing(progress), refresh=True)

    def _drawing(self, progress: Progress) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        return Group(task_table(progress), Text(summary_line(progress, self._reference_ms)))


def task_table(progress: Progress) -> Table:
    """The tasks that take most of the model's time, with what is known of each."""
    from rich.table import Table

    table = Table("task", box=None, pad_edge=False)
    for column in ("weight", "trials", "failed", "best us", "GFLOP/s", "share"):
        table.add_column(column, justify="right")
    table.add_column("state")
    ranked = sorted(progress.tasks, key=_time_s, reverse=True)
    total = sum(_time_s(task) for task in progress.tasks) or 1.0
    for task in ranked[:ROWS]:
        table.add_row(
            task.task.name,
            str(task.task.weight),
            str(task.trials),
            str(task.failures) if task.failures else "",
            "-" if task.best_s is None else f"{task.best_s * 1e6:.1f}",
            "-" if task.gflops is None else f"{task.gflops:.1f}",
            f"{_time_s(task) / total:.0%}" if task.best_s else "",
            str(task.status),
        )
    if len(ranked) > ROWS:
        table.add_row(f"and {len(ranked) - ROWS} more")
    return table


def summary_line(progress: Progress, reference_ms: float | None = None) -> str:
    """Latency, trials, speed, failures and time left in one line."""
    parts = [_latency(progress, reference_ms)]
    trials = f"{progress.trials_spent} trials"
    if progress.trials_reused:
        trials += f" (+{progress.trials_reused} reused)"
    if progress.trials_left is not None:
        trials += f", {progress.trials_left} left"
    parts.append(trials)
    parts.append(f"{progress.trials_per_minute:.0f} a minute")
    if progress.failures:
        parts.append("failed: " + ", ".join(f"{n} {kind}" for kind, n in sorted(progress.failures.items())))
    if progress.drift.worst > progress.drift.bound:
        parts.append(f"unsteady device ({progress.drift.worst:.0%} drift)")
    parts.append(f"{duration(progress.elapsed_s)} gone")
    if progress.left_s is not None:
        parts.append(f"about {duration(progress.left_s)} left")
    return "; ".join(parts)


def duration(seconds: float) -> str:
    """Seconds for people: ``42 s``, ``3:07 min``, ``1:02 h``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02d} h"


def _latency(progress: Progress, reference_ms: float | None) -> str:
    timed = sum(task.best_s is not None for task in progress.tasks)
    if progress.latency_s is None:
        return f"{timed} of {len(progress.tasks)} tasks timed"
    text = f"estimated {progress.latency_s * 1e3:.3g} ms"
    if reference_ms is not None:
        text += f" (ONNX Runtime {reference_ms:.3g} ms)"
    return text


def _time_s(task: TaskOutcome) -> float:
    return task.task.weight * (task.best_s or 0.0)
