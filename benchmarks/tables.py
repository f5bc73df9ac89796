"""The tables and the plot of ``models.py``, from the rows that it saves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgetune.model.registry import list_models

Row = dict[str, Any]
LABELS = {
    "edgetune": "edgetune",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
    "mnn": "MNN",
    "ncnn": "ncnn",
    "litert": "LiteRT",
    "iree": "IREE",
}
WRONG = 1e-2
"""An output off by more than this part of its largest value is not the model's: such a side's time is put in
brackets and counts nowhere."""


def in_order(rows: Sequence[Row]) -> list[Row]:
    """The rows in the order of ``edgetune models list``."""
    by_name = {row["model"]: row for row in rows}
    return [by_name[entry.name] for entry in list_models() if entry.name in by_name]


def render(rows: Sequence[Row], measured_on: dict[str, Any]) -> list[str]:
    """The tables in Markdown.

    Tuning and speed beside ONNX Runtime; medians of all runtimes; p90; memory; errors; roofline; and why a
    runtime is missing.
    """
    names = [name for name in LABELS if any(name in row["sides"] for row in rows)]
    threads = measured_on["threads"]
    head = (
        f"{measured_on['cpu']}, {threads} thread{'s' if threads > 1 else ''}, {measured_on['type']}, batch 1; "
        "medians in ms of "
        f"{measured_on['rounds']} interleaved rounds; ONNX Runtime {measured_on['onnxruntime']}, "
        f"TVM {measured_on['versions']['tvm']}.\n`untuned` is the model with default schedules; trials of an earlier "
        "run count, the seconds are those of the last one."
    )
    return [
        f"{head}\n\n{_speed(rows)}",
        f"Median ms of single runs:\n\n{_sides(rows, names, 'median_ms')}\n\n{_means(rows, names)}",
        f"90th percentile, ms:\n\n{_sides(rows, names, 'p90_ms')}",
        f"Peak memory of the process, MiB:\n\n{_sides(rows, names, 'peak_memory_bytes', 1 / 2**20)}",
        f"Largest difference from ONNX Runtime, as a part of the output's largest value:\n\n{_errors(rows, names)}",
        f"Distance from the roofline:\n\n{_roofline(rows)}",
        _refused(rows),
    ]


def _table(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = "|".join(["---", *("--:" for _ in columns[1:])])
    return "\n".join(
        ["| " + " | ".join(columns) + " |", f"|{rule}|", *("| " + " | ".join(x) + " |" for x in lines)]
    )


def _speed(rows: Sequence[Row]) -> str:
    lines, ratios = [], []
    for row in rows:
        own, other = _ms(row, "edgetune"), _ms(row, "onnxruntime")
        speedup = None if own is None or other is None else other / own
        if speedup is not None:
            ratios.append(speedup)
        lines.append(
            [
                f"{row['model']} ({row['shape']})",
                str(row["tasks"]),
                str(row["trials"]),
                f"{row['tuned_s']:.0f}",
                _short(row["untuned_ms"]),
                _short(own),
                _short(other),
                "-" if speedup is None else f"**{speedup:.2f}**",
                f"{row['drift']:.0%}",
            ]
        )
    columns = [
        "model (input)",
        "kernels",
        "trials",
        "tuning s",
        "untuned",
        "edgetune",
        "ONNX Runtime",
        "speedup",
        "drift",
    ]
    mean = f"\n\nGeometric mean of the speedups: {_mean(ratios):.2f}." if ratios else ""
    return _table(columns, lines) + mean


def _sides(rows: Sequence[Row], names: Sequence[str], key: str, scale: float = 1.0) -> str:
    lines = []
    for row in rows:
        cells = [row["model"]]
        for name in names:
            side = row["sides"].get(name)
            cell = "-" if side is None else _short(side[key] * scale)
            cells.append(f"({cell})" if side is not None and not _is_right(side) else cell)
        lines.append(cells)
    return _table(["model", *(LABELS[name] for name in names)], lines)


def _means(rows: Sequence[Row], names: Sequence[str]) -> str:
    """How edgetune stands against each runtime, and against the fastest one of each model."""
    sentences = []
    for name in names[1:]:
        pairs = [(_ms(row, name), _ms(row, "edgetune")) for row in rows]
        ratios = [other / own for other, own in pairs if other is not None and own]
        if ratios:
            least = min(ratios)
            sentences.append(f"{LABELS[name]} {_mean(ratios):.2f} (least {least:.2f}, of {len(ratios)})")
    first = sum(_is_first(row, names) for row in rows)
    beside = f"{', '.join(sentences)}. " if sentences else "none to compare. "
    return (
        f"Geometric means of a runtime's latency over edgetune's, with the least and the number of models: "
        f"{beside}edgetune is the fastest on "
        f"{first} of {len(rows)} models. Times in brackets are of outputs that differ by more than {WRONG:.0%}."
    )


def _is_first(row: Row, names: Sequence[str]) -> bool:
    own = _ms(row, "edgetune")
    return own is not None and own <= min(filter(None, (_ms(row, name) for name in names)))


def _errors(rows: Sequence[Row], names: Sequence[str]) -> str:
    lines = []
    for row in rows:
        errors = [row["sides"].get(name, {}).get("error") for name in names]
        cells = [
            "-" if error is None else error if isinstance(error, str) else f"{error:.0e}" for error in errors
        ]
        lines.append([row["model"], *cells])
    return _table(["model", *(LABELS[name] for name in names)], lines)


def _roofline(rows: Sequence[Row]) -> str:
    """The model's own operations per second beside the peak; least time of all kernels beside the latency."""
    lines = []
    for row in rows:
        profile, own = row["profile"], float(row["sides"]["edgetune"]["median_ms"])
        machine = profile["machine"]
        gflops = row["flops"] / own / 1e6
        least_ms = sum(kernel["roofline"] * kernel["time_us"] for kernel in profile["kernels"]) / 1e3
        lines.append(
            [
                row["model"],
                f"{row['flops'] / 1e6:.3g}",
                f"{gflops:.3g}",
                f"{machine['peak_gflops']:.0f}",
                f"{gflops / machine['peak_gflops']:.0%}",
                f"{machine['bandwidth'][-1]['gbps']:.3g}",
                _short(least_ms),
                f"{least_ms / own:.0%}",
            ]
        )
    columns = [
        "model",
        "MFLOP",
        "GFLOP/s",
        "peak",
        "share",
        "GB/s of main memory",
        "least ms of its kernels",
        "reached",
    ]
    return _table(columns, lines) + (
        "\n\n`share`: the operations of the model as published, over the latency and the measured peak; algorithms "
        "that need fewer operations may exceed 100%. `reached`: the least time that this machine could take for the "
        "bundle's kernels, by operations and bytes, over the latency."
    )


