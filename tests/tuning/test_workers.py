"""Worker processes that fail in every way a build can."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest

from edgetune.errors import TuningError
from edgetune.tuning.workers import (
    Call,
    ForkServer,
    WorkerCrashError,
    WorkerError,
    WorkerPool,
    WorkerTimeoutError,
)


@pytest.fixture(scope="module")
def light():
    """A server that imports nothing: it starts at once."""
    with ForkServer(preload=()) as server, WorkerPool(server, 2) as pool:
        yield pool


def outcomes(pool, calls, **options):
    results = dict(pool.run(calls, **options))
    return [results[index] for index in range(len(calls))]


def test_results_come_with_their_index(light):
    assert outcomes(light, [Call(divmod, (i, 3), 5) for i in range(7)]) == [divmod(i, 3) for i in range(7)]


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (Call(int, ("x",), 5), WorkerError, "ValueError: invalid literal"),
        (Call(os.abort, (), 5), WorkerCrashError, "SIGABRT"),
        (Call(os._exit, (7,), 5), WorkerCrashError, "status 7"),
        (Call(time.sleep, (60,), 0.2), WorkerTimeoutError, "in time"),
        # As the system does when memory runs out.
        (Call(signal.raise_signal, (signal.SIGKILL,), 5), WorkerCrashError, "SIGKILL"),
    ],
    ids=["error", "abort", "exit", "hang", "oom"],
)
def test_a_failing_call_is_an_outcome_and_the_others_go_on(light, call, kind, message):
    good = Call(abs, (-1,), 5)
    first, failed, last = outcomes(light, [good, call, good])
    assert (first, last) == (1, 1)
    assert isinstance(failed, kind)
    assert message in str(failed)
    with pytest.raises(kind):
        light.call(*call[:1], *call.arguments, timeout_s=call.timeout_s)


def test_a_worker_killed_while_idle_is_replaced(light):
    pid = light.call(os.getpid, timeout_s=5)
    for worker in list(light._idle):
        os.kill(worker.pid, signal.SIGKILL)
    time.sleep(0.1)
    assert light.call(os.getpid, timeout_s=5) != pid


def test_workers_are_reused(light):
    pids = set(outcomes(light, [Call(os.getpid, (), 5) for _ in range(20)]))
    assert len(pids) <= 2


def test_a_context_is_sent_to_each_worker_once(light):
    seen = []

    def context(known):
        seen.append(known)
        return (1,) if known else (2,)

    results = outcomes(light, [Call(pow, (3,), 5) for _ in range(8)], context=("key", context))
    assert seen.count(False) <= 2
    assert seen.count(True) >= 6
    assert sorted(results) == [1] * seen.count(True) + [8] * seen.count(False)


def test_threads_take_turns(light):
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(light.call(os.getpid, timeout_s=10))) for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 5


def test_calls_that_nobody_waits_for_are_killed(light):
    results = light.run([Call(time.sleep, (60,), 100), Call(abs, (1,), 100)])
    assert next(results) == (1, 1)
    started = time.monotonic()
    results.close()
    assert light.call(abs, -2, timeout_s=5) == 2
    assert time.monotonic() - started < 5


def test_leaving_the_context_ends_everything():
    with ForkServer(preload=()) as server, WorkerPool(server, 1) as pool:
        pid = pool.call(os.getpid, timeout_s=5)
        folder = Path(server._folder)
        assert folder.is_dir()
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    assert not folder.exists()
    with pytest.raises(TuningError):
        server.fork()


def test_a_server_that_cannot_import_says_so():
    with (
        ForkServer(preload=("no_such_module",)) as server,
        WorkerPool(server, 1) as pool,
        pytest.raises(TuningError, match="import tvm"),
    ):
        pool.call(abs, 1, timeout_s=5)


def test_nothing_survives_when_the_owner_is_killed():
    code = textwrap.dedent("""
        import os, time, threading
        from edgetune.tuning.workers import *
        with ForkServer(preload=()) as server, WorkerPool(server, 1) as pool:
            pid = pool.call(os.getpid, timeout_s=9)
            print(server._process.pid, pid, server._folder, flush=True)
            pool.call(time.sleep, 1000, timeout_s=1000)
    """)
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    with owner.stdout:
        server, worker, folder = owner.stdout.readline().split()
        time.sleep(0.2)
        owner.kill()
        owner.wait()
    end = time.monotonic() + 5
    while any(psutil.pid_exists(int(pid)) for pid in (server, worker)) or Path(folder).exists():
        assert time.monotonic() < end
        time.sleep(0.05)
