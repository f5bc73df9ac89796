"""Deleting records that are not worth keeping."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlalchemy import ColumnElement, and_, delete, func, or_, select

from edgetune.errors import UsageError
from edgetune.logs.database import Selection, TuningLogs, beyond_best
from edgetune.logs.schema import records


@dataclass(frozen=True)
class PruneRule:
    """What to delete: a record goes when any of these says so and ``within`` selects it.

    Attributes:
        keep_best: successes beyond the so many fastest of each workload, target and device.
        failures: all failures.
        older_than_s: what was measured longer ago than this many seconds.
        versions: what was measured with any of these versions (``{"tvm": "0.26.0"}``).
        within: delete only among these.
    """

    keep_best: int | None = None
    failures: bool = False
    older_than_s: float | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    within: Selection = field(default_factory=Selection)

    def condition(self) -> ColumnElement[bool]:
        """The rule as SQL.

        Raises:
            UsageError: it names nothing to delete, or a negative number.
        """
        column = records.c
        reasons: list[ColumnElement[bool]] = []
        if self.keep_best is not None:
            reasons.append(column.id.in_(beyond_best(int(_not_negative("keep-best", self.keep_best)))))
        if self.failures:
            reasons.append(column.failure_kind.is_not(None))
        if self.older_than_s is not None:
            reasons.append(column.created_s < time.time() - _not_negative("older-than", self.older_than_s))
        for name, version in self.versions.items():
            reasons.append(column.versions[name].as_string() == version)
        if not reasons:
            raise UsageError(
                "nothing to prune: say what should go with --keep-best, --failures, --older-than or "
                "--measured-with"
            )
        return and_(or_(*reasons), *self.within.conditions())


def prune(logs: TuningLogs, rule: PruneRule, *, dry_run: bool = False) -> int:
    """Delete what ``rule`` names, or with ``dry_run`` only count it; returns how many.

    The space becomes free for new records; a SQLite file does not shrink by itself.

    Raises:
        LogsError: the database cannot be written.
        UsageError: the rule is empty.
    """
    condition = rule.condition()
    if dry_run:
        with logs.reading() as connection:
            return connection.execute(select(func.count()).select_from(records).where(condition)).scalar_one()
    with logs.writing() as connection:
        return connection.execute(delete(records).where(condition)).rowcount


def _not_negative(option: str, number: float) -> float:
    if number < 0:
        raise UsageError(f"--{option} {number} is negative; give a number from 0 up")
    return number
