"""Which schedule each kernel is compiled with: from the logs, or the default one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgetune.records import Choice, Record, Source, Task, Timing

if TYPE_CHECKING:
    from edgetune.logs.database import TuningLogs
    from edgetune.targets import Target


def choose(tasks: Sequence[Task], target: Target, logs: Sequence[TuningLogs]) -> tuple[Choice, ...]:
    """The schedule of each task, in the order of ``tasks``.

    The best record of exactly this target in any of ``logs``; where there is none, the best record of
    the closest target that the same schedule makes sense on; where there is none either, the default
    schedule of the task's kind.

    Raises:
        LogsError: a database cannot be read.
    """
    return tuple(_choose(task, target, logs) for task in tasks)


def _choose(task: Task, target: Target, logs: Sequence[TuningLogs]) -> Choice:
    from edgetune.logs.similar import similar

    measured = [best for source in logs if (best := source.best(task.workload, target.fingerprint))]
    if measured:
        record = min(measured, key=_standing)
        return Choice(task, Source.RECORD, record.trace, _standing(record)[1])
    for source in logs:
        for record in similar(source, task.workload, target, limit=1):
            # Its time was measured elsewhere and says nothing here.
            return Choice(task, Source.TRANSFERRED, record.trace)
    return Choice(task, Source.DEFAULT)


def _standing(record: Record) -> tuple[bool, float]:
    """Sorts records, best first: a time whose measurement was cut short counts less."""
    assert isinstance(record.outcome, Timing)
    return record.outcome.slow, record.outcome.median_s


def open_shipped() -> TuningLogs:
    """The records that come with edgetune, as logs in memory.

    Raises:
        LogsError: a shipped file is damaged.
    """
    from edgetune.logs.exchange import import_file
    from edgetune.logs.opening import open_logs
    from edgetune.resources import data_path

    logs = open_logs("sqlite://")
    for path in sorted(data_path("tuning_logs").glob("*.jsonl")):
        import_file(logs, path)
    return logs
