"""How a person follows a run on stderr: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from edgetune.cli.output import QUIET, Output, counted
from edgetune.watcher import Watcher

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

    from edgetune.results import Latency
    from edgetune.tuning.outcome import Progress, TaskOutcome

LINE_EVERY_S = 10.0
"""Without a terminal: how often a line on the tuning is printed."""
_REDRAW_EVERY_S = 0.5


class TuningProgress(Watcher):
    """Shows stages, notes and the tuning run; use it as a context manager around the run."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._live: Live | None = None
        self._baseline: Latency | None = None
        self._last: Progress | None = None
        self._shown_at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_tuning()

    def say(self, text: str) -> None:
        """A stage begins."""
        self._end_tuning()
        self._out.note(text)

    def note(self, text: str) -> None:
        """Something went another way than usual."""
        self._out.note(f"note: {text}")

    def baseline(self, latency: Latency) -> None:
        """How fast ONNX Runtime and the untuned model are."""
        self._baseline = latency
        if latency.onnxruntime is not None and latency.untuned is not None:
            self._out.note(f"untuned {latency.untuned:.3f} ms, ONNX Runtime {latency.onnxruntime:.3f} ms")

    def tuning(self, progress: Progress) -> None:
        """A snapshot of the tuning."""
        self._last = progress
        if self._out.verbosity == QUIET:
            return
        terminal = self._out.stderr.is_terminal
        now = time.monotonic()
        if now - self._shown_at < (_REDRAW_EVERY_S if terminal else LINE_EVERY_S):
            return
        self._shown_at = now
        if terminal:
            self._draw(progress)
        else:
            self._out.note(summary(progress, self._baseline))

    def _draw(self, progress: Progress) -> None:
        from rich.live import Live

        if self._live is None:
            self._live = Live(console=self._out.stderr, auto_refresh=False, transient=True)
            self._live.start()
        rows = max(3, self._out.stderr.height - 6)
        self._live.update(_screen(progress, self._baseline, rows), refresh=True)

    def _end_tuning(self) -> None:
        """Replace the live table by one last line."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        if self._last is not None:
            self._out.note(summary(self._last, self._baseline))
            self._last = None


def summary(progress: Progress, baseline: Latency | None) -> str:
    """The state of a tuning run in one line."""
    parts = [counted(progress.trials_spent, "trial")]
    if progress.trials_reused:
        parts[0] += f" and {progress.trials_reused} reused"
    if progress.trials_spent:
        parts.append(f"{progress.trials_per_minute:.0f} a minute")
    if progress.latency_s is not None:
        estimate = f"model about {progress.latency_s * 1e3:.3f} ms"
        if baseline is not None and baseline.onnxruntime is not None:
            estimate += f" (ONNX Runtime {baseline.onnxruntime:.3f} ms)"
        parts.append(estimate)
    if progress.failures:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(progress.failures.items()))
        parts.append(f"failed: {kinds}".replace("_", " "))
    if progress.left_s is not None:
        parts.append(f"{duration(progress.left_s)} left")
    if progress.activity:
        parts.append(progress.activity)
    return "; ".join(parts)


def _screen(progress: Progress, baseline: Latency | None, rows: int) -> RenderableType:
    """The live table: the tasks that cost most, and the summary below."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table("task", "calls", "best us", "share", "GFLOP/s", "trials", "state", box=None)
    costs = {id(task): (task.best_s or 0.0) * task.task.weight for task in progress.tasks}
    total = sum(costs.values())
    ordered = sorted(progress.tasks, key=lambda task: costs[id(task)], reverse=True)
    for task in ordered[:rows]:
        share = f"{costs[id(task)] / total:.0%}" if total and task.best_s else "-"
        table.add_row(*_cells(task, share))
    more = len(ordered) - rows
    parts: list[RenderableType] = [table]
    if more > 0:
        parts.append(Text(f"and {more} more", style="dim"))
    parts.append(Text(summary(progress, baseline)))
    return Group(*parts)


def _cells(task: TaskOutcome, share: str) -> tuple[RenderableType, ...]:
    from rich.text import Text

    name = task.task.name
    return (
        Text(name if len(name) <= 48 else name[:45] + "..."),
        str(task.task.weight),
        "-" if task.best_s is None else f"{task.best_s * 1e6:.1f}",
        share,
        "-" if task.gflops is None else f"{task.gflops:.1f}",
        str(task.trials),
        Text(str(task.status), style="dim"),
    )


def duration(seconds: float) -> str:
    """``95 s``, ``12 min`` or ``2.5 h``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
