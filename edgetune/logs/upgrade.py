"""Brings a database to today's schema, one process at a time, or refuses it untouched."""

from __future__ import annotations

import threading
from pathlib import Path

from sqlalchemy import Connection, inspect, text

from edgetune.errors import LogsError
from edgetune.logs.schema import HEAD, VERSION_TABLE

_POSTGRES_LOCK = 0x6564_6765_7475_6E65
"""Key of the advisory lock that a migration holds ("edgetune" in ASCII)."""

_alembic = threading.Lock()
"""Alembic keeps its context in globals: one thread at a time."""


def revision_of(connection: Connection, location: str) -> str | None:
    """The schema revision of a database; None where it holds no tuning logs yet.

    Raises:
        LogsError: a newer edgetune made it, or it is a SQLite file of some other program.
    """
    tables = inspect(connection).get_table_names()
    if VERSION_TABLE not in tables:
        # A PostgreSQL database may be shared with others; a SQLite file never is on purpose.
        if tables and connection.dialect.name == "sqlite":
            raise LogsError(
                f"tuning logs {location}: this SQLite file belongs to another program "
                f"(it has a table {tables[0]!r}); name another file with --logs"
            )
        return None
    revision = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()
    if revision is not None and str(revision) > HEAD:
        raise LogsError(
            f"tuning logs {location}: made by a newer edgetune "
            f"(schema {revision}; this one reads up to {HEAD}); upgrade edgetune, "
            "or name another place with --logs. The logs were left as they are"
        )
    return None if revision is None else str(revision)


def upgrade(connection: Connection, location: str) -> None:
    """Run the missing migrations in the transaction that ``connection`` is in.

    On SQLite that must be ``BEGIN IMMEDIATE``, so that a second process waits and then finds nothing
    left to do; on PostgreSQL a lock is taken here.

    Raises:
        LogsError: as ``revision_of``.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _POSTGRES_LOCK})
    if revision_of(connection, location) == HEAD:
        return
    # Only here: alembic takes 0.3 s to import and nearly every opening has nothing to upgrade.
    from alembic import command
    from alembic.config import Config

    config = Config()
    folder = Path(__file__).parent / "migrations"
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    config.set_main_option("path_separator", "newline")
    config.attributes["connection"] = connection
    with _alembic:
        command.upgrade(config, "head")
