"""The tables of the tuning logs, the same on SQLite and PostgreSQL.

This is the *newest* shape, which queries are written against. How a database gets there is in
``migrations/``; a test holds that the two agree.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

HEAD = "0002"
"""Newest schema revision; equals the last file of ``migrations/versions/``."""

VERSION_TABLE = "edgetune_schema"
"""Where alembic keeps the revision: a name of our own, so a database shared with others stays clear."""

metadata = MetaData()

records = Table(
    "edgetune_records",
    metadata,
    # The order of the columns matters: SQLite reads a row from its start, and the long ones come last.
    Column("id", Integer, primary_key=True),
    Column("workload", String(64), nullable=False),
    Column("target", String(64), nullable=False),
    Column("device", String(256), nullable=False),
    Column("trace_key", String(32), nullable=False),
    Column("median_s", Double),
    Column("slow", Boolean, nullable=False),
    Column("failure_stage", String(32)),
    Column("failure_kind", String(32)),
    Column("created_s", Double, nullable=False),
    Column("task_name", String(512), nullable=False),
    Column("kind", String(64), nullable=False),
    Column("versions", JSON, nullable=False),
    Column("times_s", JSON(none_as_null=True)),
    Column("failure_message", Text),
    Column("trace", Text, nullable=False),
    # The target comes first: no query is without one.
    UniqueConstraint("target", "workload", "device", "trace_key", name="edgetune_records_candidate"),
    CheckConstraint("(median_s IS NULL) = (failure_kind IS NOT NULL)", name="edgetune_records_outcome"),
    Index("edgetune_records_best", "target", "workload", "median_s"),
)

targets = Table(
    "edgetune_targets",
    metadata,
    Column("fingerprint", String(64), primary_key=True),
    Column("name", String(256), nullable=False),
    Column("kind", String(32), nullable=False),
    Column("mtriple", String(128), nullable=False),
    Column("mcpu", String(128), nullable=False),
    Column("mattr", JSON, nullable=False),
    Column("threads", Integer, nullable=False),
    Column("vector_bits", Integer, nullable=False),
    Column("gpu_arch", String(32), nullable=False),
)
