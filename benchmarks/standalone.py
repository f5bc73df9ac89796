"""Sizes, load times and latencies of a standalone library beside TVM's virtual machine and ONNX Runtime.

    python benchmarks/standalone.py prepare ppocr-cls WORK    # compiles both bundles, with default schedules
    python benchmarks/standalone.py measure WORK...           # on a machine that does nothing else
    python benchmarks/standalone.py overhead WORK...          # what the virtual machine costs; likewise
    python benchmarks/standalone.py sizes WHEEL...            # native code in wheels of other runtimes

Every side runs in processes of its own, in alternation. A load ends with the first result and begins when Python, NumPy
and the code of the side (not its native libraries) are imported. ``overhead`` has one process each for a standalone
library and for the same kernels in TVM's virtual machine; one waits asleep while the other runs.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
import zipfile
from multiprocessing.connection import Connection
from pathlib import Path

BUNDLES = ("standalone", "vm")
SIDES = ("standalone", "unread", "vm", "onnxruntime")
"""unread: the standalone library without comparing the files' hashes, which is what reading them costs."""
ROUNDS = 5
RUNS = 300
WARM_UP_RUNS = 50
LEAST_RUNS = 20
MOST_S = 1.2
"""Of a process, for models whose runs take long."""
OVERHEAD_ROUNDS = 15
OVERHEAD_ROUND_S = 0.15


def prepare(name: str, work: Path) -> None:
    """Compile both bundles of a model of the registry into ``work``."""
    import edgetune
    from edgetune.model import registry

    entry = registry.get(name)
    for side in BUNDLES:
        edgetune.compile(
            registry.fetch(name),
            shapes=entry.shapes,
            freeze=entry.freeze,
            out=work / side,
            standalone=side == "standalone",
        )


def measure(works: list[Path]) -> None:
    """Print the tables, of all models in one run."""
    found: dict[tuple[Path, str], list[dict[str, float]]] = {
        (work, side): [] for work in works for side in SIDES
    }
    for number in range(ROUNDS):
        for work, side in found if number % 2 == 0 else reversed(found):
            command = [sys.executable, __file__, "side", side, str(work)]
            found[work, side].append(json.loads(subprocess.check_output(command)))
    print(f"{cpu_name()}, {usable()} CPUs; medians of {ROUNDS} processes each, in alternation\n")
    print(
        "| model | side | load to first result, ms | latency, ms | peak memory, MB |\n|---|---|--:|--:|--:|"
    )
    for (work, side), rounds in found.items():
        row = {key: statistics.median(item[key] for item in rounds) for key in rounds[0]}
        columns = f"{row['load_ms']:.1f} | {row['latency_ms']:.3f} | {row['peak_mb']:.1f}"
        print(f"| {work.name} | {side} | {columns} |")
    for work in works:
        print(f"\n| native code of a side, without weights: {work.name} | KB |\n|---|--:|")
        for label, paths in native(work).items():
            print(f"| {label} | {sum(path.stat().st_size for path in paths) / 1000:.0f} |")


def overhead(works: list[Path], threads: int) -> None:
    """Print what the virtual machine costs, of each model and for each of its kernels."""
    print(f"{cpu_name()}; {threads} threads, medians of {OVERHEAD_ROUNDS} rounds in alternation\n")
    print("| model | kernels | standalone, us | TVM's virtual machine, us | gain, us | a kernel, us |")
    print("|---|--:|--:|--:|--:|--:|")
    context = multiprocessing.get_context("spawn")
    for work in works:
        ends = {}
        for side in BUNDLES:
            ends[side], theirs = context.Pipe()
            context.Process(target=serve_rounds, args=(work / side, threads, theirs), daemon=True).start()
        kernels = ends["standalone"].recv()
        ends["vm"].recv()
        rounds: dict[str, list[float]] = {side: [] for side in BUNDLES}
        for number in range(OVERHEAD_ROUNDS):
            for side in BUNDLES if number % 2 == 0 else reversed(BUNDLES):
                ends[side].send(True)
                rounds[side].append(ends[side].recv())
        for end in ends.values():
            end.send(False)
        alone, machine = (statistics.median(rounds[side]) for side in BUNDLES)
        gain = statistics.median(vm - own for own, vm in zip(*rounds.values(), strict=True))
        print(
            f"| {work.name} | {kernels} | {alone:.1f} | {machine:.1f} | {gain:.1f} | {gain / kernels:.2f} |"
        )


