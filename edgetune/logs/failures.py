"""The one boundary where errors of databases become ``LogsError``.

Each message says what happened, to which logs, and what to do. What is not in the tables is a bug of
ours (wrong SQL, a broken constraint) and keeps its traceback.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, NoSuchModuleError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from edgetune.errors import LogsError

_ELSEWHERE = "or name another place with --logs"

SQLITE = {
    "FULL": f"the disk is full; free some space, {_ELSEWHERE}. Nothing recorded before is lost",
    "BUSY": "another process has kept it locked for too long; "
    "end that process (or wait for it) and run the command again",
    "LOCKED": "another thread has kept it locked for too long; run the command again",
    "READONLY": f"it is read-only; make the file and its folder writable, {_ELSEWHERE}",
    "NOTADB": f"it is not a SQLite database; check the path, {_ELSEWHERE}",
    "CORRUPT": "it is damaged; keep a copy, save what can be read with "
    "'sqlite3 FILE .recover | sqlite3 NEW', and go on with the new file",
    "CANTOPEN": f"it cannot be opened; make sure that its folder exists and is writable, {_ELSEWHERE}",
    "PERM": f"access is denied; change the permissions of the file and its folder, {_ELSEWHERE}",
    "AUTH": f"access is denied; change the permissions of the file and its folder, {_ELSEWHERE}",
    "IOERR": "reading or writing failed; check the disk (space, file size limit, network drive), "
    f"{_ELSEWHERE}",
    "PROTOCOL": f"file locking does not work there (a network drive?); use a local disk, {_ELSEWHERE}",
    "NOLFS": f"the file is too large for its file system; make room in it with 'edgetune logs prune', {_ELSEWHERE}",
    "NOMEM": "there is not enough memory; close other programs and run the command again",
}
"""SQLite's primary result codes that are the state of the world. The rest are bugs."""

SQLITE_BUGS = frozenset(
    {"ABORT", "CONSTRAINT", "EMPTY", "ERROR", "FORMAT", "INTERNAL", "INTERRUPT"}
    | {"MISMATCH", "MISUSE", "NOTFOUND", "RANGE", "SCHEMA", "TOOBIG"}
)

POSTGRES = {
    "08": "the connection failed; check the server and the network, and run the command again",
    "25006": "the server or this user may only read; ask for write access, or use another database",
    "28": "the server refused the user or password; correct the URL given with --logs",
    "3D": "there is no such database; create it (createdb NAME), or correct the URL given with --logs",
    "42501": "this user lacks a permission; "
    "the owner of the database can give it (GRANT ALL ON SCHEMA public TO user)",
    "53100": "the server's disk is full; free some space there. Nothing recorded before is lost",
    "53": "the server has run out of connections or memory; wait, or ask its administrator",
    "55P03": "another process has kept it locked for too long; run the command again when that is done",
    "57": "the server is shutting down or starting; run the command again when it is up",
    "58": "the server has trouble with its own files; ask its administrator",
    "XX": "the server reports damaged data; ask its administrator",
}
"""SQLSTATE codes, or classes (two characters), that are the state of the world; the longest match counts."""


@contextmanager
def translated(location: str) -> Iterator[None]:
    """Turn what a database raises inside into ``LogsError`` about the logs at ``location``."""
    try:
        yield
    except DBAPIError as error:
        reason = explanation(error.orig)
        if reason is None:
            raise
        raise LogsError(f"tuning logs {location}: {reason}") from error
    except sqlite3.Error as error:
        reason = explanation(error)
        if reason is None:
            raise
        raise LogsError(f"tuning logs {location}: {reason}") from error
    except PoolTimeoutError as error:
        raise LogsError(
            f"tuning logs {location}: too many threads use it at once; use fewer, or open it once per thread"
        ) from error
    except NoSuchModuleError as error:
        raise LogsError(
            f"tuning logs {location}: no such kind of database; give a file or a postgresql:// URL"
        ) from error


def explanation(error: BaseException | None) -> str | None:
    """What ``error`` of sqlite3 or psycopg means and what to do; None where it is a bug of ours."""
    if isinstance(error, sqlite3.Error):
        # SQLITE_IOERR_WRITE -> IOERR; Python itself raises some errors without a code.
        name = str(getattr(error, "sqlite_errorname", "") or "").removeprefix("SQLITE_")
        return SQLITE.get(name.partition("_")[0])
    state = getattr(error, "sqlstate", None)
    if state:
        return next((POSTGRES[key] for key in (state, state[:2]) if key in POSTGRES), None)
    if type(error).__name__ == "OperationalError":
        # libpq gives no code when it never reached the server; its first line has the reason.
        lines = str(error).strip().splitlines() or ["no reason given"]
        return f"no connection to the server ({lines[0]}); check that it runs and that the URL is right"
    return None
