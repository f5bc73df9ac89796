"""``TuningLogs``: every measured candidate, for good. What the other modules of ``logs`` build on."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from types import TracebackType
from typing import Any, Self

from sqlalchemy import ColumnElement, Connection, Engine, func, select

from edgetune.errors import LogsError
from edgetune.logs import rows
from edgetune.logs.failures import translated
from edgetune.logs.schema import records, targets
from edgetune.logs.values import TargetInfo, TargetLike, fingerprint_of
from edgetune.records import Record

_BATCH = 500
"""Rows of one transaction in bulk work: others wait for a lock no longer than it takes."""


@dataclass(frozen=True)
class Selection:
    """Which records to list, export or count; the default is all of them.

    Attributes:
        target: fingerprint of the only target.
        workload: the only workload.
        device: the only device.
        failures: whether failed candidates are among them.
        best: at most so many of the fastest for each workload, target and device; failures are then
            not counted, so combine it with ``failures=False`` to have the best alone.
    """

    target: str | None = None
    workload: str | None = None
    device: str | None = None
    failures: bool = True
    best: int | None = None

    def conditions(self) -> list[ColumnElement[bool]]:
        """The selection as SQL conditions on the table of records."""
        column = records.c
        chosen: list[ColumnElement[bool]] = []
        for name in ("target", "workload", "device"):
            if getattr(self, name) is not None:
                chosen.append(column[name] == getattr(self, name))
        if not self.failures:
            chosen.append(column.failure_kind.is_(None))
        if self.best is not None:
            chosen.append(column.id.not_in(beyond_best(self.best)))
        return chosen


def beyond_best(count: int) -> Any:
    """The ids of all successes but the ``count`` fastest of each workload, target and device."""
    place = func.row_number().over(
        partition_by=(records.c.target, records.c.workload, records.c.device),
        order_by=(records.c.slow, records.c.median_s, records.c.id),
    )
    ranked = select(records.c.id, place.label("place")).where(records.c.median_s.is_not(None)).subquery()
    return select(ranked.c.id).where(ranked.c.place > count)


class TuningLogs:
    """The tuning logs, open. Made by ``open_logs``; use it as a context manager or ``close`` it.

    Every write is committed, and on the disk, when its call returns: neither ``kill -9`` nor a power
    cut loses it. Any number of processes may have the same logs open, and the threads of one process
    may share one object. A forked child may go on using it too (it gets connections of its own),
    except for logs in memory, which exist in one process only.

    A candidate (workload, target, device, trace) is stored once. Of two measurements the one that
    says more is kept: see ``rows.standing``.

    Every method raises ``LogsError`` when the database cannot be used, and ``InvalidRecordError``
    (a ``ValueError``) for values that break the rules of ``values``.

    Attributes:
        location: the file or URL (without its password), for messages.
        read_only: whether writing is refused.
    """

    def __init__(self, engine: Engine, location: str, *, read_only: bool) -> None:
        self.location = location
        self.read_only = read_only
        self._engine = engine
        self._writer = engine.execution_options(begin="IMMEDIATE")
        self._dialect = engine.dialect.name
        self._upsert = rows.upsert_record(self._dialect)
        self._pid = os.getpid()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Nothing waits to be written; the object must not be used again."""
        with translated(self.location):
            self._leave_parents_connections()
            self._engine.dispose()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that reads."""
        with translated(self.location):
            self._leave_parents_connections()
            with self._engine.connect() as connection:
                yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that writes; committed at the end, undone if an exception leaves it."""
        if self.read_only:
            raise LogsError(
                f"tuning logs {self.location}: opened for reading only; open them for writing, "
                "or name another place with --logs"
            )
        with translated(self.location):
            self._leave_parents_connections()
            # SQLite: takes the write lock at once. Asking for it after reading can fail without a wait.
            with self._writer.begin() as connection:
                yield connection

    def _leave_parents_connections(self) -> None:
        if self._pid != os.getpid():
            # After a fork they are the parent's: neither SQLite nor libpq can share or close them here.
            self._engine.dispose(close=False)
            self._pid = os.getpid()

    def add(self, record: Record) -> bool:
        """Store the outcome of one candidate; it is safe on the disk at return.

        ``created_s`` 0 means now. Returns whether it was stored: False says that as much was known
        of this candidate already.
        """
        row = rows.row_of(record if record.created_s else replace(record, created_s=time.time()))
        with self.writing() as connection:
            return connection.execute(self._upsert, row).rowcount > 0

    def replace(self, record: Record) -> None:
        """Store a second measurement of a candidate in place of the first, made while the device drifted."""
        row = rows.row_of(record if record.created_s else replace(record, created_s=time.time()))
        with self.writing() as connection:
            connection.execute(rows.upsert_record(self._dialect, second=True), row)

    def add_many(self, many: Iterable[Record]) -> int:
        """Store many, in transactions of 500; returns how many were stored, as ``add`` tells it."""
        stored, left = 0, iter(many)
        while batch := [rows.row_of(record) for record in islice(left, _BATCH)]:
            with self.writing() as connection:
                stored += sum(connection.execute(self._upsert, row).rowcount for row in batch)
        return stored

    def records(
        self, workloads: Iterable[str], target: str | TargetLike, device: str | None = None
    ) -> list[Record]:
        """All records of ``workloads`` for one target, failures too, in the order they were stored.

        Args:
            workloads: workload hashes.
            target: the target or its fingerprint: there is no asking across targets.
            device: only what was measured on this device.
        """
        where = [records.c.target == fingerprint_of(target), records.c.workload.in_(sorted(set(workloads)))]
        if device is not None:
            where.append(records.c.device == device)
        with self.reading() as connection:
            found = connection.execute(select(records).where(*where).order_by(records.c.id))
            return [rows.record_of(row, self.location) for row in found]

    def best(self, workload: str, target: str | TargetLike, device: str | None = None) -> Record | None:
        """The fastest record of a workload on one target; None where no candidate succeeded.

        One whose measurement was cut short as slow is given only where there is no other.
        """
        where = [
            records.c.target == fingerprint_of(target),
            records.c.workload == workload,
            records.c.median_s.is_not(None),
        ]
        if device is not None:
            where.append(records.c.device == device)
        order = (records.c.slow, records.c.median_s, records.c.id)
        with self.reading() as connection:
            row = connection.execute(select(records).where(*where).order_by(*order).limit(1)).first()
            return None if row is None else rows.record_of(row, self.location)

    def register_target(self, target: TargetLike | TargetInfo) -> None:
        """Remember what kind of machine a fingerprint stands for, so that similar ones can be found."""
        row = rows.target_row(TargetInfo.of(target))
        with self.reading() as connection:
            known = connection.execute(
                select(targets.c.fingerprint).where(targets.c.fingerprint == row["fingerprint"])
            ).first()
        if known is None:
            with self.writing() as connection:
                connection.execute(rows.upsert_target(self._dialect), row)

    def targets(self) -> list[TargetInfo]:
        """The targets registered so far, by name."""
        with self.reading() as connection:
            found = connection.execute(select(targets).order_by(targets.c.name, targets.c.fingerprint))
            return [rows.target_of(row) for row in found]

    def every(self, selection: Selection | None = None) -> Iterator[Record]:
        """The selected records in the order they were stored, a page at a time.

        No transaction stays open between pages: records stored meanwhile may or may not be among them.
        """
        where = (selection or Selection()).conditions()
        last = -1
        while True:
            page = select(records).where(records.c.id > last, *where).order_by(records.c.id).limit(_BATCH)
            with self.reading() as connection:
                found = connection.execute(page).all()
            for row in found:
                yield rows.record_of(row, self.location)
            if len(found) < _BATCH:
                return
            last = found[-1].id
