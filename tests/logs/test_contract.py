"""The contract on SQLite, in memory and in a file, and on PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgetune.logs import TuningLogs, open_logs
from edgetune.logs.testing import LogsContract


class TestSqlite(LogsContract):
    @pytest.fixture(autouse=True)
    def _empty_database(self, tmp_path: Path) -> None:
        self.path = tmp_path / "logs.sqlite"

    def open_logs(self) -> TuningLogs:
        return open_logs(self.path)


class TestPostgres(LogsContract):
    @pytest.fixture(autouse=True)
    def _empty_database(self, postgres_url: str) -> None:
        self.url = postgres_url

    def open_logs(self) -> TuningLogs:
        return open_logs(self.url)


class TestInMemory(LogsContract):
    """Logs in memory are one object: closing them is their end."""

    @pytest.fixture(autouse=True)
    def _empty_database(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.logs = open_logs("sqlite://")
        self.close = self.logs.close
        monkeypatch.setattr(self.logs, "close", lambda: None)
        yield
        self.close()

    def open_logs(self) -> TuningLogs:
        return self.logs
