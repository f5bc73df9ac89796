"""Tunes the public models of ``models/`` and times each beside other runtimes: the table of the README.

    python benchmarks/models.py                                        every model, a minute of tuning each
    python benchmarks/models.py --models ppocr-cls,squeezenet --budget 600    two, 600 trials each
    python benchmarks/models.py --budget 64/task --threads 2,1         64 trials a task, on 2 threads, then on 1
    python benchmarks/models.py --budget 0                             no tuning: the logs, else default schedules
    python benchmarks/models.py --against onnxruntime                  beside ONNX Runtime alone
    python benchmarks/models.py --int8 QDQ --models squeezenet         quantised by ONNX Runtime's tools first
    python benchmarks/models.py --readme                               and write the first table into README.md

Each model is tuned (records go to ``--logs`` and are reused by the next run), verified, and timed beside the other
runtimes: a process each, in turns, as many threads, the same inputs, outputs compared with ONNX Runtime's. A runtime
that is not installed or cannot take a model says why. ``untuned`` is the same model with default schedules; the
roofline is measured in the same run. Models whose published file carries constant weights get random ones, so that
outputs say something. Stop other programs first: the drift column says how much the machine's own speed changed
meanwhile. Rows that ``--out`` already has from this CPU and these versions stay in the table until their model is
measured again.

The peers: ``pip install 'edgetune[peers]'``; ncnn also needs ``pip install --no-deps pnnx``, LiteRT the program
onnx2tf in an environment of its own, named by the variable ``ONNX2TF`` (see docs/bundle.md).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from quantising import quantise
from tables import in_order, plot, render

import edgetune
from edgetune.benchmarking.results import BenchmarkResult
from edgetune.benchmarking.rounds import benchmark
from edgetune.bundle.reader import open_bundle
from edgetune.cpu import model_name
from edgetune.model.registry import RegisteredModel, fetch, get, list_models
from edgetune.targets import load_target
from edgetune.versions import versions

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- measured:begin -->", "<!-- measured:end -->"
ROUNDS = 7
PEERS = ("onnxruntime", "openvino", "mnn", "ncnn", "litert", "iree")


def main() -> int:
    """Run the benchmark; 1 where a model failed."""
    options = _options()
    out = Path(options.out)
    failed = []
    for threads in options.threads:
        measured_on = _circumstances(threads, options.rounds, options.int8)
        rows = _earlier(out, measured_on)
        for name in options.models:
            try:
                rows[name] = measure(get(name), threads, options)
            except edgetune.EdgetuneError as error:
                print(f"{name}: {error}", file=sys.stderr)
                failed.append(name)
                continue
            _say(rows[name])
            _save(rows, measured_on, out)
        _write(list(rows.values()), measured_on, out, options.readme and threads == options.threads[0])
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    everything = ",".join(entry.name for entry in list_models() if entry.imports)
    parser.add_argument("--models", type=_names, default=everything, help="default: every model that imports")
    parser.add_argument(
        "--budget",
        default="60s",
        help="of each model: trials (600), trials a task (64/task), or a time (60s)",
    )
    parser.add_argument(
        "--threads",
        type=lambda text: [int(part) for part in _names(text)],
        default=str(load_target("local").threads),
    )
    parser.add_argument("--against", type=_names, default=",".join(PEERS), help=f"default {','.join(PEERS)}")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--logs", default=str(ROOT / "benchmarks/results/records.db"))
    parser.add_argument("--out", default=str(ROOT / "benchmarks/results"))
    parser.add_argument(
        "--int8", choices=("QDQ", "QOperator"), help="quantise the models first, in this form"
    )
    parser.add_argument(
        "--atol", type=float, help="what an output of a quantised model may be off, see docs/kernels.md"
    )
    parser.add_argument("--readme", action="store_true", help="write the first table into README.md")
    options = parser.parse_args()
    Path(options.out).mkdir(parents=True, exist_ok=True)
    return options


def _names(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


def measure(entry: RegisteredModel, threads: int, options: argparse.Namespace) -> dict[str, Any]:
    """Tune, verify and time one model; everything known of it, for the tables."""
    path = fetch(entry.name, random_weights=entry.constant_weights)
    fixed = {"shapes": entry.shapes or None, "freeze": entry.freeze or None}
    kind = f"-{options.int8}" if options.int8 else ""
    if options.int8:
        path, fixed = quantise(entry, path, Path(options.out) / "quantised", options.int8), {}
    started = time.monotonic()
    result = edgetune.tune(
        path,
        **_budget(options.budget, path, fixed),
        **fixed,
        atol=options.atol,
        out=Path(options.out) / "bundles" / f"{entry.name}{kind}-{threads}",
        logs=options.logs,
        threads=threads,
    )
    tuned_s = time.monotonic() - started
    timed = benchmark(result.bundle, options.against, threads, rounds=options.rounds)
    assert result.verified is not None
    inputs = open_bundle(result.bundle, check_files=False).manifest.inputs
    return {
        "model": entry.name,
        "shape": ", ".join("x".join(map(str, tensor.shape)) for tensor in inputs),
        "tasks": len(result.tasks),
        "trials": result.trials_spent + result.trials_reused,
        "tuned_s": tuned_s,
        "untuned_ms": result.latency_ms.untuned,
        "max_rel_error": result.verified.max_rel_error,
        **_timed(timed),
        **_roofline(result.bundle, threads),
    }


def _budget(budget: str, path: Path, fixed: dict[str, Any]) -> dict[str, Any]:
    if budget.endswith("/task"):
        found = edgetune.check(path, **fixed)
        return {"trials": int(budget.removesuffix("/task")) * found.tasks}
    return {"trials": int(budget)} if budget.isdecimal() else {"time": budget}


def _timed(timed: BenchmarkResult) -> dict[str, Any]:
    sides = {"edgetune": timed.edgetune, **timed.others}
    return {
        "sides": {name: side.to_json() for name, side in sides.items()},
        "refused": dict(timed.refused),
        "drift": timed.drift,
    }


def _roofline(bundle: Path, threads: int) -> dict[str, Any]:
    """What the machine can do, and how much of it the model reaches: in a process of its own, for its thread pool."""
    program = "from edgetune.cli.main import main; main()"
    command = [sys.executable, "-c", program, "profile", str(bundle), "--threads", str(threads), "--json"]
    profile = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return {"flops": open_bundle(bundle, check_files=False).manifest.model.flops, "profile": profile}


def _say(row: dict[str, Any]) -> None:
    own = row["sides"]["edgetune"]["median_ms"]
    others = {name: side["median_ms"] / own for name, side in row["sides"].items() if name != "edgetune"}
    print(
        f"{row['model']}: {own:.3f} ms;",
        ", ".join(f"{n} {r:.2f}" for n, r in others.items()),
        file=sys.stderr,
    )
    for name, reason in row["refused"].items():
        print(f"  {name} did not run: {reason}", file=sys.stderr)


def _circumstances(threads: int, rounds: int, int8: str | None) -> dict[str, Any]:
    """What rows of one table have in common."""
    return {
        "type": f"int8 ({int8})" if int8 else "float32",
        "cpu": model_name(),
        "threads": threads,
        "versions": versions(),
        "onnxruntime": version("onnxruntime"),
        "rounds": rounds,
    }


def _path(out: Path, measured_on: dict[str, Any], suffix: str) -> Path:
    kind = measured_on["type"].translate({ord(c): "-" if c == " " else None for c in " ()"})
    return out / f"models-{'' if kind == 'float32' else kind + '-'}{measured_on['threads']}{suffix}"


def _earlier(out: Path, measured_on: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Rows of earlier runs that belong in the same table."""
    path = _path(out, measured_on, ".json")
    saved = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if any(saved.get(key) != value for key, value in measured_on.items()):
        return {}
    return {row["model"]: row for row in saved["rows"]}


def _save(rows: dict[str, dict[str, Any]], measured_on: dict[str, Any], out: Path) -> None:
    data = {**measured_on, "rows": in_order(list(rows.values()))}
    _path(out, measured_on, ".json").write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def _write(rows: list[dict[str, Any]], measured_on: dict[str, Any], out: Path, readme: bool) -> None:
    """The tables on stdout and beside the rows; the plot where plotly is installed; the first table in the README."""
    if not rows:
        return
    first, *rest = render(in_order(rows), measured_on)
    text = "\n\n".join([first, *rest])
    print(text)
    _path(out, measured_on, ".md").write_text(text + "\n", encoding="utf-8")
    try:
        plot(in_order(rows), measured_on["threads"], _path(out, measured_on, ".html"))
    except ImportError:
        print("no plot: plotly is not installed (pip install 'edgetune[peers]')", file=sys.stderr)
    if readme:
        path = ROOT / "README.md"
        before, _, after = path.read_text(encoding="utf-8").partition(BEGIN)
        _, _, after = after.partition(END)
        path.write_text(f"{before}{BEGIN}\n{first}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
