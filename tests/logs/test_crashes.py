"""Several processes at once, killed processes, forks, full disks: nothing that was committed is lost."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from edgetune.errors import LogsError
from edgetune.logs import TuningLogs, open_logs
from edgetune.logs.testing import HERE, record
from edgetune.records import Record
from tests.logs.conftest import output, python

WORKLOAD = "a" * 16

FORK = multiprocessing.get_context("fork")


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def stored(location: str) -> set[str]:
    """``name/number`` of each record, and nothing twice."""
    with open_logs(location) as logs:
        traces = [r.trace.split(",")[:2] for r in logs.records([WORKLOAD], HERE)]
    names = [f"{name[3:-1]}/{number}" for name, number in traces]
    assert len(names) == len(set(names))
    return set(names)


def candidate(name: str, number: int) -> Record:
    return record(trace=f'[["{name}",{number},"{"x" * 3000}"],[]]')


def write_some(location: str, name: str, start: Barrier) -> None:
    start.wait()
    with open_logs(location) as logs:
        for number in range(40):
            assert logs.add(candidate(name, number))


def test_several_processes_open_and_write_at_once(location: str) -> None:
    """Also the creation of the schema is raced for."""
    start = FORK.Barrier(4)
    writers = [FORK.Process(target=write_some, args=(location, f"writer{n}", start)) for n in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert stored(location) == {f"writer{n}/{i}" for n in range(4) for i in range(40)}


def write_until_killed(location: str, name: str, promises: Path) -> None:
    """Keeps each promise in a file: what a process wrote there outlives it."""
    with open_logs(location) as logs, promises.open("w") as file:
        for number in itertools.count():
            assert logs.add(candidate(name, number))
            # Only now: a number in this file is a promise that the record is safe.
            print(number, file=file, flush=True)


def test_kill_9_loses_no_committed_record(location: str, tmp_path: Path) -> None:
    """Twenty writers, four at a time, killed at random moments."""
    random.seed(2)
    promised: set[str] = set()
    for turn in range(5):
        promises = {f"{turn}-{n}": tmp_path / f"{turn}-{n}.promises" for n in range(4)}
        writers = {
            name: FORK.Process(target=write_until_killed, args=(location, name, path))
            for name, path in promises.items()
        }
        for writer in writers.values():
            writer.start()
        wait_until(lambda paths=promises: all(path.exists() for path in paths.values()))
        for name, writer in writers.items():
            time.sleep(random.uniform(0, 0.1))
            writer.kill()
            writer.join()
            assert writer.exitcode == -signal.SIGKILL
            lines = promises[name].read_text().splitlines(keepends=True)
            promised |= {f"{name}/{line.strip()}" for line in lines if line.endswith("\n")}
        assert promised <= stored(location)
    assert len(promised) > 20
    # A record may be stored whose promise was not printed any more: one for each writer at most.
    assert len(stored(location) - promised) <= 20
    if not location.startswith("postgresql"):
        with sqlite3.connect(location) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_kill_9_while_the_database_is_being_made(location: str) -> None:
    for delay_s in (0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12):
        process = FORK.Process(target=open_logs, args=(location,))
        process.start()
        time.sleep(delay_s)
        process.kill()
        process.join()
    with open_logs(location) as logs:
        assert logs.add(record())
        assert logs.records([WORKLOAD], HERE) == [record()]


def write_in_child(logs: TuningLogs, name: str) -> None:
    assert logs.add(record(trace=f'["{name}"]'))
    assert logs.best(WORKLOAD, HERE) is not None


def test_a_forked_child_may_go_on_with_the_same_object(location: str) -> None:
    with open_logs(location) as logs:
        logs.add(record(trace='["parent"]'))
        children = [FORK.Process(target=write_in_child, args=(logs, f"child{n}")) for n in range(3)]
        for child in children:
            child.start()
        assert logs.add(record(trace='["parent again"]'))
        for child in children:
            child.join(30)
            assert child.exitcode == 0
        assert len(logs.records([WORKLOAD], HERE)) == 5
        assert logs.add(record(trace='["parent at last"]'))


def test_a_writer_that_waits_too_long_says_so(tmp_path: Path) -> None:
    path = tmp_path / "logs.sqlite"
    with open_logs(path, lock_timeout_s=0.2) as logs:
        blocker = sqlite3.connect(path, isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        with pytest.raises(LogsError, match=r"logs\.sqlite: another process has kept it locked"):
            logs.add(record())
        assert logs.records([WORKLOAD], HERE) == []  # readers are not kept waiting
        blocker.execute("ROLLBACK")
        blocker.close()
        assert logs.add(record())


def test_a_writer_that_waits_too_long_on_postgresql(postgres_url: str) -> None:
    with open_logs(postgres_url, lock_timeout_s=0.2) as logs, open_logs(postgres_url) as other:
        with other.writing() as connection:
            connection.exec_driver_sql("LOCK TABLE edgetune_records")
            with pytest.raises(LogsError, match="another process has kept it locked"):
                logs.add(record())
        assert logs.add(record())


def test_a_lost_connection_is_replaced(postgres_url: str) -> None:
    """A restart of the server between two trials costs neither of them."""
    with open_logs(postgres_url) as logs, open_logs(postgres_url) as other:
        logs.add(record(trace="[1]"))
        with other.reading() as connection:
            connection.exec_driver_sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        assert logs.add(record(trace="[2]"))
        assert len(logs.records([WORKLOAD], HERE)) == 2


# Writes until the disk is full, makes room, goes on, and prints the message and the number of records.
FULL = """
import os, sys
from pathlib import Path
from edgetune.errors import LogsError
from edgetune.logs import open_logs
from edgetune.logs.testing import HERE, record
folder = Path(sys.argv[1])
ballast = folder / "ballast"
ballast.write_bytes(bytes(300_000))
with open_logs(folder / "logs.sqlite") as logs:
    stored, message = 0, ""
    while not message and stored < 10_000:
        try:
            assert logs.add(record(trace=f'[{stored},"{"x" * 3000}"]'))
            stored += 1
        except LogsError as error:
            message = str(error)
    assert len(list(logs.every())) == stored, "lost"
    ballast.unlink()
    assert logs.add(record(trace=f'[{stored},"{"x" * 3000}"]'))
