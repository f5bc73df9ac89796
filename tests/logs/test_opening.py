"""Which database is opened, what is refused, and that what is refused stays as it was."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sqlite3
import sys
from multiprocessing.synchronize import Barrier
from pathlib import Path

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from edgetune.errors import LogsError
from edgetune.logs import default_path, open_logs
from edgetune.logs import schema as logs_schema
from edgetune.logs.testing import CRASH, HERE, record, target
from edgetune.logs.upgrade import upgrade
from edgetune.records import Timing
from tests.logs.conftest import output, python

DATA = Path(__file__).parent / "data"
WORKLOAD = "a" * 16


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def make_older(location: str) -> None:
    """A database of schema 1, as its dump in data/ has it."""
    script = (DATA / "schema_0001.sql").read_text()
    if location.startswith("postgresql"):
        script = script.replace("DOUBLE", "DOUBLE PRECISION").replace("id INTEGER", "id SERIAL")
        lines = [line for line in script.splitlines() if line not in ("BEGIN TRANSACTION;", "COMMIT;")]
        lines = [line.replace(",0,", ",false,").replace(",1,NULL", ",true,NULL") for line in lines]
        with psycopg.connect(location) as connection:
            connection.execute("\n".join(lines))
            connection.execute("SELECT setval('edgetune_records_id_seq', 3)")
    else:
        connection = sqlite3.connect(location)
        connection.executescript(script)
        connection.close()


OLDER = [
    record(Timing((1e-3, 1.25e-3, 1.1e-3)), trace='[["Split",["l1",4,4],[true,false],["l2","l3"]],[]]'),
    record(CRASH, trace="[[],[1]]"),
    record(Timing((2e-3,), slow=True), trace="[[],[2]]", device="board"),
]


def test_the_default_is_a_file_in_the_users_data_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    with open_logs(read_only=True) as logs:
        assert logs.records([WORKLOAD], HERE) == []
    assert not tmp_path.joinpath("data").exists()
    with open_logs() as logs:
        logs.add(record())
        assert logs.location == str(default_path())
    assert default_path().is_relative_to(tmp_path / "data")
    with open_logs(read_only=True) as logs:
        assert logs.best(WORKLOAD, HERE) == record()


@pytest.mark.parametrize("name", ["a b.sqlite", "100%.db", "q?mode=ro#x&y.db", "été"])
def test_any_file_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / "sub folder" / name
    with open_logs(path) as logs:
        logs.add(record())
    with open_logs(path, read_only=True) as logs:
        assert logs.best(WORKLOAD, HERE) == record()
    assert path.is_file()


def test_urls_of_sqlite(tmp_path: Path) -> None:
    with open_logs(f"sqlite:///{tmp_path}/logs.db") as logs:
        logs.add(record())
    with open_logs(tmp_path / "logs.db") as logs:
        assert logs.best(WORKLOAD, HERE) == record()


def test_durable_and_write_ahead(tmp_path: Path) -> None:
    with open_logs(tmp_path / "logs.db") as logs, logs.reading() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2  # FULL


def test_the_last_migration_is_the_schema(location: str) -> None:
    """What the migrations build is what the queries are written against."""
    folder = Path(logs_schema.__file__).parent / "migrations"
    assert ScriptDirectory(str(folder)).get_heads() == [logs_schema.HEAD]
    with open_logs(location) as logs, logs.reading() as connection:
        options = {"version_table": logs_schema.VERSION_TABLE, "compare_server_default": True}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, logs_schema.metadata) == []


def test_an_older_schema_is_upgraded(location: str) -> None:
    make_older(location)
    with open_logs(location) as logs:
        assert logs.records([WORKLOAD], HERE) == OLDER
        assert logs.targets() == []
        logs.register_target(target())
        assert not logs.add(OLDER[0])
        assert logs.add(record(trace="[9]"))
    with open_logs(location, read_only=True) as logs:
        assert len(logs.records([WORKLOAD], HERE)) == 4


def open_together(location: str, start: Barrier) -> None:
    start.wait()
    with open_logs(location) as logs:
        assert (len(logs.targets()), len(list(logs.every()))) == (0, 3)


def test_several_processes_upgrade_at_once(location: str) -> None:
    make_older(location)
    fork = multiprocessing.get_context("fork")
    start = fork.Barrier(4)
    processes = [fork.Process(target=open_together, args=(location, start)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0


def test_an_older_schema_is_read_without_changing_it(tmp_path: Path) -> None:
    path = tmp_path / "logs.sqlite"
    make_older(str(path))
    before = files(tmp_path)
    with open_logs(path, read_only=True) as logs:
        assert logs.records([WORKLOAD], HERE) == OLDER
        with pytest.raises(LogsError, match="reading only"):
            logs.add(record())
    assert files(tmp_path) == before


def test_an_older_schema_on_postgresql_is_not_read_only(postgres_url: str) -> None:
    make_older(postgres_url)
    with pytest.raises(LogsError, match=r"made by an older edgetune \(schema 0001\)"):
        open_logs(postgres_url, read_only=True)


def test_an_interrupted_upgrade_leaves_the_older_schema(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_older(location)

    def half(*args: object) -> None:
        upgrade(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr("edgetune.logs.opening.upgrade", half)
    with pytest.raises(KeyboardInterrupt):
        open_logs(location)
    monkeypatch.undo()
    if not location.startswith("postgresql"):
        with sqlite3.connect(location) as connection:
            assert connection.execute("SELECT version_num FROM edgetune_schema").fetchall() == [("0001",)]
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
            assert "edgetune_targets" not in tables
    with open_logs(location) as logs:
        assert len(list(logs.every())) == 3


@pytest.mark.parametrize("read_only", [False, True])
def test_a_newer_schema_is_refused_untouched(location: str, tmp_path: Path, read_only: bool) -> None:
    with open_logs(location) as logs:
        logs.add(record())
        with logs.writing() as connection:
            connection.exec_driver_sql("UPDATE edgetune_schema SET version_num = '0999'")
    before = files(tmp_path)
    with pytest.raises(LogsError, match=r"newer edgetune \(schema 0999; .*upgrade edgetune"):
        open_logs(location, read_only=read_only)
    after = files(tmp_path)
    assert {name: after[name] for name in before} == before


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("content", [b"not a database\n", b"x" * 5000, b'{"schema":1}' * 100])
def test_not_a_database(tmp_path: Path, content: bytes, read_only: bool) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(LogsError, match=r"model\.onnx: it is not a SQLite database; check the path"):
        open_logs(path, read_only=read_only)
    assert files(tmp_path) == {"model.onnx": content}


@pytest.mark.parametrize("read_only", [False, True])
def test_another_programs_database(tmp_path: Path, read_only: bool) -> None:
    path = tmp_path / "history.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE visits (url TEXT)")
    connection.close()
    before = files(tmp_path)
    with pytest.raises(LogsError, match=r"belongs to another program \(it has a table 'visits'\)"):
        open_logs(path, read_only=read_only)
    assert files(tmp_path) == before


def test_a_damaged_database(tmp_path: Path) -> None:
    path = tmp_path / "logs.sqlite"
    with open_logs(path) as logs:
        logs.add_many(record(trace=f'[{n},"{"x" * 3000}"]') for n in range(50))
    data = bytearray(path.read_bytes())
    data[4096 * 3 :] = os.urandom(len(data) - 4096 * 3)
    path.write_bytes(data)
    with pytest.raises(LogsError, match=r"logs\.sqlite: it is damaged; keep a copy"), open_logs(path) as logs:
        list(logs.every())


@pytest.mark.parametrize(
    "location, message",
    [
        ("", "cannot name tuning logs"),
        ("a\0b", "cannot name tuning logs"),
        ("mysql://user:secret@host/db", "cannot be kept in 'mysql'"),
        ("mysql+pymysql://user:secret@host/db", "cannot be kept in"),
        ("postgresql://user:secret@host:port/db", "cannot be read; write postgresql://"),
        ("postgresql://user:secret@[::1/db", "cannot be read; write postgresql://"),
    ],
)
def test_names_that_make_no_sense(location: str, message: str) -> None:
    with pytest.raises(LogsError, match=message) as caught:
        open_logs(location)
    assert "secret" not in str(caught.value)


def test_a_folder_and_a_file_in_the_way(tmp_path: Path) -> None:
    with pytest.raises(LogsError, match="this is a folder; name a file in it"):
        open_logs(tmp_path)
    with pytest.raises(LogsError, match="this is a folder; check the path"):
        open_logs(tmp_path, read_only=True)
    (tmp_path / "file").touch()
    with pytest.raises(LogsError, match="cannot be written"):
        open_logs(tmp_path / "file" / "logs.sqlite")


def test_reading_only_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(LogsError, match="there is no such file; check the path"):
        open_logs(tmp_path / "sub" / "logs.sqlite", read_only=True)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_file_reads_as_empty_logs(tmp_path: Path) -> None:
    path = tmp_path / "logs.sqlite"
    path.touch()
    with open_logs(path, read_only=True) as logs:
        assert list(logs.every()) == []
    assert path.read_bytes() == b""


READ = """
import sys
from edgetune.errors import LogsError
from edgetune.logs import open_logs
from edgetune.logs.testing import HERE, record
with open_logs(sys.argv[1], read_only=True) as logs:
    print(logs.best("a" * 16, HERE) == record())
