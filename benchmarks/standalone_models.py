"""Standalone libraries of the public models against ONNX Runtime, on this machine and on emulated ones.

    python benchmarks/standalone_models.py WORK                         every model, every machine
    python benchmarks/standalone_models.py WORK ppocr-cls --on aarch64 --on aarch64-musl
    python benchmarks/standalone_models.py WORK --table                 what WORK holds, as a table

A model is compiled with default schedules for each architecture, an app in C (``examples/c/run_model.c``) is
linked with its shared library (with glibc) or its static one (with musl), and run natively or by qemu-user on
the recorded inputs. Its outputs are compared with ONNX Runtime's under the tolerances of ``edgetune compare``.
Results are kept in ``WORK/results.json``; a model that has passed is not run again.

Wanted: qemu-user-static and gcc for aarch64, arm (hard float) and riscv64 (Debian: gcc-aarch64-linux-gnu and so
on). The musl apps are linked by the clang of the package ziglang, which builds musl for its first one.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import edgetune
from edgetune.bundle.reader import open_bundle
from edgetune.model import registry
from edgetune.standalone.emit import program_symbol
from edgetune.toolchain import zig
from edgetune.verify import difference

APP = Path(__file__).resolve().parent.parent / "examples/c/run_model.c"
TIMEOUT_S = 200


@dataclass(frozen=True)
class Machine:
    """Where an app runs: the target to compile for, how to link, and what starts it."""

    target: str
    compiler: str
    emulator: tuple[str, ...] = ()
    zig_target: str = ""


def _emulated(arch: str, gnu: str, target: str) -> dict[str, Machine]:
    emulator = f"qemu-{arch}-static"
    musl = {"arm": "arm-linux-musleabihf"}.get(arch, f"{arch}-linux-musl")
    return {
        arch: Machine(target, f"{gnu}-gcc", (emulator, "-L", f"/usr/{gnu}")),
        f"{arch}-musl": Machine(target, "", (emulator,), musl),
    }


MACHINES = {
    "x86_64": Machine("x86-64-v3", "gcc"),
    "x86_64-musl": Machine("x86-64-v3", "", (), "x86_64-linux-musl"),
    **_emulated("aarch64", "aarch64-linux-gnu", "armv8-a"),
    **_emulated("arm", "arm-linux-gnueabihf", "armv7-a"),
    **_emulated("riscv64", "riscv64-linux-gnu", "riscv64"),
}


def check(name: str, machine: Machine, work: Path) -> dict[str, object]:
    """Compile, link, run and compare one model for one machine."""
    bundle = work / f"{name}-{machine.target}"
    if not bundle.exists():
        entry = registry.get(name)
        path = registry.fetch(name, random_weights=True)
        edgetune.compile(
            path, machine.target, shapes=entry.shapes, freeze=entry.freeze, out=bundle, standalone=True
        )
    opened = open_bundle(bundle)
    (run,) = opened.reference_runs()
    folder = work / f"run-{name}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for index, spec in enumerate(opened.manifest.inputs):
        run.inputs[spec.name].tofile(folder / f"input{index}")
    app = link(bundle, opened.manifest.model.name, machine, folder / "app")
    started = time.monotonic()
    command = [*machine.emulator, str(app), str(bundle / "weights.bin"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode != 0:
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr.strip()[-300:]}")
    seconds = time.monotonic() - started
    found = []
    for index, tensor in enumerate(opened.manifest.outputs):
        actual = np.fromfile(folder / f"output{index}", tensor.dtype).reshape(tensor.shape)
        found.append(difference(tensor.name, run.outputs[tensor.name], actual))
    shutil.rmtree(folder)
    return {
        "passed": all(item.passed for item in found),
        "max_abs_error": max(item.max_abs_error for item in found),
        "seconds": round(seconds, 2),
        "problem": "; ".join(item.describe() for item in found if not item.passed),
    }


def link(bundle: Path, name: str, machine: Machine, app: Path) -> Path:
    """The app with the model: with glibc the shared library, with musl the static one."""
    include = [str(APP), f"-I{bundle}", "-O1", "-o", str(app)]
    if machine.zig_target:
        command = [str(zig()), "cc", "-target", machine.zig_target, "-static"]
        unwind = []
        if "arm-" in machine.zig_target:
            # On 32-bit ARM, kernels call functions of libgcc, which zig's own library has under other names.
            division = app.with_name("division.c")
            division.write_text("int __divsi3(int a, int b) { return a / b; }\n")
            unwind = ["-lunwind", str(division)]
        linked = [f"-DPROGRAM={program_symbol(name)}", str(bundle / "libmodel.a"), "-lm", "-pthread", *unwind]
    else:
        command = [machine.compiler]
        linked = [str(bundle / "model.so"), f"-Wl,-rpath,{bundle}"]
    done = subprocess.run([*command, *include, *linked], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"linking failed: {done.stderr.strip()[-300:]}")
    return app


def table(results: dict[str, dict[str, object]]) -> str:
    """Largest absolute errors by model and machine."""
    names = list(dict.fromkeys(key.split("/")[0] for key in results))
    lines = [f"| model | {' | '.join(MACHINES)} |", f"|---|{'--:|' * len(MACHINES)}"]
    for name in names:
        cells = []
        for machine in MACHINES:
            row = results.get(f"{name}/{machine}")
            error = f"{row['max_abs_error']:.1e}" if row and row["passed"] else "**differs**" if row else "-"
            cells.append("failed" if row and row["problem"] and not row["passed"] else error)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    """Parse the command line and run; 1 where something differs or fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("work", type=Path)
    parser.add_argument("models", nargs="*", help="default: all of models/ that can be imported")
    parser.add_argument("--on", action="append", choices=list(MACHINES), help="default: every machine")
    parser.add_argument("--table", action="store_true", help="only print what is known")
    options = parser.parse_args()
    work = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    kept = work / "results.json"
    results: dict[str, dict[str, object]] = json.loads(kept.read_text()) if kept.exists() else {}
    models = options.models or [entry.name for entry in registry.list_models() if entry.imports]
    for name in () if options.table else models:
        for machine in options.on or MACHINES:
            key = f"{name}/{machine}"
            if results.get(key, {}).get("passed"):
                continue
            try:
                results[key] = check(name, MACHINES[machine], work)
            except (edgetune.EdgetuneError, RuntimeError, subprocess.TimeoutExpired, OSError) as error:
                results[key] = {"passed": False, "max_abs_error": 0.0, "seconds": 0, "problem": str(error)}
            print(key, results[key], file=sys.stderr)
            kept.write_text(json.dumps(results, indent=1) + "\n")
    print(table(results))
    return 0 if all(row["passed"] for row in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
