"""Which record a kernel is compiled with, and that no other target's record passes for one's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgetune.choices import choose
from edgetune.logs.database import TuningLogs
from edgetune.logs.exchange import export_file
from edgetune.logs.opening import open_logs
from edgetune.logs.shipped import LayeredLogs
from edgetune.records import Choice, Failure, FailureKind, Record, Source, Stage, Task, Timing
from edgetune.targets import Target

TASK = Task("fused_conv2d_add_relu", "a" * 16, "{}")


def make_target(name: str = "board", **changes: object) -> Target:
    fields = {
        "name": name,
        "kind": "llvm",
        "mtriple": "aarch64-linux-gnu",
        "mcpu": "cortex-a76",
        "cores": 4,
        "threads": 4,
        "vector_bits": 128,
        "vector_registers": 32,
        "l1d_bytes": 65536,
        "l2_bytes": 524288,
    }
    return Target.model_validate(fields | changes)


TARGET = make_target()


def record(target: Target, trace: str, outcome: Timing | Failure | float, device: str = "pi") -> Record:
    if isinstance(outcome, float):
        outcome = Timing((outcome,))
    return Record(TASK.workload, target.fingerprint, device, trace, outcome)


@pytest.fixture
def logs() -> Iterator[TuningLogs]:
    with open_logs("sqlite://") as opened:
        yield opened


def only(logs: TuningLogs, folder: Path, **options: Any) -> Choice:
    (choice,) = choose([TASK], TARGET, LayeredLogs(logs, folder), **options)
    return choice


def ship(folder: Path, target: Target, *records: Record) -> None:
    with open_logs("sqlite://") as source:
        source.register_target(target)
        source.add_many(records)
        export_file(source, folder / f"{target.name}-{target.fingerprint}.jsonl")


def test_nothing_known(logs: TuningLogs, tmp_path: Path) -> None:
    assert only(logs, tmp_path) == Choice(TASK, Source.DEFAULT)


def test_the_fastest_own_record(logs: TuningLogs, tmp_path: Path) -> None:
    logs.add(record(TARGET, "[1]", 3e-4))
    logs.add(record(TARGET, "[2]", 2e-4, device="other-pi"))
    assert only(logs, tmp_path) == Choice(TASK, Source.RECORD, "[2]", 2e-4)


def test_a_shipped_record_where_there_is_no_own(logs: TuningLogs, tmp_path: Path) -> None:
    ship(tmp_path, TARGET, record(TARGET, "[3]", 1e-4))
    assert only(logs, tmp_path) == Choice(TASK, Source.RECORD, "[3]", 1e-4)
    logs.add(record(TARGET, "[1]", 3e-4))
    assert only(logs, tmp_path) == Choice(TASK, Source.RECORD, "[1]", 3e-4)


def test_failures_are_no_schedules(logs: TuningLogs, tmp_path: Path) -> None:
    logs.add(record(TARGET, "[1]", Failure(Stage.RUN, FailureKind.CRASH, "it fell over")))
    assert only(logs, tmp_path).source == Source.DEFAULT


def test_a_similar_target_is_named_as_such(logs: TuningLogs, tmp_path: Path) -> None:
    similar = make_target("smaller-board", threads=2)
    ship(tmp_path, similar, record(similar, "[5]", 1e-5))
    assert only(logs, tmp_path) == Choice(TASK, Source.TRANSFERRED, "[5]", None)
    logs.add(record(TARGET, "[6]", 1.0))
    assert only(logs, tmp_path) == Choice(TASK, Source.RECORD, "[6]", 1.0)


def test_a_different_machine_counts_for_nothing(logs: TuningLogs, tmp_path: Path) -> None:
    for other in (
        make_target("wide", vector_bits=512),
        make_target("pc", mtriple="x86_64-linux-gnu", mcpu="znver4"),
    ):
        logs.register_target(other)
        logs.add(record(other, "[7]", 1e-6))
    assert only(logs, tmp_path) == Choice(TASK, Source.DEFAULT)


def test_what_does_not_fit_is_passed_over(logs: TuningLogs, tmp_path: Path) -> None:
    similar = make_target("smaller-board", threads=2)
    logs.register_target(similar)
    logs.add(record(TARGET, "[1]", 1e-4))
    logs.add(record(similar, "[2]", 1e-4))
    assert only(logs, tmp_path, fits=lambda choice: choice.trace != "[1]").trace == "[2]"
    assert only(logs, tmp_path, fits=lambda choice: False) == Choice(TASK, Source.DEFAULT)
