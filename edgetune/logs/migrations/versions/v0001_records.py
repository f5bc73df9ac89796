"""The records of measured candidates."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the table of records."""
    op.create_table(
        "edgetune_records",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("workload", sa.String(64), nullable=False),
        sa.Column("target", sa.String(64), nullable=False),
        sa.Column("device", sa.String(256), nullable=False),
        sa.Column("trace_key", sa.String(32), nullable=False),
        sa.Column("median_s", sa.Double),
        sa.Column("slow", sa.Boolean, nullable=False),
        sa.Column("failure_stage", sa.String(32)),
        sa.Column("failure_kind", sa.String(32)),
        sa.Column("created_s", sa.Double, nullable=False),
        sa.Column("task_name", sa.String(512), nullable=False),
        sa.Column("kind", sa.String(64), nullable=False),
        sa.Column("versions", sa.JSON, nullable=False),
        sa.Column("times_s", sa.JSON),
        sa.Column("failure_message", sa.Text),
        sa.Column("trace", sa.Text, nullable=False),
        sa.UniqueConstraint("target", "workload", "device", "trace_key", name="edgetune_records_candidate"),
        sa.CheckConstraint(
            "(median_s IS NULL) = (failure_kind IS NOT NULL)", name="edgetune_records_outcome"
        ),
    )