def serve_rounds(path: Path, threads: int, asked: Connection) -> None:
    """Time a bundle whenever asked, in a process of its own; says first how many kernels it has."""
    import numpy as np

    from edgetune.bundle.inputs import choose_inputs
    from edgetune.bundle.reader import open_bundle
    from edgetune.runtime import load
    from edgetune.standalone.model import StandaloneModel

    inputs = choose_inputs(open_bundle(path), None)
    model = load(path, threads=threads)
    asked.send(len(model.observe(inputs)) if isinstance(model, StandaloneModel) else 0)
    while asked.recv():
        times = []
        end = time.perf_counter() + OVERHEAD_ROUND_S
        while len(times) < LEAST_RUNS // 4 or time.perf_counter() < end:
            start = time.perf_counter()
            model.run(inputs)
            times.append(time.perf_counter() - start)
        asked.send(float(np.median(times[len(times) // 5 :])) * 1e6)


def cpu_name() -> str:
    """What the kernel calls this CPU."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "CPU")


def usable() -> int:
    """How many CPUs this process may use."""
    return len(os.sched_getaffinity(0))


def native(work: Path) -> dict[str, list[Path]]:
    """The files that a side loads."""
    ort = package("onnxruntime")
    return {
        "standalone: model.so": [work / "standalone" / "model.so"],
        "vm: model.so": [work / "vm" / "model.so"],
        "vm: libtvm_runtime, libtvm_ffi": [*(work / "vm").glob("libtvm*.so")],
        "libonnxruntime": [*ort.glob("capi/libonnxruntime.so.*")],
    }


def sizes(wheels: list[Path]) -> None:
    """Print the native libraries in wheels, the largest of each package first."""
    print("| wheel | library | KB |\n|---|---|--:|")
    for wheel in wheels:
        members = [item for item in zipfile.ZipFile(wheel).infolist() if ".so" in item.filename]
        for item in sorted(members, key=lambda item: -item.file_size)[:4]:
            name, version = wheel.name.split("-")[:2]
            print(f"| {name} {version} | {Path(item.filename).name} | {item.file_size / 1000:.0f} |")


def package(name: str) -> Path:
    """The folder of an installed package, which is not imported."""
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def run_side(side: str, work: Path) -> None:
    """Load and time one side, in the process that this is."""
    import numpy as np

    from edgetune.bundle.inputs import choose_inputs
    from edgetune.bundle.reader import open_bundle
    from edgetune.runtime import load

    path = work / ("vm" if side == "vm" else "standalone")
    bundle = open_bundle(path)
    inputs = choose_inputs(bundle, None)
    threads = bundle.manifest.threads
    if side == "onnxruntime":
        import onnxruntime
    start = time.perf_counter()
    if side == "onnxruntime":
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        model = bundle.model()
        assert model is not None
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        run = lambda: session.run(None, inputs)  # noqa: E731
    else:
        loaded = load(path, threads=threads, check_files=side != "unread")
        run = lambda: loaded.run(inputs)  # noqa: E731
    run()
    load_ms = (time.perf_counter() - start) * 1e3
    times: list[float] = []
    while len(times) < WARM_UP_RUNS + RUNS and (len(times) < LEAST_RUNS or sum(times) < MOST_S):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    status = Path("/proc/self/status").read_text()
    peak_mb = int(status.split("VmHWM:")[1].split()[0]) / 1e3
    latency_ms = float(np.median(times[len(times) // 7 :])) * 1e3
    print(json.dumps({"load_ms": load_ms, "latency_ms": latency_ms, "peak_mb": peak_mb}))


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    preparing = commands.add_parser("prepare")
    preparing.add_argument("model")
    preparing.add_argument("work", type=Path)
    measuring = commands.add_parser("measure")
    measuring.add_argument("works", nargs="+", type=Path)
    costing = commands.add_parser("overhead")
    costing.add_argument("works", nargs="+", type=Path)
    costing.add_argument("--threads", type=int, default=1)
    sizing = commands.add_parser("sizes")
    sizing.add_argument("wheels", nargs="+", type=Path)
    side = commands.add_parser("side")
    side.add_argument("side", choices=SIDES)
    side.add_argument("work", type=Path)
    options = parser.parse_args()
    if options.command == "prepare":
        prepare(options.model, options.work)
    elif options.command == "sizes":
        sizes(options.wheels)
    elif options.command == "overhead":
        overhead(options.works, options.threads)
    elif options.command == "measure":
        measure(options.works)
    else:
        run_side(options.side, options.work)


if __name__ == "__main__":
    main()
