"""Import of databases that MetaSchedule itself has written, whole, torn and wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tvm
import tvm.s_tir
from tvm import te
from tvm.s_tir import meta_schedule as ms

from edgetune.cli.logs import hash_module
from edgetune.errors import LogsError
from edgetune.graph.workload import workload_hash
from edgetune.logs import Match, TuningLogs, import_metaschedule, is_metaschedule, open_logs, trace_key
from edgetune.logs.metaschedule import RECORDS, WORKLOADS, contradicts
from edgetune.records import Failure, Timing
from edgetune.targets import Target, load_target
from tests.logs.hashers import crashing_hash, exploding_hash, fake_hash

JSON_TARGET = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a76", "num-cores": 4}


def matmul(size: int) -> tvm.IRModule:
    a, b = te.placeholder((size, size), name="A"), te.placeholder((size, size), name="B")
    k = te.reduce_axis((0, size))
    c = te.compute((size, size), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    return tvm.IRModule({"main": te.create_prim_func([a, b, c])})


def schedule(mod: tvm.IRModule, factor: int) -> tvm.s_tir.Schedule:
    sch = tvm.s_tir.Schedule(mod)
    loop = sch.get_loops(sch.get_sblock("C"))[0]
    sch.split(loop, [None, factor])
    return sch


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two workloads; a time, a failure as 1e10 seconds, no time, and a record of another CPU."""
    folder = tmp_path_factory.mktemp("metaschedule")
    database = ms.database.JSONDatabase(work_dir=str(folder))
    ours = tvm.target.Target(JSON_TARGET)
    other = tvm.target.Target({**JSON_TARGET, "mcpu": "cortex-a55"})
    small, large = matmul(16), matmul(32)
    entries = [
        (small, 2, [1e-5, 3e-5, 2e-5], ours),
        (small, 4, [1e10], ours),
        (large, 2, [7e-5], ours),
        (large, 4, None, ours),
        (large, 8, [1e-9], other),
    ]
    for mod, factor, seconds, target in entries:
        workload = database.commit_workload(mod)
        trace = schedule(mod, factor).trace
        database.commit_tuning_record(ms.database.TuningRecord(trace, workload, seconds, target, None))
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    for name in (WORKLOADS, RECORDS):
        (tmp_path / name).write_bytes((original / name).read_bytes())
    return tmp_path


@pytest.fixture
def logs() -> Iterator[TuningLogs]:
    with open_logs("sqlite://") as opened:
        yield opened


def board(**changes: Any) -> Target:
    return load_target("raspberry-pi-5").model_copy(update=changes)


def test_what_metaschedule_wrote(original: Path, logs: TuningLogs) -> None:
    assert is_metaschedule(original)
    result = import_metaschedule(logs, original, [board()], hash_module)
    assert (result.read, result.added, result.targets, result.torn) == (4, 4, 1, False)
    ((reason, count),) = result.skipped.items()
    assert count == 1
    assert "another target" in reason
    assert "cortex-a55" in reason
    small, large = workload_hash(matmul(16)), workload_hash(matmul(32))
    first, failed = logs.records([small], board())
    assert first.outcome == Timing((1e-5, 3e-5, 2e-5))
    assert isinstance(failed.outcome, Failure)
    assert "MetaSchedule recorded a failure" in failed.outcome.message
    assert first.device == "metaschedule"
    assert first.created_s == (original / RECORDS).stat().st_mtime
    timed, untimed = logs.records([large], board())
    assert timed.outcome == Timing((7e-5,))
    assert isinstance(untimed.outcome, Failure)
    assert [info.name for info in logs.targets()] == ["raspberry-pi-5"]
    again = import_metaschedule(logs, original, [board()], hash_module)
    assert (again.read, again.added) == (4, 0)


def test_an_imported_trace_is_the_schedule_again(original: Path, logs: TuningLogs) -> None:
    """It can be applied, and it is the same candidate as the trace that Python writes."""
    import_metaschedule(logs, original, [board()], hash_module)
    best = logs.best(workload_hash(matmul(32)), board())
    assert best is not None
    expected = schedule(matmul(32), 2)
    assert trace_key(best.trace) == trace_key(json.dumps(json_of(expected.trace)))
    applied = tvm.s_tir.Schedule(matmul(32))
    tvm.s_tir.schedule.Trace.apply_json_to_schedule(json.loads(best.trace), applied)
    tvm.ir.assert_structural_equal(applied.mod, expected.mod)


