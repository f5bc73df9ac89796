"""The layer of shipped records below the user's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgetune.errors import LogsError
from edgetune.logs import LayeredLogs, TargetInfo, TuningLogs, open_logs, open_shipped
from edgetune.logs.exchange import line_of, read_file
from edgetune.logs.testing import CRASH, ELSEWHERE, HERE, record, target
from edgetune.records import Record
from edgetune.resources import data_path
from edgetune.targets import list_targets

WORKLOAD = "a" * 16


def ship(folder: Path, info: TargetInfo, *values: Record | TargetInfo, end: str = "\n") -> Path:
    path = folder / f"{info.name}-{info.fingerprint}.jsonl"
    path.write_text("\n".join(map(line_of, [info, *values])) + end)
    return path


@pytest.fixture
def logs() -> TuningLogs:
    with open_logs("sqlite://") as opened:
        yield opened


def test_the_file_of_the_target_is_read(tmp_path: Path) -> None:
    ship(tmp_path, target(), record(), record(CRASH, trace="[1]"))
    ship(tmp_path, target(ELSEWHERE, name="board-two"), record(target=ELSEWHERE))
    (tmp_path / "README.md").write_text("not records")
    with open_shipped(target(), tmp_path) as shipped:
        assert shipped.records(["a" * 16], HERE) == [record(), record(CRASH, trace="[1]")]
    with open_shipped(target("f" * 16, mtriple="riscv64-linux-gnu"), tmp_path) as shipped:
        assert list(shipped.every()) == []


def test_other_targets_files_cost_one_line(tmp_path: Path) -> None:
    """Only what may be of use is read to its end."""
    ship(tmp_path, target(), record())
    wide = ship(tmp_path, target(ELSEWHERE, name="wide", vector_bits=512))
    wide.write_text(wide.read_text() + "damaged\ndamaged\n")
    with open_shipped(target(), tmp_path) as shipped:
        assert list(shipped.every()) == [record()]


@pytest.mark.parametrize(
    "values, end, reason",
    [
        ([record(target=ELSEWHERE)], "\n", "for another target than its name says"),
        ([target(ELSEWHERE)], "\n", "for another target than its name says"),
        ([record()], '\n{"schema":1,"rec', "incomplete line"),
    ],
)
def test_a_damaged_file(tmp_path: Path, values: list[Record | TargetInfo], end: str, reason: str) -> None:
    ship(tmp_path, target(), *values, end=end)
    with pytest.raises(LogsError, match=f"shipped tuning logs .* are damaged: .*{reason}.*install"):
        open_shipped(target(), tmp_path)


def test_a_file_that_does_not_start_with_its_target(tmp_path: Path) -> None:
    (tmp_path / f"x-{HERE}.jsonl").write_text(line_of(record()) + "\n")
    with pytest.raises(LogsError, match="does not start with the line of its target"):
        open_shipped(target(), tmp_path)


def test_the_users_record_comes_first(tmp_path: Path, logs: TuningLogs) -> None:
    ship(tmp_path, target(), record(1e-6, trace="[1]", device="lab"))
    layered = LayeredLogs(logs, tmp_path)
    assert layered.best(WORKLOAD, target()) == record(1e-6, trace="[1]", device="lab")
    logs.add(record(CRASH, trace="[2]"))
    assert layered.best(WORKLOAD, target()) == record(1e-6, trace="[1]", device="lab")
    logs.add(record(1e-3, trace="[3]"))
    assert layered.best(WORKLOAD, target()) == record(1e-3, trace="[3]")
    assert layered.best("b" * 16, target()) is None
    assert list(logs.every()) == [record(CRASH, trace="[2]"), record(1e-3, trace="[3]")]


def test_similar_records_of_both_layers(tmp_path: Path, logs: TuningLogs) -> None:
    near, nearer = target(ELSEWHERE, name="near", threads=1), target("1" * 16, name="nearer", threads=3)
    ship(tmp_path, near, record(1e-6, target=ELSEWHERE))
    layered = LayeredLogs(logs, tmp_path)
    assert layered.best(WORKLOAD, target()) is None
    assert [found.target for found in layered.similar(WORKLOAD, target())] == [ELSEWHERE]
    logs.register_target(nearer)
    logs.add(record(target=nearer.fingerprint))
    assert [found.target for found in layered.similar(WORKLOAD, target())] == ["1" * 16, ELSEWHERE]
    assert [found.target for found in layered.similar(WORKLOAD, target(), limit=1)] == ["1" * 16]


def test_instructions_of_another_cpu_are_not_carried_over(logs: TuningLogs) -> None:
    """LLVM would take the process down."""
    other = target(ELSEWHERE, mcpu="cortex-x4")
    logs.register_target(other)
    logs.add(record(1e-6, target=ELSEWHERE, trace='[[["Tensorize",["b0","dot_4x4"],[1],[]]],[]]'))
    layered = LayeredLogs(logs, Path("nothing"))
    assert layered.similar(WORKLOAD, target()) == []
    assert len(layered.similar(WORKLOAD, target(mcpu="cortex-x4", threads=2))) == 1
    assert layered.similar(WORKLOAD, target(mcpu="cortex-x4", threads=2, mattr=())) == []


@pytest.mark.parametrize("gpu, expected", [("sm_87", 1), ("sm_72", 0), ("", 0)])
def test_gpus_are_similar_by_architecture(logs: TuningLogs, gpu: str, expected: int) -> None:
    kind = "cuda" if gpu else "llvm"
    logs.register_target(target(ELSEWHERE, kind=kind, gpu_arch=gpu))
    logs.add(record(target=ELSEWHERE))
    orin = target(kind="cuda", gpu_arch="sm_87", vector_bits=256)
    assert len(LayeredLogs(logs, Path("nothing")).similar(WORKLOAD, orin)) == expected


def test_what_is_shipped_is_whole_and_for_a_shipped_target() -> None:
    """Each file by its own rules, so that a changed target does not leave records behind."""
    names = {f"{info.name}-{info.fingerprint}.jsonl" for info in list_targets()}
    files = sorted(data_path("tuning_logs").glob("*.jsonl"))
    assert {path.name for path in files} <= names
    for path in files:
        first, *records = read_file(path)
        assert isinstance(first, TargetInfo)
        assert records
        assert {value.target for value in records} == {path.stem.rpartition("-")[2]}
