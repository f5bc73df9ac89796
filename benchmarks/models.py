"""Tunes the public models of ``models/`` and compares each with ONNX Runtime: the table of the README.

    python benchmarks/models.py                                  every model, a minute of tuning each
    python benchmarks/models.py ppocr-cls=300 squeezenet=600     some, with a number of trials each
    python benchmarks/models.py --time 0                         no tuning: the logs, else default schedules
    python benchmarks/models.py --readme                         and write the table into README.md
    python benchmarks/models.py --int8 QDQ squeezenet            quantised by ONNX Runtime's tools first

Each model is tuned (records go to ``--logs`` and are reused by the next run), verified, and timed
beside ONNX Runtime: processes of their own, in turns, as many threads, the same inputs. ``untuned`` is
the same model with default schedules. Models whose published file carries constant weights get random
ones, so that outputs say something. Stop other programs first: the drift column says how much the
machine's own speed changed meanwhile. Rows that ``--out`` already has from this CPU and these versions
stay in the table until their model is measured again.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from quantising import quantise

import edgetune
from edgetune.benchmarking.rounds import benchmark
from edgetune.bundle.reader import open_bundle
from edgetune.cpu import model_name
from edgetune.model.registry import RegisteredModel, fetch, get, list_models
from edgetune.targets import load_target
from edgetune.versions import versions

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- measured:begin -->", "<!-- measured:end -->"
ROUNDS = 7


@dataclass(frozen=True)
class Row:
    """One model: what tuning took, and the medians of the interleaved runs in milliseconds."""

    model: str
    shape: str
    tasks: int
    trials: int
    tuned_s: float
    untuned_ms: float | None
    edgetune_ms: float
    onnxruntime_ms: float
    max_rel_error: float
    drift: float

    @property
    def speedup(self) -> float:
        """ONNX Runtime's latency over edgetune's."""
        return self.onnxruntime_ms / self.edgetune_ms


def main() -> int:
    """Run the benchmark; 1 where a model failed."""
    options = _options()
    out = Path(options.out)
    stem = f"models-{options.int8}" if options.int8 else "models"
    rows, failed = _earlier(out / f"{stem}.json", options.threads), []
    for name, trials in _wanted(options.models):
        entry = get(name)
        try:
            row = measure(entry, trials, options, out)
        except edgetune.EdgetuneError as error:
            print(f"{name}: {error}", file=sys.stderr)
            failed.append(name)
            continue
        rows[name] = row
        print(f"{row.model}: {row.speedup:.2f} times ONNX Runtime", file=sys.stderr)
        _save(rows, options.threads, out / f"{stem}.json")
    table = render(in_order(rows), options.threads, "int8" if options.int8 else "float32")
    print(table)
    (out / f"{stem}.md").write_text(table + "\n", encoding="utf-8")
    if options.readme:
        _into_readme(table)
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "models", nargs="*", metavar="NAME[=TRIALS]", help="default: every model that imports"
    )
    parser.add_argument(
        "--time", default="60s", help="tuning time of a model without TRIALS (default 60s; 0: none)"
    )
    parser.add_argument("--threads", type=int, default=load_target("local").threads)
    parser.add_argument("--logs", default=str(ROOT / "benchmarks/results/records.db"))
    parser.add_argument("--out", default=str(ROOT / "benchmarks/results"))
    parser.add_argument(
        "--int8", choices=("QDQ", "QOperator"), help="quantise the models first, in this form"
    )
    parser.add_argument(
        "--atol", type=float, help="what an output of a quantised model may be off, see docs/kernels.md"
    )
    parser.add_argument("--readme", action="store_true", help="write the table into README.md")
    options = parser.parse_args()
    Path(options.out).mkdir(parents=True, exist_ok=True)
    return options


def _wanted(arguments: list[str]) -> list[tuple[str, int | None]]:
    if not arguments:
        return [(entry.name, None) for entry in list_models() if entry.imports]
    pairs = [argument.partition("=") for argument in arguments]
    return [(name, int(trials) if trials else None) for name, _, trials in pairs]


def measure(entry: RegisteredModel, trials: int | None, options: argparse.Namespace, out: Path) -> Row:
    """Tune, verify and time one model."""
    path = fetch(entry.name, random_weights=entry.constant_weights)
    shapes, freeze, suffix = entry.shapes or None, entry.freeze or None, ""
    if options.int8:
        path = quantise(entry, path, out / "quantised", options.int8)
        shapes, freeze, suffix = None, None, f"-{options.int8}"
    started = time.monotonic()
    result = edgetune.tune(
        path,
        trials=0 if options.time == "0" and trials is None else trials,
        time=None if trials is not None or options.time == "0" else options.time,
        shapes=shapes,
        freeze=freeze,
        out=out / "bundles" / f"{entry.name}{suffix}",
        atol=options.atol,
        logs=options.logs,
        threads=options.threads,
    )
    tuned_s = time.monotonic() - started
    timed = benchmark(result.bundle, rounds=ROUNDS)
    assert timed.other is not None
    assert result.verified is not None
    inputs = open_bundle(result.bundle, check_files=False).manifest.inputs
    sizes = ", ".join("x".join(map(str, tensor.shape)) for tensor in inputs)
    return Row(
        model=entry.name,
        shape=sizes,
        tasks=len(result.tasks),
        trials=result.trials_spent + result.trials_reused,
        tuned_s=tuned_s,
        untuned_ms=result.latency_ms.untuned,
        edgetune_ms=timed.edgetune.median_ms,
        onnxruntime_ms=timed.other.median_ms,
        max_rel_error=result.verified.max_rel_error,
        drift=timed.drift,
    )


def render(rows: list[Row], threads: int, kind: str = "float32") -> str:
    """The table in Markdown, with what it was measured on."""
    found = versions()
    lines = [
        f"{model_name()}, {threads} thread{'s' if threads > 1 else ''}, {kind}, batch 1; medians in ms of "
        f"{ROUNDS} interleaved rounds; ONNX Runtime {_onnxruntime()}, TVM {found['tvm']}.",
        "",
        "| model (input) | kernels | trials | tuning s | untuned | edgetune | ONNX Runtime | speedup | drift |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        untuned = "-" if row.untuned_ms is None else f"{row.untuned_ms:.3g}"
        lines.append(
            f"| {row.model} ({row.shape}) | {row.tasks} | {row.trials} | {row.tuned_s:.0f} | {untuned} "
            f"| {row.edgetune_ms:.3g} | {row.onnxruntime_ms:.3g} | **{row.speedup:.2f}** | {row.drift:.0%} |"
        )
    if rows:
        mean = math.exp(sum(math.log(row.speedup) for row in rows) / len(rows))
        lines += ["", f"Geometric mean of the speedups: {mean:.2f}."]
    return "\n".join(lines)


def _onnxruntime() -> str:
    from importlib.metadata import version

    return version("onnxruntime")


def in_order(rows: dict[str, Row]) -> list[Row]:
    """The rows in the order of ``edgetune models list``."""
    return [rows[entry.name] for entry in list_models() if entry.name in rows]


def _earlier(path: Path, threads: int) -> dict[str, Row]:
    """Rows of earlier runs that belong in the same table."""
    saved = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if any(saved.get(key) != value for key, value in _circumstances(threads).items()):
        return {}
    return {row["model"]: Row(**row) for row in saved["rows"]}


def _circumstances(threads: int) -> dict[str, Any]:
    return {"cpu": model_name(), "threads": threads, "versions": versions(), "onnxruntime": _onnxruntime()}


def _save(rows: dict[str, Row], threads: int, path: Path) -> None:
    data = {**_circumstances(threads), "rows": [asdict(row) for row in in_order(rows)]}
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def _into_readme(table: str) -> None:
    path = ROOT / "README.md"
    before, _, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    path.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