def json_of(trace: Any) -> Any:
    from edgetune.metaschedule import trace_text

    return json.loads(trace_text(trace))


def torn(path: Path, cut: int = 20) -> None:
    path.write_bytes(path.read_bytes()[:-cut])


def test_a_torn_last_record_is_left_out(folder: Path, logs: TuningLogs) -> None:
    torn(folder / RECORDS)
    result = import_metaschedule(logs, folder, [board()], fake_hash)
    assert (result.read, result.added, result.torn, result.skipped) == (4, 4, True, {})


def test_the_records_of_a_torn_workload_are_left_out(folder: Path, logs: TuningLogs) -> None:
    torn(folder / WORKLOADS)
    result = import_metaschedule(logs, folder, [board()], fake_hash)
    assert (result.read, result.torn) == (2, True)
    assert result.skipped == {"its workload's line is incomplete": 3}


def edit(path: Path, number: int, line: str) -> None:
    lines = path.read_text().splitlines()
    lines[number - 1] = line
    path.write_text("\n".join(lines) + "\n")


TRACE = "[[],[]]"


@pytest.mark.parametrize(
    "file, line, reason",
    [
        (RECORDS, '[0,[[[["GetSBl', "this is not JSON"),
        (RECORDS, "{}", "a record is"),
        (RECORDS, "[0]", "a record is"),
        (RECORDS, f"[true,[{TRACE},[1.0],null,null]]", "a record is"),
        (RECORDS, f"[-1,[{TRACE},[1.0],null,null]]", "a record is"),
        (RECORDS, f"[7,[{TRACE},[1.0],null,null]]", "there is no workload 7"),
        (RECORDS, '[0,["trace",[1.0],null,null]]', "the trace is not"),
        (RECORDS, f'[0,[{TRACE},"1.0",null,null]]', "run times are not a list"),
        (RECORDS, f"[0,[{TRACE},[true],null,null]]", "run times are not a list"),
        (RECORDS, f"[0,[{TRACE},[-1.0],null,null]]", "run times are not a list"),
        (RECORDS, f"[0,[{TRACE},[NaN],null,null]]", "run times are not a list"),
        (RECORDS, f'[0,[{TRACE},[1.0],"llvm",null]]', "the target is not a JSON object"),
        (RECORDS, f'[0,[{TRACE},[1.0],{{"kind":"llvm","mattr":[["x"]]}},null]]', "mattr is not a list"),
        (WORKLOADS, '["1",', "this is not JSON"),
        (WORKLOADS, '["1"]', "a workload is"),
        (WORKLOADS, '["1","%%%"]', "not base64"),
        (WORKLOADS, '["1","AAAA"]', "another length than it says"),
        (WORKLOADS, '["1","AQAAAAAAAAD/"]', "not a workload of MetaSchedule"),
    ],
)
def test_a_wrong_line_is_refused_with_its_place(
    folder: Path, logs: TuningLogs, file: str, line: str, reason: str
) -> None:
    edit(folder / file, 1, line)
    with pytest.raises(LogsError, match=rf"{file}:1: .*{reason}.*; nothing was imported"):
        import_metaschedule(logs, folder, [board()], fake_hash)
    assert list(logs.every()) == []


def test_a_wrong_line_near_the_end_leaves_nothing_half_done(folder: Path, logs: TuningLogs) -> None:
    edit(folder / RECORDS, 4, "[]")
    with pytest.raises(LogsError, match=f"{RECORDS}:4: "):
        import_metaschedule(logs, folder, [board()], fake_hash)
    assert list(logs.every()) == []
    assert logs.targets() == []


@pytest.mark.parametrize(
    "hasher, reason",
    [(exploding_hash, "ValueError: no such node type"), (crashing_hash, "TVM crashed on it")],
)
def test_a_module_that_tvm_cannot_read(folder: Path, logs: TuningLogs, hasher: Any, reason: str) -> None:
    """Not even where it takes its process down."""
    with pytest.raises(LogsError, match=f"workload 0 cannot be read by this TVM .{reason}"):
        import_metaschedule(logs, folder, [board()], hasher)


