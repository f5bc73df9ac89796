"""Several devices behind SSH servers in one run, and runs whose devices are lost for good."""

from __future__ import annotations

import json

from benchmarks.faults import small_model
from edgetune import workflow
from edgetune.devices.manage import add_device
from edgetune.logs import open_logs
from edgetune.request import Request
from edgetune.runtime import load
from edgetune.tuning.options import Budget, TuningOptions
from edgetune.watcher import Watcher


class Killer(Watcher):
    """Has servers die for good, each once so many trials are measured."""

    def __init__(self, servers):
        self.servers = dict(servers)
        self.notes = []

    def tuning(self, progress):
        for trials in [due for due in self.servers if progress.trials_spent >= due]:
            self.servers.pop(trials).stop()

    def note(self, text):
        self.notes.append(text)


def devices_in(logs):
    with open_logs(logs) as opened:
        records = list(opened.every())
    assert len(records) == len({(r.workload, r.trace) for r in records})
    return [record.device for record in records]


def test_two_devices_then_one_then_none(make_sshd, tmp_path):
    first, second = make_sshd(), make_sshd()
    add_device("a", first.address)
    add_device("b", second.address)
    logs = tmp_path / "logs.sqlite"
    request = Request(small_model(), logs=logs, out=tmp_path / "bundle", cluster="all")
    options = TuningOptions(batch=4, first_batch=4, device_timeout_s=3, seed=1)
    killer = Killer({8: second, 16: first})
    result = workflow.tune(request, Budget(trials=80), "a,b", options, killer, measure_latency=False)
    assert killer.servers == {}, "after the loss of one device the other goes on"
    assert result.device == "a,b"
    assert "'a'" in result.lost
    assert "'b'" in result.lost
    assert any("'b' failed 3 times in a row" in note for note in killer.notes)
    assert 16 <= result.trials_spent < 24
    assert result.failures == {}
    names = devices_in(logs)
    assert len(names) == result.trials_spent
    assert {name: names.count(name) for name in "ab"} == result.devices
    assert result.devices["a"] > 0 < result.devices["b"]
    # Of a batch that its device did not survive there is a state before, and none after: it is left out.
    assert {"a"} <= {state["device"] for state in result.conditions["states"]} <= {"a", "b"}
    # The devices are of this machine's kind, so that it can stand in for them.
    assert result.verified.passed
    assert any("verified on this machine" in note for note in result.notes)
    load(result.bundle)


def test_threads_are_searched_on_one_and_used_on_all(make_sshd, tmp_path):
    add_device("a", make_sshd().address)
    add_device("b", make_sshd().address)
    request = Request(
        small_model(), logs=tmp_path / "logs.sqlite", out=tmp_path / "bundle", search_threads=True
    )
    options = TuningOptions(batch=2, first_batch=2, seed=1)
    result = workflow.tune(request, Budget(trials=4), "a,b", options, measure_latency=False)
    assert result.lost == ""
    assert sum(result.devices.values()) == result.trials_spent == 4
    assert set(result.devices) == {"a", "b"}
    assert load(result.bundle).threads in (1, 2)
    assert result.verified.passed


def test_only_different_devices_of_one_kind_are_used_at_once(make_sshd, conv_file, run_cli):
    add_device("board", make_sshd().address)
    add_device("small", make_sshd(cpus=1).address)
    for names, code, words in (
        ("board,board", 2, "once"),
        ("board,local", 2, "leave out 'local'"),
        ("board,none", 4, "no device 'none'"),
        ("board,small", 4, "another kind"),
    ):
        got, out, err = run_cli("tune", str(conv_file), "--device", names, "--trials", "1", "--json")
        assert (got, words in " ".join(err.split())) == (code, True), err
        assert json.loads(out)["error"]["exit_code"] == code
    assert run_cli("devices", "probe", "board,small")[0] == 4
