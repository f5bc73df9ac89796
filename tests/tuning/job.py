"""A small tuning run as a program: ``job.py LOGS TRIALS``; prints a line of JSON for each trial.

Tests kill it. It prints the trace of a trial when it is measured, before it is committed. ``job.py serve``
imports everything once and then forks a run for each line ``LOGS TRIALS OUTPUT`` on its standard input; it
answers with the run's process id.
"""

import hashlib
import json
import os
import signal
import sys


def task(size):
    import tvm
    from tvm import te

    from edgetune.records import Task

    a, b = te.placeholder((size, size)), te.placeholder((size, size))
    k = te.reduce_axis((0, size))
    product = te.compute((size, size), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="product")
    mod = tvm.IRModule({"main": te.create_prim_func([a, b, product])})
    workload = hashlib.sha256(mod.script().encode()).hexdigest()[:16]
    return Task(f"matmul{size}", workload, tvm.ir.save_json(mod), 1, 2.0 * size**3)


def main(path, trials):
    from edgetune.devices.local import local_device
    from edgetune.logs import open_logs
    from edgetune.targets import load_target
    from edgetune.tuning.loop import tune_tasks
    from edgetune.tuning.measure import DeviceMeasurer
    from edgetune.tuning.options import Budget, MeasureOptions, TuningOptions
    from tests.tuning.spaces import stock_spaces

    measure = DeviceMeasurer.measure

    def tell(self, artifact, best_s):
        outcome = measure(self, artifact, best_s)
        say(measured=[artifact.candidate.workload, artifact.candidate.trace])
        return outcome

    DeviceMeasurer.measure = tell
    # A batch that is measured again because the machine drifts would look like a trial repeated.
    steady = MeasureOptions(drift_bound=float("inf"))
    options = TuningOptions(seed=1, batch=8, patience=10_000, measure=steady)
    target = load_target("local").with_threads(2)
    with open_logs(path) as logs:
        outcome = tune_tasks(
            [task(32), task(48)],
            target,
            [local_device(2)],
            logs,
            spaces=stock_spaces,
            budget=Budget(trials=trials),
            options=options,
            progress=lambda progress: say(spent=progress.trials_spent, reused=progress.trials_reused),
        )
    say(
        spent=outcome.trials_spent,
        reused=outcome.trials_reused,
        interrupted=outcome.interrupted,
        best_s=min(t.best_s or 1.0 for t in outcome.tasks),
    )


def say(**what):
    print(json.dumps(what), flush=True)


def serve():
    import tvm  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        path, trials, output = line.split()
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, 1)
            os.dup2(file, 2)
            main(path, int(trials))
            os._exit(0)
        say(pid=child)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve()
    else:
        main(sys.argv[1], int(sys.argv[2]))
