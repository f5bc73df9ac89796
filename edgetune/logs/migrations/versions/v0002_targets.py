"""What is known of each target, to find similar ones; and an index for the best record."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Create the table of targets and the index that finds a workload's best record."""
    op.create_table(
        "edgetune_targets",
        sa.Column("fingerprint", sa.String(64), primary_key=True),
        sa.Column("name", sa.String(256), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("mtriple", sa.String(128), nullable=False),
        sa.Column("mcpu", sa.String(128), nullable=False),
        sa.Column("mattr", sa.JSON, nullable=False),
        sa.Column("threads", sa.Integer, nullable=False),
        sa.Column("vector_bits", sa.Integer, nullable=False),
        sa.Column("gpu_arch", sa.String(32), nullable=False),
    )
    op.create_index("edgetune_records_best", "edgetune_records", ["target", "workload", "median_s"])
