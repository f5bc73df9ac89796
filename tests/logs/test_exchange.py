"""JSON lines out and in: what comes back, what is forgiven, and what is refused with its place."""

from __future__ import annotations

import json
import os
import random
import string
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgetune.errors import LogsError, OutputError
from edgetune.logs import Selection, TargetInfo, TuningLogs, export_file, import_file, open_logs
from edgetune.logs.exchange import line_of, read_file
from edgetune.logs.testing import CRASH, ELSEWHERE, HERE, record, target
from edgetune.records import Failure, FailureKind, Record, Stage, Timing

keys = st.text(string.ascii_letters + string.digits, min_size=1, max_size=64)
texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=60)
outcomes = st.one_of(
    st.builds(
        Timing,
        st.lists(st.floats(1e-300, 1e8), min_size=1, max_size=9).map(tuple),
        st.booleans(),
    ),
    st.builds(Failure, st.sampled_from(Stage), st.sampled_from(FailureKind), texts),
)
records = st.builds(
    Record,
    workload=keys,
    target=keys,
    device=texts.filter(bool),
    trace=texts.filter(bool),
    outcome=outcomes,
    versions=st.dictionaries(texts.filter(bool), texts, max_size=4),
    created_s=st.floats(1e-3, 1e11),
    task_name=texts,
    kind=keys,
)
infos = st.builds(
    TargetInfo,
    fingerprint=keys,
    name=texts,
    kind=keys.filter(lambda key: len(key) < 32),
    mtriple=texts,
    mcpu=texts,
    mattr=st.lists(texts.filter(bool), max_size=4).map(tuple),
    threads=st.integers(0, 65_536),
    vector_bits=st.integers(0, 65_536),
    gpu_arch=keys.filter(lambda key: len(key) < 32),
)


@pytest.fixture
def logs() -> Iterator[TuningLogs]:
    with open_logs("sqlite://") as opened:
        yield opened


def write(path: Path, *lines: str, end: str = "\n") -> Path:
    path.write_text("\n".join(lines) + end)
    return path


def changed(**changes: Any) -> str:
    """The line of a good record with some fields of it replaced; None takes a field out."""
    line = json.loads(line_of(record()))
    for name, value in changes.items():
        line["record"][name] = value
    line["record"] = {name: value for name, value in line["record"].items() if value is not None}
    return json.dumps(line)


