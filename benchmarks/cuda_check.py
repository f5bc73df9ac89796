"""Tunes a model on this machine's NVIDIA GPU, verifies it, and times it beside ONNX Runtime: all that takes a GPU.

    python benchmarks/cuda_check.py                              PP-OCR's classifier, four minutes of tuning
    python benchmarks/cuda_check.py --time 60 --model squeezenet another model of models/, a minute of tuning
    python benchmarks/cuda_check.py --target ./mine.toml         another target than the shipped one of this GPU
    python benchmarks/cuda_check.py --out found                  keep the bundle and the figures there

Takes NVIDIA's driver, nvcc, and CUDA 13's runtime (libcudart.so.13), which TVM's wheel is linked against. With the
defaults it ends in under eight minutes: tuning takes ``--time``, compiling, verifying and timing the rest. ONNX Runtime
runs on the CPU, with as many threads as the machine lets this process have. The times of both have the inputs' and
outputs' way to and from the program in them, for the GPU that of a copy.

Prints one JSON object, also written to ``OUT/figures.json``; what it does meanwhile goes to stderr. Exit codes: 0 done,
3 the outputs differ from ONNX Runtime's, 4 there is no GPU here, 1 anything else that failed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import edgetune
from edgetune.cpu import architecture, missing_features, model_name
from edgetune.cuda import find_nvcc, local_gpu, nvcc_version, runs_cubins
from edgetune.machine import usable_cpus
from edgetune.model.registry import fetch, get
from edgetune.results import verification_json
from edgetune.targets import Target, list_targets, load_target
from edgetune.tvm_runtime import load_gpu_runtime
from edgetune.versions import versions
from edgetune.watcher import Watcher


class _Teller(Watcher):
    """Says on stderr what is done."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self._started:6.1f} s  {text}", file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        self.say(f"note: {text}")


def main() -> int:
    """Run the check; its exit code."""
    options = _options()
    try:
        target = _target(options.target)
        load_gpu_runtime()
        figures = check(options, target)
    except edgetune.EdgetuneError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    text = json.dumps(figures, indent=2)
    (Path(options.out) / "figures.json").write_text(f"{text}\n", encoding="utf-8")
    print(text)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="ppocr-cls", help="a model of models/ (default: %(default)s)")
    parser.add_argument("--time", default="4m", help="budget of the search (default: %(default)s)")
    parser.add_argument("--target", help="default: the shipped CUDA target that this GPU and CPU run")
    parser.add_argument(
        "--out", default="cuda-check", help="folder of bundle, logs and figures (default: %(default)s)"
    )
    return parser.parse_args()


def _target(name: str | None) -> Target:
    """The target asked for, or the shipped one that fits this machine.

    Raises:
        DeviceError: there is no GPU here, or none that a shipped target, or the one asked for, is for.
    """
    found = local_gpu()
    if not found:
        raise edgetune.DeviceError(
            "there is no NVIDIA GPU that its driver (libcuda.so.1) shows to this process; run this on a machine that "
            "has one. Compiling for GPUs takes none: 'edgetune compile MODEL --target h100-cuda'"
        )
    targets = list_targets() if name is None else [load_target(name)]
    for target in targets:
        if (
            target.gpu is not None
            and runs_cubins(target.gpu.arch, found)
            and target.arch == architecture()
            and not missing_features(target.required_features())
        ):
            return target
    raise edgetune.DeviceError(
        f"no shipped CUDA target is for {found} and {architecture()}; write one (docs/targets.md) and name it with "
        "--target"
        if name is None
        else f"target {name} is not for this machine's {found} and {architecture()}; leave --target away"
    )


def check(options: argparse.Namespace, target: Target) -> dict[str, Any]:
    """Tune, verify and time the model; what was found."""
    started = time.monotonic()
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    entry = get(options.model)
    shapes = {name: tuple(shape) for name, shape in entry.shapes.items()}
    result = edgetune.tune(
        fetch(options.model),
        options.target or target.name,
        time=options.time,
        shapes=shapes,
        freeze=entry.freeze,
        out=out / "bundle",
        logs=out / "logs.db",
        threads=len(usable_cpus()),
        watcher=_Teller(),
    )
    nvcc = find_nvcc()
    return {
        "model": options.model,
        "target": target.name,
        "gpu": local_gpu(),
        "cpu": model_name(),
        "versions": versions(),
        "nvcc": None if nvcc is None else ".".join(map(str, nvcc_version(nvcc))),
        "threads": len(usable_cpus()),
        "tasks": len(result.tasks),
        "trials": result.trials_spent,
        "failures": dict(result.failures),
        "latency_ms": result.latency_ms.to_json(),
        "speedup_vs_onnxruntime": result.speedup_vs_onnxruntime,
        "verified": verification_json(result.verified),
        "wall_s": round(time.monotonic() - started, 1),
    }


if __name__ == "__main__":
    sys.exit(main())
