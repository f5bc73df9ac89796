"""Which schedule each kernel is compiled with: from the logs, or the default one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from edgetune.records import Choice, Source, Task, Timing

if TYPE_CHECKING:
    from edgetune.logs.shipped import LayeredLogs
    from edgetune.targets import Target

Fits = Callable[[Choice], bool]
"""Whether a schedule can be applied to its task: a record may come from another version of edgetune."""


def choose(
    tasks: Sequence[Task], target: Target, logs: LayeredLogs, fits: Fits = lambda _: True
) -> tuple[Choice, ...]:
    """The schedule of each task, in the order of ``tasks``.

    The best record of exactly this target, the user's before a shipped one; where there is none that
    ``fits``, the best record of the closest target that the same schedule makes sense on; where there
    is none either, the default schedule of the task's kind.

    Raises:
        LogsError: the logs cannot be read.
    """
    return tuple(_choose(task, target, logs, fits) for task in tasks)


def _choose(task: Task, target: Target, logs: LayeredLogs, fits: Fits) -> Choice:
    record = logs.best(task.workload, target)
    if record is not None and isinstance(record.outcome, Timing):
        choice = Choice(task, Source.RECORD, record.trace, record.outcome.median_s)
        if fits(choice):
            return choice
    for record in logs.similar(task.workload, target):
        # Its time was measured elsewhere and says nothing here.
        choice = Choice(task, Source.TRANSFERRED, record.trace)
        if fits(choice):
            return choice
    return Choice(task, Source.DEFAULT)