@settings(max_examples=60, deadline=None)
@given(stored=st.lists(st.one_of(records, infos), max_size=6))
def test_export_and_import_bring_everything_back(
    stored: list[Record | TargetInfo], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("exchange") / "logs.jsonl"
    with open_logs("sqlite://") as first, open_logs("sqlite://") as second:
        for value in stored:
            if isinstance(value, Record):
                first.add(value)
            else:
                first.register_target(value)
        written = export_file(first, path)
        result = import_file(second, path)
        assert result.read == result.added == written
        assert list(second.every()) == list(first.every())
        assert second.targets() == first.targets()
        again = path.with_suffix(".again")
        export_file(second, again)
        assert again.read_bytes() == path.read_bytes()


@settings(max_examples=60, deadline=None)
@given(value=st.one_of(records, infos))
def test_a_line_is_ascii_and_gives_back_its_value(
    value: Record | TargetInfo, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = write(tmp_path_factory.mktemp("line") / "one.jsonl", line_of(value))
    assert path.read_bytes().isascii()
    assert list(read_file(path)) == [value]


@settings(max_examples=80, deadline=None)
@given(data=st.binary(max_size=300))
def test_arbitrary_bytes_are_an_error_or_a_torn_line(
    data: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("bytes") / "x.jsonl"
    path.write_bytes(data)
    try:
        values = list(read_file(path))
    except LogsError:
        return
    assert values in ([], [None])


def test_the_form_of_a_line() -> None:
    """What other programs may rely on, written out."""
    assert json.loads(line_of(record(Timing((0.5, 0.25), slow=True)))) == {
        "schema": 1,
        "record": {
            "workload": "a" * 16,
            "target": HERE,
            "device": "local",
            "task_name": "fused_conv2d_relu",
            "kind": "window",
            "created_s": 1.7e9,
            "versions": {"tvm": "0.27.0", "edgetune": "0.1.0"},
            "trace": "[[],[]]",
            "timing": {"times_s": [0.5, 0.25], "slow": True},
        },
    }
    assert json.loads(line_of(record(CRASH)))["record"]["failure"] == {
        "stage": "build",
        "kind": "crash",
        "message": "LLVM ERROR: out of registers",
    }
    assert json.loads(line_of(target())) == {
        "schema": 1,
        "target": {
            "fingerprint": HERE,
            "name": "board",
            "kind": "llvm",
            "mtriple": "aarch64-linux-gnu",
            "mcpu": "cortex-a76",
            "mattr": ["+dotprod"],
            "threads": 4,
            "vector_bits": 128,
            "gpu_arch": "",
        },
    }


def test_every_way_of_tearing_the_last_line(tmp_path: Path, logs: TuningLogs) -> None:
    """Whatever byte the crash came at, the lines before are imported and the torn one is told."""
    whole, last = line_of(record(trace="[1]")), line_of(record(trace='["\u20ac"]', created_s=1.5))
    data = f"{whole}\n{last}".encode()
    path = tmp_path / "torn.jsonl"
    for cut in range(len(whole) + 1, len(data) + 1):
        path.write_bytes(data[:cut])
        result = list(read_file(path))
        complete = cut == len(data)
        torn = not complete and cut > len(whole) + 1
        assert result[0] == record(trace="[1]")
        assert (None in result, len(result)) == (torn, 2 if torn or complete else 1)
    path.write_bytes(data[:-20])
    result = import_file(logs, path)
    assert (result.read, result.added, result.torn) == (1, 1, True)


def test_a_torn_line_that_was_appended_to_is_not_forgiven(tmp_path: Path, logs: TuningLogs) -> None:
    good = line_of(record())
    path = write(tmp_path / "x.jsonl", good, good[:50] + good, good)
    with pytest.raises(LogsError, match=r"x\.jsonl:2: this is not JSON; nothing was imported"):
        import_file(logs, path)
    assert list(logs.every()) == []


@pytest.mark.parametrize(
    "line, reason",
    [
        ("[]", "Input should be an object"),
        ("{}", "schema: Field required"),
        ('{"schema": 1}', "either a record or a target"),
        ('{"schema": 2, "measurement": {}}', "schema 2 is not the schema 1 .*; upgrade edgetune"),
        ('{"schema": 2}', "schema 2 is not the schema 1"),
        ('{"schema": true, "record": {}}', "schema"),
        (changed(extra=1), "record.extra: Extra inputs are not permitted"),
        (changed(workload=5), "record.workload: Input should be a valid string"),
        (changed(workload="x" * 65), "workload is .* it must be 1 to 64 letters"),
        (changed(target="../../etc"), "target is '../../etc'"),
        (changed(device=None), "record.device: Field required"),
        (changed(device="x" * 257), "device must be a text of 1 to 256"),
        (changed(trace="x" * 2_000_001), "trace must be a text of 1 to 2000000"),
        (changed(task_name="a\0"), "task_name holds a NUL"),
        (changed(timing=None), "either a timing or a failure"),
        (changed(failure={"stage": "run", "kind": "crash", "message": ""}), "either a timing or a failure"),
        (changed(timing={"times_s": []}), "times_s has 0 entries"),
        (changed(timing={"times_s": [0.1] * 10_001}), "times_s has 10001 entries"),
        (changed(timing={"times_s": ["0.1"]}), "times_s.0: Input should be a valid number"),
        (changed(timing={"times_s": [1e10]}), "below 1e[+]09 seconds"),
        (changed(timing={"times_s": [-1]}), "above 0"),
        (changed(timing={"times_s": [float("nan")]}), "finite number"),
        (changed(timing={"times_s": [float("inf")]}), "finite number"),
        (changed(timing={"times_s": [1.0], "slow": 1}), "slow: Input should be a valid boolean"),
        (changed(created_s="now"), "created_s: Input should be a valid number"),
        (changed(created_s=-1), "created_s is -1"),
        (changed(versions={"tvm": 1}), "versions.tvm: Input should be a valid string"),
        (changed(versions={str(n): "1" for n in range(33)}), "versions has over 32"),
        (changed(timing=None, failure={"stage": "run", "kind": "odd", "message": ""}), "failure.kind"),
    ],
)
def test_a_wrong_line_is_refused_with_its_place(
    tmp_path: Path, logs: TuningLogs, line: str, reason: str
) -> None:
    path = write(tmp_path / "x.jsonl", line_of(record(trace="[1]")), line, line_of(record(trace="[2]")))
    with pytest.raises(LogsError, match=rf"x\.jsonl:2: .*{reason}"):
        import_file(logs, path)
    assert list(logs.every()) == []


def test_a_wrong_last_line_is_not_torn(tmp_path: Path, logs: TuningLogs) -> None:
    path = write(tmp_path / "x.jsonl", line_of(record()), changed(device=7), end="")
    with pytest.raises(LogsError, match=r"x\.jsonl:2: record.device"):
        import_file(logs, path)


def test_an_endless_line_is_not_read_to_its_end(tmp_path: Path, logs: TuningLogs) -> None:
    path = tmp_path / "zeros"
    with path.open("wb") as file:
        file.truncate(10 << 30)  # sparse: takes no space
    with pytest.raises(LogsError, match=r"zeros:1: the line is longer than 16 MiB"):
        import_file(logs, path)


def test_deep_nesting(tmp_path: Path, logs: TuningLogs) -> None:
    path = write(tmp_path / "deep", "[" * 200_000 + "]" * 200_000, line_of(record()))
    with pytest.raises(LogsError, match=r"deep:1: "):
        import_file(logs, path)


def test_blank_lines_and_foreign_line_ends(tmp_path: Path, logs: TuningLogs) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(f"\r\n{line_of(target())}\r\n\n  \n{line_of(record())}\r\n".encode())
    result = import_file(logs, path)
    assert (result.read, result.added, result.targets, result.torn) == (1, 1, 1, False)


def test_joined_files_and_an_empty_one(tmp_path: Path, logs: TuningLogs) -> None:
    empty = write(tmp_path / "empty", end="")
    assert import_file(logs, empty).read == 0
    lines = [line_of(target()), line_of(record()), line_of(target()), line_of(record(trace="[2]"))]
    result = import_file(logs, write(tmp_path / "joined", *lines))
    assert (result.read, result.added, result.targets) == (2, 2, 1)


def test_a_missing_file_and_a_folder(tmp_path: Path, logs: TuningLogs) -> None:
    with pytest.raises(LogsError, match=r"cannot be read \(No such file"):
        import_file(logs, tmp_path / "nothing")
    with pytest.raises(LogsError, match=r"cannot be read \(Is a directory"):
        import_file(logs, tmp_path)


def test_a_selection_is_exported(tmp_path: Path, logs: TuningLogs) -> None:
    logs.register_target(target())
    logs.register_target(target(ELSEWHERE))
    random.seed(1)
    times = random.sample(range(1, 100), 20)
    logs.add_many(record(time * 1e-3, trace=f"[{time}]") for time in times)
    logs.add_many([record(CRASH, trace="[0]"), record(target=ELSEWHERE)])
    path = tmp_path / "best.jsonl"
    assert export_file(logs, path, Selection(target=HERE, failures=False, best=3)) == 3
    found = list(read_file(path))
    assert found[0] == target()
    assert {value.trace for value in found[1:]} == {f"[{time}]" for time in sorted(times)[:3]}


def test_an_export_replaces_the_file_whole_or_not_at_all(tmp_path: Path, logs: TuningLogs) -> None:
    path = tmp_path / "logs.jsonl"
    path.write_text("old")
    logs.add(record())
    with logs.writing() as connection:
        connection.exec_driver_sql(
            "UPDATE edgetune_records SET failure_stage = 'x', failure_kind = 'odd', median_s = NULL"
        )
    with pytest.raises(LogsError, match="cannot be read"):
        export_file(logs, path)
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["logs.jsonl"]


def test_an_export_through_a_link_and_to_a_pipe(tmp_path: Path, logs: TuningLogs) -> None:
    logs.add(record())
    (tmp_path / "real").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    export_file(logs, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == line_of(record()) + "\n"
    os.mkfifo(tmp_path / "pipe")
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append((tmp_path / "pipe").read_text()))
    reader.start()
    export_file(logs, tmp_path / "pipe")
    reader.join(10)
    assert got == [line_of(record()) + "\n"]


@pytest.mark.parametrize("name", ["no/such/folder/x.jsonl", ".", "/dev/full"])
def test_an_export_that_cannot_be_written(tmp_path: Path, logs: TuningLogs, name: str) -> None:
    logs.add(record())
    with pytest.raises(OutputError, match=r"cannot be written .* free space, change its permissions"):
        export_file(logs, tmp_path / name)