try:
    with open_logs(sys.argv[1]) as logs:
        logs.add(record(trace="[7]"))
        print("written")
except LogsError as error:
    print(error)
"""


@pytest.mark.parametrize("folder_mode, leftovers", [(0o755, False), (0o555, False), (0o555, True)])
def test_a_read_only_file(
    tmp_path: Path, no_override: tuple[str, ...], folder_mode: int, leftovers: bool
) -> None:
    """Also where SQLite cannot make its two files beside it, and where a killed writer left them."""
    folder = tmp_path / "shared"
    path = folder / "logs.sqlite"
    with open_logs(path) as logs:
        logs.add(record())
        if leftovers:
            shutil.copytree(folder, tmp_path / "copy")
    if leftovers:
        shutil.rmtree(folder)
        (tmp_path / "copy").rename(folder)
        assert (folder / "logs.sqlite-wal").stat().st_size > 0
    for file in folder.iterdir():
        file.chmod(0o444)
    folder.chmod(folder_mode)
    try:
        lines = output(python(READ, path, prefix=no_override)).splitlines()
    finally:
        folder.chmod(0o755)
    assert lines[0] == "True"
    assert lines[1].startswith(f"tuning logs {path}: cannot be written (Permission denied); make the file")


def test_an_unwritable_folder(tmp_path: Path, no_override: tuple[str, ...]) -> None:
    tmp_path.chmod(0o555)
    code = "import sys\nfrom edgetune.logs import open_logs\nopen_logs(sys.argv[1])"
    try:
        process = python(code, tmp_path / "sub" / "logs.sqlite", prefix=no_override)
        _, stderr = process.communicate(timeout=60)
    finally:
        tmp_path.chmod(0o755)
    assert "LogsError: tuning logs" in stderr
    assert "cannot be written (Permission denied)" in stderr


def test_unreachable_postgresql(tmp_path: Path) -> None:
    with pytest.raises(LogsError, match="no connection to the server") as caught:
        open_logs("postgresql://user:secret@127.0.0.1:1/db")
    assert "secret" not in str(caught.value)
    assert "check that it runs" in str(caught.value)
    with pytest.raises(LogsError, match="no connection to the server"):
        open_logs(f"postgres:///db?host={tmp_path}")


def test_a_missing_database_and_user(postgres_server: str) -> None:
    url = postgres_server.format("nothere")
    with pytest.raises(LogsError, match='database "nothere" does not exist'):
        open_logs(url)
    with pytest.raises(LogsError, match='role "nobody" does not exist'):
        open_logs(postgres_server.format("postgres").replace("tester@", "nobody@"))


def test_reading_only_on_postgresql(postgres_url: str) -> None:
    """By a user who may do no more, and on a database without logs."""
    with open_logs(postgres_url, read_only=True) as logs:
        assert list(logs.every()) == []
    with open_logs(postgres_url) as logs:
        logs.add(record())
        with logs.writing() as connection:
            connection.exec_driver_sql("DROP ROLE IF EXISTS reader")
            connection.exec_driver_sql("CREATE ROLE reader LOGIN")
            connection.exec_driver_sql("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
    url = postgres_url.replace("tester@", "reader@")
    with open_logs(url, read_only=True) as logs:
        assert logs.best(WORKLOAD, HERE) == record()
        with pytest.raises(LogsError, match="reading only"):
            logs.add(record())
    with open_logs(url) as logs, pytest.raises(LogsError, match="lacks a permission"):
        logs.add(record(trace="[2]"))


def test_postgresql_without_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(LogsError, match=r"pip install 'edgetune\[postgres\]'"):
        open_logs("postgresql://localhost/db")


def test_importing_the_logs_does_not_import_tvm() -> None:
    code = "import sys, edgetune.logs, edgetune.logs.testing; print({'tvm', 'alembic'} & {*sys.modules})"
    assert output(python(code)) == "set()\n"
