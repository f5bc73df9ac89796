"""A tuning run that is killed at random moments, twenty times, loses and repeats nothing."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from edgetune.logs import open_logs
from edgetune.logs.values import trace_key

JOB = Path(__file__).with_name("job.py")
KILLS = 20
TRIALS = 2000
"""More than all the runs together can do."""


@pytest.fixture
def server():
    """Forks runs from a process that has imported TVM: twenty imports would take most of the time."""
    server = subprocess.Popen(
        [sys.executable, str(JOB), "serve"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    with server.stdout, server.stdin:
        yield server
        server.kill()
        server.wait()


def start(server, path, output):
    print(path, TRIALS, output, file=server.stdin, flush=True)
    return psutil.Process(json.loads(server.stdout.readline())["pid"])


def wait_for_a_trial(output):
    end = time.monotonic() + 60
    while not (output.exists() and '"measured"' in output.read_text()):
        assert time.monotonic() < end
        time.sleep(0.02)


def committed(path):
    with open_logs(path) as logs:
        return {(r.workload, trace_key(r.trace)): r.outcome for r in logs.every()}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_twenty_kills(tmp_path, server):
    path = tmp_path / "logs.sqlite"
    draw = random.Random(7)
    measured, before, family = Counter(), {}, set()
    for number in range(KILLS):
        output = tmp_path / f"{number}.txt"
        job = start(server, path, output)
        # Most of a run is its start: some are killed there, the others soon after their first trial.
        if draw.random() < 0.4:
            time.sleep(draw.uniform(0, 2))
        else:
            wait_for_a_trial(output)
            time.sleep(draw.uniform(0, 0.6))
        family |= {(p.pid, p.create_time()) for p in job.children(recursive=True)}
        os.kill(job.pid, signal.SIGKILL)
        job.wait(10)
        text = output.read_text() if output.exists() else ""
        assert "Traceback" not in text
        for line in text.splitlines():
            if line.endswith("}") and "measured" in (told := json.loads(line)):
                workload, trace = told["measured"]
                measured[workload, trace_key(trace)] += 1
        now = committed(path)
        assert all(now[key] == outcome for key, outcome in before.items()), "a committed trial changed"
        in_flight = [key for key in measured if key not in now]
        assert len(in_flight) <= 1, "a measured trial was lost"
        for key in in_flight:
            # Not committed: the next run may measure it.
            del measured[key]
        before = now
    assert len(before) > KILLS
    assert set(measured) <= set(before)
    assert max(measured.values()) == 1, "a trial was measured twice"
    end = time.monotonic() + 20
    while any(alive(pid, created) for pid, created in family):
        assert time.monotonic() < end, "a process outlived the run"
        time.sleep(0.1)


def alive(pid, created):
    try:
        process = psutil.Process(pid)
        return process.create_time() == created and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
