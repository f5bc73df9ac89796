"""``edgetune logs``: its results as text and as JSON, and its errors."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from edgetune.cli.logs import parse_age
from edgetune.cli.main import main
from edgetune.errors import UsageError
from edgetune.logs import open_logs
from edgetune.logs.testing import CRASH, ELSEWHERE, HERE, LOST, record, target


@pytest.fixture(autouse=True)
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The logs that the commands use, named by the environment."""
    path = tmp_path / "logs.sqlite"
    monkeypatch.setenv("EDGETUNE_LOGS", str(path))
    monkeypatch.chdir(tmp_path)
    with open_logs(path) as opened:
        opened.register_target(target())
        opened.add_many(
            [
                record(2e-3, trace="[1]"),
                record(1e-3, trace="[2]"),
                record(CRASH, trace="[3]"),
                record(LOST, workload="b" * 16, device="pi"),
                record(5e-3, target=ELSEWHERE),
            ]
        )
    return path


def run(capfd: pytest.CaptureFixture[str], *args: object, code: int = 0) -> tuple[str, str]:
    assert main(["logs", *map(str, args)]) == code
    captured = capfd.readouterr()
    return captured.out, captured.err


def as_json(capfd: pytest.CaptureFixture[str], *args: object, code: int = 0) -> Any:
    return json.loads(run(capfd, *args, "--json", code=code)[0])


def test_list(capfd: pytest.CaptureFixture[str], logs: Path) -> None:
    found = as_json(capfd, "list")
    assert found["logs"] == str(logs)
    rows = {(row["target"], row["workload"][0]): row for row in found["workloads"]}
    first = rows[HERE, "a"]
    assert (first["target_name"], first["task"]) == ("board", "fused_conv2d_relu")
    assert (first["records"], first["failures"], first["best_us"]) == (3, 1, 1000.0)
    assert rows[HERE, "b"]["best_us"] is None
    assert len(rows) == 3
    assert len(as_json(capfd, "list", "--target", HERE, "--device", "pi")["workloads"]) == 1
    text, _ = run(capfd, "list")
    assert "1000.00" in text
    assert "fused_conv2d_relu" in text


def test_stats(capfd: pytest.CaptureFixture[str]) -> None:
    found = as_json(capfd, "stats", "--target", HERE)
    assert found["records"] == 4
    (row,) = found["targets"]
    assert (row["name"], row["workloads"], row["successes"]) == ("board", 2, 2)
    assert row["failures"] == {"crash": 1, "device_lost": 1}
    text, _ = run(capfd, "stats")
    assert "1 crash, 1 device_lost" in text


@pytest.mark.parametrize("command", ["list", "stats"])
def test_empty_logs(capfd: pytest.CaptureFixture[str], tmp_path: Path, command: str) -> None:
    open_logs(tmp_path / "empty").close()
    assert "no records in" in run(capfd, command, "--logs", tmp_path / "empty")[0]


def test_export_and_import(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file, other = tmp_path / "out.jsonl", tmp_path / "other.sqlite"
    assert as_json(capfd, "export", file)["records"] == 5
    result = as_json(capfd, "import", file, "--logs", other)
    assert (result["read"], result["added"], result["known"], result["targets"]) == (5, 5, 0, 1)
    assert "0 records added, 5 were known already" in run(capfd, "import", file, "--logs", other)[0]
    assert as_json(capfd, "export", file, "--best", 1, "--target", HERE)["records"] == 1
    assert as_json(capfd, "export", file, "--no-failures")["records"] == 3
    assert "1 record written" in run(capfd, "export", file, "--device", "pi")[0]


def test_a_torn_and_a_wrong_file(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file, other = tmp_path / "out.jsonl", tmp_path / "other.sqlite"
    run(capfd, "export", file)
    lines = file.read_text()
    file.write_text(lines[:-10])
    out, err = run(capfd, "import", file, "--logs", other)
    assert "4 records added" in out
    assert "the last line is incomplete and was left out" in err
    file.write_text("oops\n" + lines)
    error = as_json(capfd, "import", file, code=1)["error"]
    assert error["kind"] == "LogsError"
    assert f"{file}:1: this is not JSON" in error["message"]


def test_merge(capfd: pytest.CaptureFixture[str], tmp_path: Path, logs: Path) -> None:
    other = tmp_path / "other.sqlite"
    result = as_json(capfd, "merge", logs, "--logs", other)
    assert (result["read"], result["added"], result["logs"]) == (5, 5, str(other))
    assert "no such file" in run(capfd, "merge", tmp_path / "nothing", code=1)[1]
    assert not (tmp_path / "nothing").exists()


def test_prune(capfd: pytest.CaptureFixture[str], logs: Path) -> None:
    dry = as_json(capfd, "prune", "--keep-best", 1, "--failures", "--target", HERE, "--dry-run")
    assert (dry["pruned"], dry["dry_run"]) == (3, True)
    assert (
        "3 records would be deleted"
        in run(capfd, "prune", "--keep-best", 1, "--failures", "--target", HERE, "--dry-run")[0]
    )
    text, _ = run(capfd, "prune", "--keep-best", 1, "--failures", "--target", HERE)
    assert "3 records deleted" in text
    assert as_json(capfd, "prune", "--older-than", "30d", "--target", ELSEWHERE)["pruned"] == 1
    assert as_json(capfd, "prune", "--measured-with", "tvm=0.27.0")["pruned"] == 1
    with sqlite3.connect(logs) as connection:
        assert connection.execute("SELECT count(*) FROM edgetune_records").fetchone() == (0,)


@pytest.mark.parametrize(
    "args, message",
    [
        (["prune"], "nothing to prune"),
        (["prune", "--target", HERE], "--older-than or --measured-with"),
        (["prune", "--older-than", "soon"], "'soon' is not a duration"),
        (["prune", "--measured-with", "tvm"], "write NAME=VERSION"),
        (["import", "x.jsonl", "--target", "zen4"], "leave out --target"),
    ],
)
def test_usage(capfd: pytest.CaptureFixture[str], logs: Path, args: list[str], message: str) -> None:
    before = logs.read_bytes()
    assert message in run(capfd, *args, code=2)[1]
    assert logs.read_bytes() == before


def test_an_unknown_target(capfd: pytest.CaptureFixture[str]) -> None:
    assert "zen4" in run(capfd, "list", "--target", "zen44", code=1)[1]


def test_a_folder_without_a_database(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "a folder without a database of MetaSchedule" in run(capfd, "import", tmp_path, code=1)[1]


def test_metaschedule_needs_a_target_that_is_sure(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Workloads are hashed in a child process; without any there is none to start."""
    folder = tmp_path / "work_dir"
    folder.mkdir()
    (folder / "database_workload.json").write_text("")
    (folder / "database_tuning_record.json").write_text("")
    assert as_json(capfd, "import", folder, "--target", "zen4")["read"] == 0
    message = run(capfd, "import", folder, "--any-target", code=2)[1]
    assert "name that one with --target" in message


@pytest.mark.parametrize("text, seconds", [("30d", 2_592_000), ("1.5d", 129_600), ("12h", 43_200)])
def test_ages(text: str, seconds: float) -> None:
    assert parse_age(text) == seconds


def test_ages_that_make_no_sense() -> None:
    with pytest.raises(UsageError, match="or 30d for days"):
        parse_age("d")
