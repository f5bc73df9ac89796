"""From ``--logs`` to a database that is ready to use: which one, how to connect, which schema."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from platformdirs import user_data_path
from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import QueuePool

from edgetune.errors import LogsError
from edgetune.logs.database import TuningLogs
from edgetune.logs.failures import translated
from edgetune.logs.schema import HEAD, metadata
from edgetune.logs.upgrade import revision_of, upgrade

LOCK_TIMEOUT_S = 30.0
"""How long to wait for a lock of another process before giving up."""

_CONNECT_TIMEOUT_S = 10


def default_path() -> Path:
    """The logs used where none are named: a file in the user's data directory."""
    return user_data_path("edgetune", appauthor=False) / "logs.sqlite"


def open_logs(
    location: str | os.PathLike[str] | None = None,
    *,
    read_only: bool = False,
    lock_timeout_s: float = LOCK_TIMEOUT_S,
) -> TuningLogs:
    """Open the tuning logs at ``location``, creating or upgrading them where needed.

    Args:
        location: path of a SQLite file, a ``sqlite:///`` or ``postgresql://`` URL, or None for
            ``default_path()``. ``sqlite://`` is a database in memory.
        read_only: promise not to write. Then a file on a read-only disk will do, an older schema is
            upgraded in a copy in memory, and a default file that does not exist yet reads as empty.
        lock_timeout_s: seconds to wait for a lock of another process.

    Raises:
        LogsError: they cannot be used; says why and what to do.
    """
    url = _url(location)
    if url.drivername != "sqlite":
        with translated(url.render_as_string()):
            return _open_postgres(url, read_only, lock_timeout_s)
    if not url.database or url.database == ":memory:":
        return _in_memory("in memory", read_only)
    path = Path(url.database).absolute()
    with translated(str(path)):
        if not read_only:
            return _open_sqlite(path, lock_timeout_s)
        if location is None and not path.exists():
            return _in_memory(str(path), read_only)
        return _read_sqlite(path, lock_timeout_s)


def _url(location: str | os.PathLike[str] | None) -> URL:
    text = os.fspath(default_path() if location is None else location)
    if not text or "\0" in text:
        raise LogsError(f"{text!r} cannot name tuning logs; give a file or a postgresql:// URL")
    if "://" not in text:
        return URL.create("sqlite", database=os.path.expanduser(text))
    scheme = text.partition("://")[0]
    backend = scheme.partition("+")[0]
    if backend not in ("sqlite", "postgresql", "postgres"):
        raise LogsError(
            f"tuning logs cannot be kept in {scheme!r}; give a SQLite file or a postgresql:// URL"
        )
    try:
        return make_url(text).set(drivername="sqlite" if backend == "sqlite" else "postgresql+psycopg")
    except (ArgumentError, ValueError):
        # The URL may hold a password: it is not repeated.
        raise LogsError(
            f"the {scheme} URL of the tuning logs cannot be read; "
            "write postgresql://user:password@host:5432/database, or give a SQLite file"
        ) from None


# --- SQLite -----------------------------------------------------------------------------------------


def _in_memory(shown: str, read_only: bool, source: sqlite3.Connection | None = None) -> TuningLogs:
    """Logs in memory: empty, or an upgraded copy of ``source``."""
    engine = _sqlite_engine(":memory:", LOCK_TIMEOUT_S, writable=False, connections=1)
    if source is not None:
        with closing(engine.raw_connection()) as copy:
            target: Any = copy.driver_connection
            source.backup(target)
    with engine.begin() as connection:
        if source is None or revision_of(connection, shown) is None:
            metadata.create_all(connection)
        else:
            upgrade(connection, shown)
    return TuningLogs(engine, shown, read_only=read_only)


def _open_sqlite(path: Path, lock_timeout_s: float) -> TuningLogs:
    _ensure_writable(path)
    engine = _sqlite_engine(_file_uri(path, "mode=rw"), lock_timeout_s, writable=True)
    try:
        with engine.connect() as connection:
            revision = revision_of(connection, str(path))
        if revision != HEAD:
            _use_wal(engine, lock_timeout_s)
            with engine.execution_options(begin="IMMEDIATE").begin() as connection:
                upgrade(connection, str(path))
    except BaseException:
        engine.dispose()
        raise
    return TuningLogs(engine, str(path), read_only=False)