with open_logs(folder / "logs.sqlite") as logs:
    assert len(list(logs.every())) == stored + 1, "lost after opening again"
print(stored, message)
"""


def test_a_full_disk(tmp_path: Path) -> None:
    """On a file system of its own of 1 MB: one message, and all is well again with more room."""
    isolated = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "-rm"]
    if subprocess.run([*isolated, "true"], capture_output=True).returncode:
        pytest.skip("the kernel forbids mount namespaces here")
    script = 'mount -t tmpfs -o size=1m none "$0" && exec "$@"'
    done = subprocess.run(
        [*isolated, "sh", "-c", script, tmp_path, sys.executable, "-c", FULL, tmp_path],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    stored, _, message = done.stdout.partition(" ")
    assert int(stored) > 3
    assert "the disk is full; free some space" in message
    assert str(tmp_path / "logs.sqlite") in message


def test_a_limit_on_the_size_of_files(tmp_path: Path) -> None:
    code = """
import resource, sys
from edgetune.errors import LogsError
from edgetune.logs import open_logs
from edgetune.logs.testing import record
path, n = sys.argv[1], 0
with open_logs(path) as logs:
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
    try:
        while n < 10_000:
            logs.add(record(trace=f'[{n},"{"x" * 3000}"]'))
            n += 1
    except LogsError as error:
        print(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    logs.add(record(trace="[]"))
    assert len(list(logs.every())) == n + 1
"""
    message = output(python(code, tmp_path / "logs.sqlite"))
    assert "reading or writing failed; check the disk (space, file size limit" in message
