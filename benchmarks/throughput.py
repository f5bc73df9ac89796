"""Trials per minute and final latency of edgetune beside TVM's stock ``tune_relax``.

    python benchmarks/throughput.py --model squeezenet --trials 128

Both tune the same simplified ONNX model for this machine, with the same number of trials and threads, from
empty logs, each in a process of its own, one after the other. What counts for the rate is the time of the
tuning call alone (worker start included; model import and compilation excluded), over the trials in the
database at its end. Latency is the median of the compiled model's runs, timed in the same way for both.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RUNS = 30
ROUNDS = 5
"""Latency: the median of so many rounds of runs."""


def main() -> None:
    """Run both sides and print the comparison."""
    args = parse()
    if args.side:
        print(json.dumps(SIDES[args.side](args.onnx, args.trials, args.threads, args.seed)))
        return
    from edgetune.model import registry
    from edgetune.model.prepare import prepare
    from edgetune.targets import detect_local

    target = detect_local()
    threads = args.threads or target.threads
    path = Path(args.model)
    if path.suffix == ".onnx":
        prepared = prepare(path, dict(map(parse_shape, args.shape)) or None, None)
    else:
        entry = registry.get(args.model)
        prepared = prepare(registry.fetch(args.model), entry.shapes, entry.freeze)
    with tempfile.TemporaryDirectory() as folder:
        onnx = Path(folder) / f"{prepared.name}.onnx"
        onnx.write_bytes(prepared.onnx)
        print(f"{cpu_name()}, {threads} threads; {prepared.name}, {args.trials} trials each", flush=True)
        results = {side: run_side(side, onnx, args, threads) for side in ("edgetune", "stock")}
    report(results, args.json)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="squeezenet", help="a name of `edgetune models list`, or a file")
    parser.add_argument("--shape", action="append", default=[], help="NAME:1x3x224x224, for a file")
    parser.add_argument("--trials", type=int, default=128)
    parser.add_argument("--threads", type=int, help="default: the cores of this machine")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    parser.add_argument("--side", choices=sorted(SIDES), help=argparse.SUPPRESS)
    parser.add_argument("--onnx", help=argparse.SUPPRESS)
    return parser.parse_args()


def run_side(side: str, onnx: Path, args: argparse.Namespace, threads: int) -> dict[str, Any]:
    """Run one side in a process of its own."""
    command = [sys.executable, __file__, "--side", side, "--onnx", str(onnx)]
    command += ["--trials", str(args.trials), "--threads", str(threads), "--seed", str(args.seed)]
    # Stock TVM would use half of the cores by itself.
    environment = {**os.environ, "TVM_NUM_THREADS": str(threads)}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(f"{side}: {describe(result)}", flush=True)
    return result


def describe(result: dict[str, Any]) -> str:
    """One side's result in words."""
    rate = result["trials"] / result["tune_s"] * 60
    return (
        f"{result['trials']} trials in {result['tune_s']:.1f} s = {rate:.0f} a minute; "
        f"latency {result['latency_ms']:.3f} ms"
    )


def report(results: dict[str, dict[str, Any]], as_json: bool) -> None:
    """Print the ratios."""
    rates = {side: result["trials"] / result["tune_s"] * 60 for side, result in results.items()}
    throughput = rates["edgetune"] / rates["stock"]
    speed = results["stock"]["latency_ms"] / results["edgetune"]["latency_ms"]
    print(f"trials per minute: {throughput:.2f} times stock; final model: {speed:.2f} times as fast")
    if as_json:
        ratios = {"throughput_ratio": throughput, "latency_ratio": speed, "cpu": cpu_name()}
        print(json.dumps({**results, **ratios}))


def edgetune_side(onnx: str, trials: int, threads: int, seed: int) -> dict[str, Any]:
    """Tune with edgetune and time the result."""
    import tvm
    from tvm import relax

    from edgetune.choices import choose
    from edgetune.devices.inventory import open_device
    from edgetune.graph.compile import compile_model
    from edgetune.graph.lower import lower
    from edgetune.kernels.registry import design_spaces
    from edgetune.logs import LayeredLogs, open_logs
    from edgetune.model.prepare import prepare
    from edgetune.targets import detect_local
    from edgetune.tuning.loop import tune_tasks
    from edgetune.tuning.options import Budget, TuningOptions

    target = detect_local().with_threads(threads)
    prepared = prepare(onnx, None, None)
    lowered = lower(prepared, target)
    with tempfile.TemporaryDirectory() as folder, open_logs(Path(folder) / "logs.sqlite") as logs:
        started = time.perf_counter()
        outcome = tune_tasks(
            lowered.tasks,
            target,
            [open_device(None, threads)],
            logs,
            spaces=design_spaces,
            budget=Budget(trials=trials),
            options=TuningOptions(seed=seed),
        )
        tune_s = time.perf_counter() - started
        choices = choose(lowered.tasks, target, LayeredLogs(logs))
        compiled = compile_model(lowered, choices, target)
        library = Path(folder) / "model.so"
        library.write_bytes(compiled.library)
        vm = relax.VirtualMachine(tvm.runtime.load_module(str(library)), tvm.cpu())
    values = [prepared.reference_inputs[spec.name] for spec in compiled.inputs]
    arguments = [tvm.runtime.tensor(value) for value in (*values, *compiled.weights)]
    return {
        "trials": outcome.trials_spent,
        "tune_s": tune_s,
        "latency_ms": latency_ms(lambda: vm["main"](*arguments)),
        "failures": dict(outcome.failures),
    }


def stock_side(onnx: str, trials: int, threads: int, seed: int) -> dict[str, Any]:
    """Tune with ``tune_relax`` as TVM's documentation shows it, and time the result."""
    import tvm
    from onnx import load
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx  # noqa: TID251 - the stock way is what is compared with
    from tvm.s_tir.meta_schedule import relax_integration

    from edgetune.model.prepare import prepare
    from edgetune.targets import detect_local

    target = detect_local().with_threads(threads).tvm()
    prepared = prepare(onnx, None, None)
    mod = from_onnx(load(onnx), keep_params_in_input=False)
    mod = relax.get_pipeline("zero")(mod)
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        database = relax_integration.tune_relax(mod, {}, target, folder, max_trials_global=trials, seed=seed)
        tune_s = time.perf_counter() - started
        compiled = relax_integration.compile_relax(database, mod, target, None)
        measured = len(database)
    vm = relax.VirtualMachine(compiled, tvm.cpu())
    arguments = [tvm.runtime.tensor(prepared.reference_inputs[spec.name]) for spec in prepared.inputs]
    return {
        "trials": measured,
        "tune_s": tune_s,
        "latency_ms": latency_ms(lambda: vm["main"](*arguments)),
    }


def latency_ms(run: Callable[[], object]) -> float:
    """Median milliseconds of a call."""
    for _ in range(3):
        run()
    rounds = []
    for _ in range(ROUNDS):
        times = []
        for _ in range(RUNS):
            started = time.perf_counter()
            run()
            times.append(time.perf_counter() - started)
        rounds.append(statistics.median(times))
    return statistics.median(rounds) * 1e3


def parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """``x:1x3x224x224`` as a name and a shape."""
    name, _, dimensions = text.rpartition(":")
    return name, tuple(int(part) for part in dimensions.split("x"))


def cpu_name() -> str:
    """The processor's name as the kernel gives it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


SIDES = {"edgetune": edgetune_side, "stock": stock_side}

if __name__ == "__main__":
    main()