def _ensure_writable(path: Path) -> None:
    """Create the file and its folder where missing; refuse what cannot be written, in plain words."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab"):
            pass
    except IsADirectoryError:
        raise LogsError(f"tuning logs {path}: this is a folder; name a file in it with --logs") from None
    except OSError as error:
        raise LogsError(
            f"tuning logs {path}: cannot be written ({error.strerror}); make the file and its folder "
            "writable, free space on the disk, or name another place with --logs"
        ) from error


def _use_wal(engine: Engine, lock_timeout_s: float) -> None:
    """Switch to write-ahead logging, which lets readers and one writer work side by side."""
    deadline = time.monotonic() + lock_timeout_s
    while True:
        try:
            with closing(engine.raw_connection()) as raw:
                raw.cursor().execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            # The switch needs the file for itself and does not wait for it: two processes may be here.
            if error.sqlite_errorname != "SQLITE_BUSY" or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _read_sqlite(path: Path, lock_timeout_s: float) -> TuningLogs:
    if not path.is_file():
        what = "this is a folder" if path.is_dir() else "there is no such file"
        raise LogsError(f"tuning logs {path}: {what}; check the path given with --logs")
    try:
        return _read_sqlite_as(path, "mode=ro", lock_timeout_s)
    except (DBAPIError, sqlite3.Error) as error:
        # Write-ahead logging wants two more files beside the database, also for reading. Where they
        # cannot be made, nobody is writing either, unless one of them holds data.
        wal = path.with_name(path.name + "-wal")
        if not _wants_files(error) or (wal.exists() and wal.stat().st_size):
            raise
    return _read_sqlite_as(path, "mode=ro&immutable=1", lock_timeout_s)


def _wants_files(error: DBAPIError | sqlite3.Error) -> bool:
    orig = error.orig if isinstance(error, DBAPIError) else error
    name = str(getattr(orig, "sqlite_errorname", ""))
    return name.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY"))


def _read_sqlite_as(path: Path, options: str, lock_timeout_s: float) -> TuningLogs:
    engine = _sqlite_engine(_file_uri(path, options), lock_timeout_s, writable=False)
    try:
        with engine.connect() as connection:
            revision = revision_of(connection, str(path))
        if revision == HEAD:
            return TuningLogs(engine, str(path), read_only=True)
        with closing(engine.raw_connection()) as raw:
            logs = _in_memory(str(path), read_only=True, source=raw.driver_connection)
    except BaseException:
        engine.dispose()
        raise
    engine.dispose()
    return logs


def _file_uri(path: Path, options: str) -> str:
    return f"file:{quote(os.fsencode(path))}?{options}"


def _sqlite_engine(uri: str, lock_timeout_s: float, *, writable: bool, connections: int = 5) -> Engine:
    """An engine whose transactions are SQLite's own: ``BEGIN``, or what the option ``begin`` says."""

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(
            uri, uri=uri.startswith("file:"), timeout=lock_timeout_s, check_same_thread=False
        )
        # Python's driver would begin transactions by itself, too late for DDL and for IMMEDIATE.
        connection.isolation_level = None
        if writable:
            # A commit is on the disk, not only with the kernel: it survives a power cut as well as a
            # kill. Costs 0.3 ms where a trial costs 300.
            connection.execute("PRAGMA synchronous = FULL")
        return connection

    overflow = 0 if connections == 1 else 10
    engine = create_engine(
        "sqlite://", creator=connect, poolclass=QueuePool, pool_size=connections, max_overflow=overflow
    )

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        mode = connection.get_execution_options().get("begin", "")
        connection.exec_driver_sql(f"BEGIN {mode}")

    return engine


# --- PostgreSQL -------------------------------------------------------------------------------------


def _open_postgres(url: URL, read_only: bool, lock_timeout_s: float) -> TuningLogs:
    shown = url.render_as_string()
    engine = _postgres_engine(url, read_only, lock_timeout_s)
    try:
        with engine.connect() as connection:
            revision = revision_of(connection, shown)
        if revision is None and read_only:
            engine.dispose()
            return _in_memory(shown, read_only)
        if revision != HEAD and read_only:
            raise LogsError(
                f"tuning logs {shown}: made by an older edgetune (schema {revision}); 'edgetune tune' or "
                "'edgetune logs import' of this version, as a user who may write, brings them up to date"
            )
        if revision != HEAD:
            with engine.begin() as connection:
                upgrade(connection, shown)
    except BaseException:
        engine.dispose()
        raise
    return TuningLogs(engine, shown, read_only=read_only)


def _postgres_engine(url: URL, read_only: bool, lock_timeout_s: float) -> Engine:
    options: dict[str, Any] = (
        {} if "connect_timeout" in url.query else {"connect_timeout": _CONNECT_TIMEOUT_S}
    )
    try:
        # pre_ping: a connection that a restart of the server broke is replaced before it is used.
        engine = create_engine(url, connect_args=options, pool_pre_ping=True)
    except ModuleNotFoundError as error:
        raise LogsError(
            f"tuning logs {url.render_as_string()}: PostgreSQL needs psycopg; "
            "install it with: pip install 'edgetune[postgres]'"
        ) from error

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _record: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"SET lock_timeout = {int(lock_timeout_s * 1000)}")
            if read_only:
                cursor.execute("SET default_transaction_read_only = on")
        connection.commit()

    return engine
