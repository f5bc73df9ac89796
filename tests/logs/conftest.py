"""A real PostgreSQL server on a socket of its own, and helpers to run code in other processes."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import psycopg
import pytest

pytest.register_assert_rewrite("edgetune.logs.testing")

NUMBERS = count()


def find_binary(name: str) -> str:
    """Debian keeps the server's programs off the PATH."""
    debian = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    found = str(debian[-1]) if debian else shutil.which(name)
    if found is None:
        pytest.fail(
            f"the tests of the tuning logs need a PostgreSQL server ({name} was not found); "
            "install it with: apt-get install postgresql",
            pytrace=False,
        )
    return found


def unprivileged() -> dict[str, object]:
    """Options of subprocess: the server refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    names = {entry.pw_name: entry for entry in pwd.getpwall()}
    user = names.get("postgres") or names["nobody"]
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a server, with ``{}`` for the name of a database."""
    initdb, postgres = find_binary("initdb"), find_binary("postgres")
    who = unprivileged()
    folder = Path(tempfile.mkdtemp(prefix="edgetune-pg-"))
    if who:
        os.chown(folder, who["user"], who["group"])
    data, log = folder / "data", folder / "log"
    process = None
    try:
        subprocess.run(
            [initdb, "-D", data, "-U", "tester", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=folder,
            **who,
        )
        options = ["-c", "listen_addresses=", "-c", f"unix_socket_directories={folder}", "-c", "fsync=off"]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [postgres, "-D", data, *options], stdout=output, stderr=output, cwd=folder, **who
            )
        url = f"postgresql://tester@/{{}}?host={folder}"
        wait_for(url.format("postgres"), process, log)
        yield url
    finally:
        if process is not None:
            process.send_signal(signal.SIGINT)
            process.wait(20)
        shutil.rmtree(folder)


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            psycopg.connect(url).close()
            return
        except psycopg.OperationalError:
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"PostgreSQL did not start:\n{log.read_text()}", pytrace=False)
            time.sleep(0.05)


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """The URL of an empty database of the test's own."""
    name = f"logs{next(NUMBERS)}"
    with psycopg.connect(postgres_server.format("postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        yield postgres_server.format(name)
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(params=["sqlite", "postgresql"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where empty logs may be made, once on each kind of database."""
    if request.param == "sqlite":
        return str(tmp_path / "logs.sqlite")
    return request.getfixturevalue("postgres_url")


def python(code: str, *args: object, prefix: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """Start a Python process that runs ``code``."""
    command = [*prefix, sys.executable, "-c", code, *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def output(process: subprocess.Popen[str], timeout_s: float = 60) -> str:
    """What a process printed, once it has ended well."""
    stdout, stderr = process.communicate(timeout=timeout_s)
    assert process.returncode == 0, stderr
    return stdout


@pytest.fixture
def no_override() -> tuple[str, ...]:
    """A command prefix under which file permissions count for root too."""
    if os.geteuid() != 0:
        return ()
    return ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
