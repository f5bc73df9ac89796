"""The contract that every database of tuning logs must keep, as a class of tests.

Subclass ``LogsContract``, say in ``open_logs`` how to open the database, and let pytest (or any other
runner of methods named ``test_*``) run it. ``open_logs`` must give the *same* empty database for all
calls within one test and another one for the next test::

    class TestMyDatabase(LogsContract):
        @pytest.fixture(autouse=True)
        def _empty_database(self, tmp_path):
            self.path = tmp_path / "logs.sqlite"

        def open_logs(self):
            return open_logs(self.path)
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from edgetune.errors import LogsError
from edgetune.logs.database import Selection, TuningLogs
from edgetune.logs.exchange import export, export_file, import_file, merge
from edgetune.logs.prune import PruneRule, prune
from edgetune.logs.similar import similar
from edgetune.logs.stats import target_stats, workload_stats
from edgetune.logs.values import InvalidRecordError, TargetInfo
from edgetune.records import Failure, FailureKind, Record, Stage, Timing

HERE, ELSEWHERE = "0123456789abcdef", "fedcba9876543210"
"""Fingerprints of two targets."""

LOST = Failure(Stage.RUN, FailureKind.DEVICE_LOST, "the board rebooted")
TIMEOUT = Failure(Stage.RUN, FailureKind.TIMEOUT, "took over 10 s")
CRASH = Failure(Stage.BUILD, FailureKind.CRASH, "LLVM ERROR: out of registers")
WRONG = Failure(Stage.CHECK, FailureKind.WRONG_RESULT, "differs by 3.5")


def record(
    outcome: Timing | Failure | float = 1e-3,
    *,
    trace: str = "[[],[]]",
    workload: str = "a" * 16,
    target: str = HERE,
    device: str = "local",
    created_s: float = 1.7e9,
) -> Record:
    """A record; a plain number is one measured time in seconds."""
    return Record(
        workload=workload,
        target=target,
        device=device,
        trace=trace,
        outcome=Timing((outcome,)) if isinstance(outcome, float) else outcome,
        versions={"tvm": "0.27.0", "edgetune": "0.1.0"},
        created_s=created_s,
        task_name="fused_conv2d_relu",
        kind="window",
    )


def target(fingerprint: str = HERE, **changes: object) -> TargetInfo:
    """A small ARM board."""
    info = TargetInfo(fingerprint, "board", "llvm", "aarch64-linux-gnu", "cortex-a76", ("+dotprod",), 4, 128)
    return replace(info, **changes)  # type: ignore[arg-type]  # the caller's fields


class LogsContract(ABC):
    """What is promised of ``TuningLogs`` on any database. See the module for how to use it."""

    @abstractmethod
    def open_logs(self) -> TuningLogs:
        """Open this test's database, empty at first."""

    def test_a_record_comes_back_as_it_was(self) -> None:
        """All fields, floats to the last bit, any Unicode."""
        times = (1e-3, 0.1 + 0.2, 5e-324, 1.7976931348623157e8)
        timed = replace(record(Timing(times, slow=True), trace='[["a\u20ac\U0001f600",1e-05],[]]'))
        failed = record(replace(CRASH, message="line 1\nline 2\t'\"\\ \u00e9\U0001f600"), trace="[[],[1]]")
        with self.open_logs() as logs:
            assert logs.add(timed)
            assert logs.add(failed)
            assert logs.records([timed.workload], HERE) == [timed, failed]

    def test_what_was_added_is_there_for_others_at_once(self) -> None:
        """``add`` commits: a second connection sees the record, and so does whoever opens later."""
        with self.open_logs() as writer, self.open_logs() as reader:
            writer.add(record())
            assert reader.records(["a" * 16], HERE) == [record()]
        with self.open_logs() as later:
            assert later.records(["a" * 16], HERE) == [record()]

    def test_no_time_means_now(self) -> None:
        """A record without ``created_s`` gets the present."""
        with self.open_logs() as logs:
            logs.add(record(created_s=0.0))
            (stored,) = logs.records(["a" * 16], HERE)
            assert stored.created_s > 1.7e9

    def test_unstorable_characters_of_a_message_are_replaced(self) -> None:
        """A crashed compiler prints anything; its failure must be stored all the same."""
        with self.open_logs() as logs:
            logs.add(record(replace(CRASH, message="a\0b\ud800c" + "x" * 100_000)))
            (stored,) = logs.records(["a" * 16], HERE)
            assert isinstance(stored.outcome, Failure)
            assert stored.outcome.message.startswith("a\ufffdb\ufffdc")
            assert len(stored.outcome.message) <= 16_000

    def test_invalid_records_are_refused(self) -> None:
        """None of them leaves a trace in the database."""
        invalid = [
            record(workload=""),
            record(workload="x" * 65),
            record(target="no such'; DROP TABLE edgetune_records"),
            record(device=""),
            record(device="a\0b"),
            record(trace=""),
            record(Timing(())),
            record(float("nan")),
            record(float("inf")),
            record(1e10),
            record(0.0),
            record(-1.0),
            record(created_s=float("nan")),
            record(created_s=-1.0),
        ]
        with self.open_logs() as logs:
            for wrong in invalid:
                try:
                    logs.add(wrong)
                except InvalidRecordError:
                    continue
                raise AssertionError(f"not refused: {wrong}")
            assert list(logs.every()) == []

    def test_another_targets_record_is_never_given(self) -> None:
        """However good it is, and whatever is asked."""
        with self.open_logs() as logs:
            logs.add(record(1e-9, target=ELSEWHERE))
            assert logs.records(["a" * 16], HERE) == []
            assert logs.best("a" * 16, HERE) is None
            logs.add(record(1.0))
            assert logs.records(["a" * 16], HERE) == [record(1.0)]
            assert logs.best("a" * 16, HERE) == record(1.0)

    def test_no_query_without_a_target(self) -> None:
        """An empty target is an error, not everybody's records."""
        with self.open_logs() as logs:
            for query in (lambda: logs.records(["a" * 16], ""), lambda: logs.best("a" * 16, "")):
                try:
                    query()
                except InvalidRecordError:
                    continue
                raise AssertionError("not refused")

    def test_records_of_some_workloads_and_one_device(self) -> None:
        """In the order they were stored; unknown workloads and devices give nothing."""
        first, second = record(workload="b" * 16), record(workload="a" * 16, device="board")
        third = record(workload="c" * 16)
        with self.open_logs() as logs:
            assert logs.add_many([first, second, third]) == 3
            assert logs.records(["c" * 16, "a" * 16, "f" * 16], HERE) == [second, third]
            assert logs.records(["c" * 16, "a" * 16], HERE, device="board") == [second]
            assert logs.records([], HERE) == []
            assert logs.records(["a" * 16], HERE, device="phone") == []

    def test_the_best_is_the_fastest_full_measurement(self) -> None:
        """By median; one cut short as slow only where there is no other; failures never."""
        with self.open_logs() as logs:
            logs.add(record(CRASH, trace="[0]"))
            assert logs.best("a" * 16, HERE) is None
            slow = record(Timing((1e-6,), slow=True), trace="[1]")
            logs.add(slow)
            assert logs.best("a" * 16, HERE) == slow
            fast = record(Timing((1e-3, 9.0, 1e-3)), trace="[2]", device="board")
            logs.add(fast)
            logs.add(record(2e-3, trace="[3]"))
            assert logs.best("a" * 16, HERE) == fast
            assert logs.best("a" * 16, HERE, device="local") == record(2e-3, trace="[3]")

    def test_a_candidate_is_stored_once(self) -> None:
        """Whatever the spelling of its trace; another device is another candidate."""
        with self.open_logs() as logs:
            assert logs.add(record(1e-3, trace='[["x",true,1.0],[]]'))
            assert not logs.add(record(5e-4, trace='[["x", 1, 1], [ ]]', created_s=1.8e9))
            assert logs.add(record(trace='[["x",true,1.0],[]]', device="board"))
            assert [r.outcome for r in logs.records(["a" * 16], HERE, "local")] == [Timing((1e-3,))]

    def test_the_outcome_that_says_more_is_kept(self) -> None:
        """In whichever order they come, also by ``merge``."""
        rising: list[Timing | Failure] = [
            LOST,
            TIMEOUT,
            CRASH,
            Timing((1.0,), slow=True),
            Timing((0.5,)),
            WRONG,
        ]
        with self.open_logs() as logs:
            for number, less in enumerate(rising):
                for more in rising[number + 1 :]:
                    one, other = record(less, trace=f"[{number},0]"), record(more, trace=f"[{number},0]")
                    prune(logs, PruneRule(older_than_s=0))
                    assert logs.add(one)
                    assert logs.add(other)
                    assert not logs.add(one)
                    assert list(logs.every()) == [other]

    def test_a_second_measurement_may_replace_the_first(self) -> None:
        """Where it says as much; it never hides a wrong result."""
        with self.open_logs() as logs:
            logs.add(record(1e-3))
            logs.replace(record(2e-3, created_s=1.8e9))
            assert list(logs.every()) == [record(2e-3, created_s=1.8e9)]
            logs.replace(record(CRASH))
            assert list(logs.every()) == [record(2e-3, created_s=1.8e9)]
            logs.replace(record(WRONG))
            logs.replace(record(1e-3))
            assert list(logs.every()) == [record(WRONG)]

    def test_many_threads_share_one_object(self) -> None:
        """Every thread's record is there once."""
        start = threading.Barrier(8)
        with self.open_logs() as logs:

            def work(thread: int) -> int:
                start.wait()
                own = sum(logs.add(record(trace=f"[{thread},{n}]")) for n in range(10))
                return own + sum(logs.add(record(trace=f"[{n}]")) for n in range(5))

            with ThreadPoolExecutor(8) as pool:
                assert sum(pool.map(work, range(8))) == 85
            assert len(logs.records(["a" * 16], HERE)) == 85

    def test_every_record_page_by_page(self) -> None:
        """More than one page, with a write between; selections."""
        many = [record(1e-3 + n * 1e-6, trace=f"[{n}]") for n in range(1100)]
        with self.open_logs() as logs:
            assert logs.add_many(many) == 1100
            assert logs.add_many(many) == 0
            walk = logs.every()
            first = next(walk)
            logs.add(record(trace="[9999]"))
            assert [first, *walk][:1100] == many
            assert [r.trace for r in logs.every(Selection(best=2))] == ["[0]", "[9999]"]
            assert list(logs.every(Selection(target=ELSEWHERE))) == []

    def test_targets_are_remembered(self) -> None:
        """The first description of a fingerprint stays."""
        with self.open_logs() as logs:
            logs.register_target(target())
            logs.register_target(target(name="another name"))
            logs.register_target(target(ELSEWHERE, name="a phone", mattr=()))
            assert logs.targets() == [target(ELSEWHERE, name="a phone", mattr=()), target()]

    def test_similar_targets_when_asked(self) -> None:
        """The closest first; never one of another width; its record keeps its own target."""
        known = [
            target("1" * 16, threads=2),
            target("2" * 16, mcpu="cortex-a55"),
            target("3" * 16, vector_bits=256),
            target("4" * 16, threads=1),
        ]
        with self.open_logs() as logs:
            for info in known:
                logs.register_target(info)
                logs.add(record(target=info.fingerprint))
            logs.add(record())
            found = [r.target for r in similar(logs, "a" * 16, target())]
            assert found == ["1" * 16, "4" * 16, "2" * 16]
            assert similar(logs, "b" * 16, target()) == []

    def test_export_and_import(self) -> None:
        """A file brings back the same records and targets, and a second import adds nothing."""
        values = [record(trace="[1]"), record(CRASH, trace="[2]", target=ELSEWHERE), record(WRONG)]
        with self.open_logs() as logs, TemporaryDirectory() as folder:
            file = Path(folder) / "logs.jsonl"
            logs.register_target(target())
            logs.add_many(values)
            assert export_file(logs, file) == 3
            assert import_file(logs, file).added == 0
            prune(logs, PruneRule(older_than_s=0))
            result = import_file(logs, file)
            assert (result.read, result.added, result.torn) == (3, 3, False)
            assert list(logs.every()) == values
            assert file.read_text().splitlines() == list(export(logs))

    def test_merge(self) -> None:
        """Takes records and targets, keeps what says more, leaves the source alone."""
        from edgetune.logs.opening import open_logs

        with self.open_logs() as logs, open_logs("sqlite://") as other:
            other.register_target(target())
            other.add_many([record(LOST, trace="[1]"), record(1e-4, trace="[2]"), record(trace="[3]")])
            logs.add_many([record(1e-3, trace="[1]"), record(CRASH, trace="[2]")])
            result = merge(logs, other)
            assert (result.read, result.added, result.targets) == (3, 2, 1)
            outcomes = {r.trace: r.outcome for r in logs.every()}
            assert outcomes == {"[1]": Timing((1e-3,)), "[2]": Timing((1e-4,)), "[3]": Timing((1e-3,))}
            assert logs.targets() == [target()]
            assert len(list(other.every())) == 3

    def test_statistics(self) -> None:
        """Counts by target and by workload."""
        with self.open_logs() as logs:
            assert target_stats(logs) == []
            logs.register_target(target())
            logs.add_many(
                [
                    record(3e-3, trace="[1]", created_s=5.0),
                    record(2e-3, trace="[2]", device="board", created_s=9.0),
                    record(CRASH, trace="[3]", created_s=7.0),
                    record(LOST, workload="b" * 16, created_s=6.0),
                    record(CRASH, target=ELSEWHERE, created_s=7.0),
                ]
            )
            other, here = target_stats(logs)
            assert (here.target, here.name, here.workloads, here.records) == (HERE, "board", 2, 4)
            assert (here.successes, here.failures) == (2, {"crash": 1, "device_lost": 1})
            assert (here.devices, here.first_s, here.last_s) == (("board", "local"), 5.0, 9.0)
            assert (other.target, other.name, other.successes) == (ELSEWHERE, "", 0)
            assert target_stats(logs, HERE) == [here]
            by_workload = {item.workload: item for item in workload_stats(logs, Selection(target=HERE))}
            assert (by_workload["a" * 16].records, by_workload["a" * 16].failures) == (3, 1)
            assert (by_workload["a" * 16].best_s, by_workload["b" * 16].best_s) == (2e-3, None)

    def test_prune(self) -> None:
        """Each rule, and its limits; a dry run deletes nothing."""
        values = [
            record(1e-3, trace="[1]", created_s=1.0),
            record(2e-3, trace="[2]"),
            record(3e-3, trace="[3]", device="board"),
            record(CRASH, trace="[4]"),
            replace(record(9e-3, trace="[5]", target=ELSEWHERE), versions={"tvm": "0.26.0"}),
        ]
        year_s = 365.0 * 86_400
        rules = [
            (PruneRule(keep_best=1), ["[2]"]),
            (PruneRule(keep_best=0), ["[1]", "[2]", "[3]", "[5]"]),
            (PruneRule(failures=True), ["[4]"]),
            (PruneRule(older_than_s=40 * year_s), ["[1]"]),
            (PruneRule(versions={"tvm": "0.26.0"}), ["[5]"]),
            (PruneRule(keep_best=0, within=Selection(target=HERE, device="board")), ["[3]"]),
        ]
        with self.open_logs() as logs:
            for rule, gone in rules:
                logs.add_many(values)
                before = {r.trace for r in logs.every()}
                assert prune(logs, rule, dry_run=True) == len(gone)
                assert {r.trace for r in logs.every()} == before
                assert prune(logs, rule) == len(gone)
                assert before - {r.trace for r in logs.every()} == set(gone)

    def test_a_failed_batch_leaves_nothing_half_done(self) -> None:
        """A transaction that an exception leaves is undone, and the logs go on working."""
        with self.open_logs() as logs:
            try:
                logs.add_many([record(trace="[1]"), record(-1.0, trace="[2]")])
            except InvalidRecordError:
                pass
            assert list(logs.every()) == []
            assert logs.add(record())

    def test_reading_only(self) -> None:
        """Logs that promise not to write refuse to."""
        with self.open_logs() as logs:
            logs.add(record())
            reader = TuningLogs(logs._engine, logs.location, read_only=True)
            assert reader.best("a" * 16, HERE) == record()
            for write in (lambda: reader.add(record()), lambda: prune(reader, PruneRule(failures=True))):
                try:
                    write()
                except LogsError:
                    continue
                raise AssertionError("not refused")
