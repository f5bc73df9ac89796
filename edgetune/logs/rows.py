"""Between ``Record`` and a row of the database, and which of two measurements of a candidate counts."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Row, Table, case, or_, true
from sqlalchemy.dialects import postgresql, sqlite

from edgetune.errors import LogsError
from edgetune.logs import schema
from edgetune.logs.values import TRANSIENT, TargetInfo, checked, checked_target, trace_key
from edgetune.records import Failure, FailureKind, Record, Stage, Timing

_CANDIDATE = ("target", "workload", "device", "trace_key")


def row_of(record: Record) -> dict[str, Any]:
    """The row that stores ``record``.

    Raises:
        InvalidRecordError: the record breaks a rule of the logs.
    """
    record = checked(record)
    timing = record.outcome if isinstance(record.outcome, Timing) else None
    failure = record.outcome if isinstance(record.outcome, Failure) else None
    return {
        "workload": record.workload,
        "target": record.target,
        "device": record.device,
        "trace_key": trace_key(record.trace),
        "median_s": timing.median_s if timing else None,
        "slow": timing.slow if timing else False,
        "failure_stage": failure.stage.value if failure else None,
        "failure_kind": failure.kind.value if failure else None,
        "created_s": float(record.created_s),
        "task_name": record.task_name,
        "kind": record.kind,
        "versions": dict(record.versions),
        "times_s": list(timing.times_s) if timing else None,
        "failure_message": failure.message if failure else None,
        "trace": record.trace,
    }


def record_of(row: Row[Any], location: str) -> Record:
    """The record that a row of the records' table stores.

    Raises:
        LogsError: the row holds a word that this version does not know.
    """
    try:
        outcome: Timing | Failure
        if row.failure_kind is None:
            outcome = Timing(tuple(row.times_s), bool(row.slow))
        else:
            outcome = Failure(
                Stage(row.failure_stage), FailureKind(row.failure_kind), row.failure_message or ""
            )
    except (ValueError, TypeError) as error:
        raise LogsError(
            f"tuning logs {location}: record {row.id} cannot be read ({error}); "
            "upgrade edgetune if a newer one wrote it"
        ) from error
    return Record(
        workload=row.workload,
        target=row.target,
        device=row.device,
        trace=row.trace,
        outcome=outcome,
        versions=row.versions,
        created_s=row.created_s,
        task_name=row.task_name,
        kind=row.kind,
    )


def target_row(info: TargetInfo) -> dict[str, Any]:
    """The row that stores ``info``.

    Raises:
        InvalidRecordError: it breaks a rule of the logs.
    """
    info = checked_target(info)
    return {**vars(info), "mattr": list(info.mattr)}


def target_of(row: Row[Any]) -> TargetInfo:
    """The target that a row of the targets' table stores."""
    values = {column.name: getattr(row, column.name) for column in schema.targets.columns}
    return TargetInfo(**{**values, "mattr": tuple(values["mattr"])})


def standing(row: Any) -> ColumnElement[int]:
    """How much an outcome says, as SQL: of two for one candidate the one that says more is kept.

    A wrong result outranks everything, for a candidate that was wrong once must not come back as
    good because it was right another time. A success outranks a failure: whatever went wrong then was
    not the candidate's fault. A device that went away says nothing at all.
    """
    return case(
        (row.failure_kind == FailureKind.WRONG_RESULT.value, 5),
        *((row.failure_kind == kind.value, 0) for kind in TRANSIENT),
        (row.failure_kind == FailureKind.TIMEOUT.value, 1),
        (row.failure_kind.is_not(None), 2),
        (row.slow, 3),
        else_=4,
    )


def upsert_record(dialect: str, *, second: bool = False) -> Any:
    """The statement that stores a row unless what is known of its candidate says as much already.

    ``second``: of two that say as much, the new one is kept, not the earlier.
    """
    insert = _insert(dialect, schema.records)
    new, old = insert.excluded, schema.records.c
    changes = {name: new[name] for name in row_columns() if name not in _CANDIDATE}
    # Between equals the earlier one stays, so that merging in any order ends the same.
    better = or_(
        standing(new) > standing(old),
        (standing(new) == standing(old)) & (true() if second else new.created_s < old.created_s),
    )
    upsert = insert.on_conflict_do_update(index_elements=_CANDIDATE, set_=changes, where=better)
    # SQLAlchemy forgets the number of rows of an INSERT unless told otherwise.
    return upsert.execution_options(preserve_rowcount=True)


def upsert_target(dialect: str) -> Any:
    """The statement that stores a target; what is known of it already stays."""
    return _insert(dialect, schema.targets).on_conflict_do_nothing(index_elements=["fingerprint"])


def row_columns() -> list[str]:
    """The columns that ``row_of`` fills."""
    return [column.name for column in schema.records.columns if column.name != "id"]


def _insert(dialect: str, table: Table) -> Any:
    return {"sqlite": sqlite.insert, "postgresql": postgresql.insert}[dialect](table)