def _refused(rows: Sequence[Row]) -> str:
    lines = [
        f"- {LABELS.get(name, name)}, {row['model']}: {reason}"
        for row in rows
        for name, reason in row["refused"].items()
    ]
    return "Did not run:\n\n" + "\n".join(lines) if lines else "Every runtime ran every model."


def _is_right(side: dict[str, Any]) -> bool:
    error = side.get("error")
    return error is None or (not isinstance(error, str) and error <= WRONG)


def _ms(row: Row, name: str) -> float | None:
    side = row["sides"].get(name)
    return None if side is None or not _is_right(side) else float(side["median_ms"])


def _mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def _short(number: float | None) -> str:
    return "-" if number is None else f"{number:.3g}" if number < 1000 else f"{number:.0f}"


def plot(rows: Sequence[Row], threads: int, path: Path) -> None:
    """Each runtime's latency over edgetune's, model by model, as one HTML file that needs no network.

    Raises:
        ImportError: plotly is not installed.
    """
    from plotly import graph_objects

    figure = graph_objects.Figure()
    for name in list(LABELS)[1:]:
        found = [(row, _ms(row, name)) for row in rows]
        ratios = [
            None if other is None else other / row["sides"]["edgetune"]["median_ms"] for row, other in found
        ]
        if any(ratios):
            figure.add_bar(name=LABELS[name], x=[row["model"] for row in rows], y=ratios)
    figure.add_hline(y=1.0, annotation_text="edgetune")
    figure.update_layout(
        title=f"Latency over edgetune's, {threads} thread{'s' if threads > 1 else ''}: above 1, edgetune is faster",
        yaxis={"type": "log", "title": "times edgetune's latency"},
        barmode="group",
    )
    figure.write_html(path, include_plotlyjs=True)
