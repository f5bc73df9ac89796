"""Which record a kernel is compiled with, and that no other target's record passes for one's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from edgetune.choices import choose, open_shipped
from edgetune.logs.database import TuningLogs
from edgetune.logs.opening import open_logs
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


@pytest.fixture
def shipped() -> Iterator[TuningLogs]:
    with open_logs("sqlite://") as opened:
        yield opened


def only(logs: TuningLogs, *others: TuningLogs) -> Choice:
    (choice,) = choose([TASK], TARGET, [logs, *others])
    return choice


def test_nothing_known(logs: TuningLogs) -> None:
    assert only(logs) == Choice(TASK, Source.DEFAULT)


def test_the_fastest_own_record(logs: TuningLogs, shipped: TuningLogs) -> None:
    logs.add(record(TARGET, "[1]", 3e-4))
    logs.add(record(TARGET, "[2]", 2e-4, device="other-pi"))
    shipped.add(record(TARGET, "[3]", 2.5e-4))
    assert only(logs, shipped) == Choice(TASK, Source.RECORD, "[2]", 2e-4)
    shipped.add(record(TARGET, "[4]", 1e-4))
    assert only(logs, shipped) == Choice(TASK, Source.RECORD, "[4]", 1e-4)


def test_failures_and_cut_short_measurements(logs: TuningLogs, shipped: TuningLogs) -> None:
    logs.add(record(TARGET, "[1]", Failure(Stage.RUN, FailureKind.CRASH, "it fell over")))
    assert only(logs).source == Source.DEFAULT
    logs.add(record(TARGET, "[2]", Timing((1e-4,), slow=True)))
    assert only(logs).trace == "[2]"
    shipped.add(record(TARGET, "[3]", 2e-4))
    assert only(logs, shipped).trace == "[3]"


def test_a_similar_target_is_named_as_such(logs: TuningLogs, shipped: TuningLogs) -> None:
    similar = make_target("smaller-board", threads=2)
    shipped.register_target(similar)
    shipped.add(record(similar, "[5]", 1e-5))
    assert only(logs, shipped) == Choice(TASK, Source.TRANSFERRED, "[5]", None)
    logs.add(record(TARGET, "[6]", 1.0))
    assert only(logs, shipped) == Choice(TASK, Source.RECORD, "[6]", 1.0)


def test_a_different_machine_counts_for_nothing(logs: TuningLogs) -> None:
    for other in (
        make_target("wide", vector_bits=512),
        make_target("pc", mtriple="x86_64-linux-gnu", mcpu="znver4"),
    ):
        logs.register_target(other)
        logs.add(record(other, "[7]", 1e-6))
    assert only(logs) == Choice(TASK, Source.DEFAULT)


def test_the_shipped_records_can_be_read() -> None:
    with open_shipped() as opened:
        assert all(info.fingerprint for info in opened.targets())
