"""What the logs hold, in numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlalchemy import func, select

from edgetune.logs.database import Selection, TuningLogs
from edgetune.logs.schema import records


@dataclass(frozen=True)
class TargetStats:
    """One target's share of the logs.

    Attributes:
        target: its fingerprint.
        name: as registered; empty where it never was.
        devices: names of the devices that measured for it.
        records: all records; ``successes`` and ``failures`` (by kind) add up to it.
        first_s, last_s: when the oldest and the newest was measured, seconds since 1970.
    """

    target: str
    name: str
    workloads: int
    devices: tuple[str, ...]
    records: int
    successes: int
    failures: Mapping[str, int] = field(default_factory=dict)
    first_s: float = 0.0
    last_s: float = 0.0


@dataclass(frozen=True)
class WorkloadStats:
    """One workload on one target.

    ``best_s`` is the fastest median in seconds, None where every candidate failed.
    """

    target: str
    target_name: str
    workload: str
    task_name: str
    records: int
    failures: int
    best_s: float | None
    last_s: float


def target_stats(logs: TuningLogs, target: str | None = None) -> list[TargetStats]:
    """The statistics of every target, or of one fingerprint, by name.

    Raises:
        LogsError: the database cannot be read.
    """
    column = records.c
    where = Selection(target=target).conditions()
    totals = select(
        column.target,
        func.count(column.workload.distinct()).label("workloads"),
        func.count().label("records"),
        func.min(column.created_s).label("first_s"),
        func.max(column.created_s).label("last_s"),
    )
    kinds = select(column.target, column.failure_kind, func.count().label("count"))
    devices = select(column.target, column.device).distinct()
    names = {info.fingerprint: info.name for info in logs.targets()}
    with logs.reading() as connection:
        total_rows = connection.execute(totals.where(*where).group_by(column.target)).all()
        by_kind: dict[str, dict[str | None, int]] = defaultdict(dict)
        grouped = kinds.where(*where).group_by(column.target, column.failure_kind)
        for fingerprint, kind, count in connection.execute(grouped):
            by_kind[fingerprint][kind] = count
        by_device: dict[str, list[str]] = defaultdict(list)
        for fingerprint, device in connection.execute(devices.where(*where).order_by(column.device)):
            by_device[fingerprint].append(device)
    found = []
    for row in total_rows:
        kind_counts = by_kind[row.target]
        found.append(
            TargetStats(
                target=row.target,
                name=names.get(row.target, ""),
                workloads=row.workloads,
                devices=tuple(by_device[row.target]),
                records=row.records,
                successes=kind_counts.get(None, 0),
                failures={str(kind): kind_counts[kind] for kind in sorted(filter(None, kind_counts))},
                first_s=row.first_s,
                last_s=row.last_s,
            )
        )
    return sorted(found, key=lambda stats: (stats.name, stats.target))


def workload_stats(logs: TuningLogs, selection: Selection | None = None) -> list[WorkloadStats]:
    """One line for each workload of each target among the selected records, by target and task name.

    Raises:
        LogsError: the database cannot be read.
    """
    column = records.c
    query = (
        select(
            column.target,
            column.workload,
            func.max(column.task_name).label("task_name"),
            func.count().label("records"),
            func.count(column.failure_kind).label("failures"),
            func.min(column.median_s).label("best_s"),
            func.max(column.created_s).label("last_s"),
        )
        .where(*(selection or Selection()).conditions())
        .group_by(column.target, column.workload)
    )
    names = {info.fingerprint: info.name for info in logs.targets()}
    with logs.reading() as connection:
        found = [
            WorkloadStats(target_name=names.get(row.target, ""), **row._mapping)
            for row in connection.execute(query)
        ]
    return sorted(found, key=lambda stats: (stats.target_name, stats.target, stats.task_name, stats.workload))