def test_a_missing_file(folder: Path, logs: TuningLogs) -> None:
    (folder / WORKLOADS).unlink()
    with pytest.raises(LogsError, match=f"has no {WORKLOADS}; name the work_dir"):
        import_metaschedule(logs, folder, [board()], fake_hash)
    (folder / RECORDS).unlink()
    assert not is_metaschedule(folder)


def import_with(logs: TuningLogs, folder: Path, *targets: Target, match: Match) -> list[str]:
    import_metaschedule(logs, folder, targets, fake_hash, match=match)
    return sorted({record.target for record in logs.every()})


def test_only_what_is_sure_is_matched_by_itself(folder: Path, logs: TuningLogs) -> None:
    a76, a55, threads = board(), board(mcpu="cortex-a55"), board(threads=2)
    found = import_with(logs, folder, a76, a55, threads, match=Match.EXACT)
    assert found == sorted([a76.fingerprint, a55.fingerprint])
    assert len(list(logs.every())) == 5


@pytest.mark.parametrize(
    "described, reason",
    [
        (None, "does not say which CPU"),
        ({"kind": "llvm", "num-cores": 4}, "does not say which CPU"),
        ({"kind": "llvm", "mcpu": "cortex-a76"}, "does not say which CPU"),
        (JSON_TARGET, "may be raspberry-pi-5 or twin"),
        ({**JSON_TARGET, "mcpu": "znver4"}, "for another target"),
    ],
)
def test_what_is_not_sure_is_not_guessed(
    folder: Path, logs: TuningLogs, described: dict[str, Any] | None, reason: str
) -> None:
    (folder / RECORDS).write_text(f"[0,[{TRACE},[1.0],{json.dumps(described)},null]]\n")
    twin = board(name="twin", l2_bytes=1)
    with pytest.raises(LogsError, match=f"no record is for .*{reason}.*Name the target"):
        import_with(logs, folder, board(), twin, match=Match.EXACT)
    assert list(logs.every()) == []


def test_a_named_target_takes_what_does_not_contradict_it(folder: Path, logs: TuningLogs) -> None:
    lines = [f"[0,[{TRACE},[1.0],{json.dumps(target)},null]]" for target in (None, {"kind": "llvm"})]
    (folder / RECORDS).write_text("\n".join(lines) + "\n")
    assert import_with(logs, folder, board(), match=Match.COMPATIBLE) == [board().fingerprint]


def test_any_target_takes_everything(folder: Path, logs: TuningLogs) -> None:
    assert import_with(logs, folder, board(), match=Match.ANY) == [board().fingerprint]
    assert len(list(logs.every())) == 5


@pytest.mark.parametrize(
    "described, expected",
    [
        (JSON_TARGET, False),
        ({"kind": "cuda"}, True),
        ({"kind": "llvm", "mcpu": "cortex-a72"}, True),
        ({"kind": "llvm", "num-cores": 1}, True),
        ({"kind": "llvm", "mtriple": "x86_64-linux-gnu"}, True),
        ({"kind": "llvm", "mtriple": "aarch64-unknown-linux-musl"}, False),
        ({"kind": "llvm", "mattr": ["+sve"]}, True),
        ({"kind": "llvm", "mattr": []}, False),
    ],
)
def test_contradictions(described: dict[str, Any], expected: bool) -> None:
    assert contradicts(described, board(mattr=())) is expected


def test_a_gpu_is_known_by_its_architecture() -> None:
    """Its CPU is the host, which a record does not name at its top."""
    orin = load_target("jetson-orin-cuda")
    assert not contradicts({"kind": "cuda", "arch": "sm_87"}, orin)
    assert contradicts({"kind": "cuda", "arch": "sm_86"}, orin)
    assert not contradicts(json.loads(str(orin.tvm())), orin)


def test_a_target_does_not_contradict_its_own_description() -> None:
    for name in ("raspberry-pi-5", "zen4", "riscv64", "riscv64-v", "jetson-orin"):
        target = load_target(name)
        described = json.loads(str(target.tvm()))
        assert not contradicts(described, target), name
