"""The table that translates the errors of databases is complete, and says what to do."""

from __future__ import annotations

import sqlite3

import psycopg
import pytest
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from edgetune.errors import LogsError
from edgetune.logs import open_logs
from edgetune.logs.failures import POSTGRES, SQLITE, SQLITE_BUGS, explanation, translated

# Results of successful calls, and notices.
NO_ERRORS = {"OK", "ROW", "DONE", "NOTICE", "WARNING"}

# Actions and verdicts of the authorizer, and limits, are constants of the same prefix.
OTHERS = {
    "ALTER", "ANALYZE", "ATTACH", "DELETE", "DENY", "DETACH", "FUNCTION", "IGNORE", "INSERT", "PRAGMA",
    "READ", "RECURSIVE", "REINDEX", "SAVEPOINT", "SELECT", "TRANSACTION", "UPDATE",
}  # fmt: skip


def primary_codes() -> set[str]:
    """SQLite's primary result codes: constants SQLITE_WORD of the module sqlite3."""
    words = {name.removeprefix("SQLITE_") for name in vars(sqlite3) if name.startswith("SQLITE_")}
    return {word for word in words if "_" not in word} - OTHERS - NO_ERRORS


def test_every_code_of_sqlite_is_translated_or_known_as_a_bug() -> None:
    assert primary_codes() == {*SQLITE, *SQLITE_BUGS}
    assert not set(SQLITE) & SQLITE_BUGS


def test_every_message_says_what_happened_and_what_to_do() -> None:
    for message in [*SQLITE.values(), *POSTGRES.values()]:
        what, _, way_out = message.partition("; ")
        assert what, message
        assert way_out, message


@pytest.mark.parametrize(
    "error, words",
    [
        (psycopg.errors.DiskFull, "disk is full"),
        (psycopg.errors.LockNotAvailable, "locked for too long"),
        (psycopg.errors.InvalidPassword, "refused the user"),
        (psycopg.errors.InvalidCatalogName, "no such database"),
        (psycopg.errors.InsufficientPrivilege, "lacks a permission"),
        (psycopg.errors.ReadOnlySqlTransaction, "only read"),
        (psycopg.errors.TooManyConnections, "run out of connections"),
        (psycopg.errors.AdminShutdown, "shutting down"),
        (psycopg.errors.ConnectionFailure, "connection failed"),
    ],
)
def test_the_states_of_postgresql(error: type[psycopg.Error], words: str) -> None:
    assert words in str(explanation(error("...")))


def test_a_bug_stays_a_bug() -> None:
    assert explanation(psycopg.errors.UndefinedColumn("...")) is None
    assert explanation(ValueError("...")) is None
    with pytest.raises(IntegrityError), open_logs("sqlite://") as logs, logs.writing() as connection:
        connection.exec_driver_sql("INSERT INTO edgetune_targets (fingerprint) VALUES (NULL)")
    with pytest.raises(OperationalError), open_logs("sqlite://") as logs, logs.writing() as connection:
        connection.exec_driver_sql("SELECT nonsense")


def test_too_many_threads() -> None:
    with pytest.raises(LogsError, match="too many threads use it at once"), translated("logs.sqlite"):
        raise PoolTimeoutError
