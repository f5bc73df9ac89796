"""Compares every public model of models/ with ONNX Runtime on ten random inputs, state fed back where there is any.

    python benchmarks/equality.py                            all models, each compiled with default schedules
    python benchmarks/equality.py --models magika --inputs 3

The bundle is loaded and run as a user's program would; ONNX Runtime runs the original file. Tolerances are those of
`edgetune compare`. Models whose weights are constants get seeded random ones. Of a stateful model, every step's
state is the one that its own side gave in the step before. Exit code 1 when any value differs by more.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import edgetune
from edgetune.model import registry
from edgetune.model.passes.freeze_inputs import frozen_arrays
from edgetune.model.reference import random_inputs
from edgetune.model.session import Session
from edgetune.records import OutputDifference, TensorSpec
from edgetune.verify import difference

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Equality:
    """What comparing one model found: ``worst`` is the output with the largest error beside what is allowed."""

    model: str
    runs: int
    steps: int
    worst: OutputDifference | None
    failed: tuple[str, ...]
    seconds: float


def compare(name: str, inputs: int, steps: int) -> Equality:
    """Compile a model and compare its values with ONNX Runtime's on random inputs, then over a sequence of steps."""
    from edgetune.model import interface
    from edgetune.model.loading import load_model

    start = time.monotonic()
    entry = registry.get(name)
    path = registry.fetch(name, random_weights=entry.constant_weights)
    source = load_model(str(path))
    session = Session(source.proto)
    frozen = frozen_arrays(interface.inputs(source.proto), entry.freeze)
    with tempfile.TemporaryDirectory() as folder:
        bundle = edgetune.compile(
            str(path), shapes=entry.shapes, freeze=entry.freeze, out=Path(folder, "b")
        ).bundle
        model = edgetune.load(bundle)
        found: list[OutputDifference] = []
        for seed in range(inputs):
            given = random_inputs(model.inputs, 1000 + seed)
            found += differences(session.run({**given, **frozen}), model.run(given))
        pairs = state(model.inputs, model.outputs)
        if pairs:
            mine = theirs = {spec.name: np.zeros(spec.shape, spec.dtype) for spec in model.inputs}
            for step in range(steps):
                given = random_inputs([s for s in model.inputs if s.name not in pairs], 2000 + step)
                expected, got = session.run({**theirs, **given, **frozen}), model.run({**mine, **given})
                found += differences(expected, got)
                mine = {**mine, **{name: got[output] for name, output in pairs.items()}}
                theirs = {**theirs, **{name: expected[output] for name, output in pairs.items()}}
    worst = max(found, key=lambda d: d.passing_atol / d.atol if d.atol else d.passing_atol, default=None)
    failed = tuple(d.describe() for d in found if not d.passed)
    return Equality(name, inputs, steps if pairs else 0, worst, failed, time.monotonic() - start)


def differences(expected: Arrays, got: Arrays) -> list[OutputDifference]:
    """One for each output."""
    return [difference(name, value, got[name]) for name, value in expected.items()]


def state(inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]) -> dict[str, str]:
    """Inputs that carry state -> the outputs that give the next one: those of the same place, type and shape.

    The first input is what the model works on, the first output its answer.
    """
    pairs = zip(inputs[1:], outputs[1:], strict=False)
    return {i.name: o.name for i, o in pairs if (i.dtype, i.shape) == (o.dtype, o.shape)}


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [entry.name for entry in registry.list_models() if entry.imports]
    parser.add_argument("--models", nargs="*", default=names, help="names of models/registry.toml")
    parser.add_argument("--inputs", type=int, default=10, help="random inputs for each")
    parser.add_argument("--steps", type=int, default=10, help="steps of a stateful model")
    options = parser.parse_args()
    failed = False
    for name in options.models:
        row = compare(name, options.inputs, options.steps)
        failed |= bool(row.failed)
        error = row.worst.max_abs_error if row.worst else 0.0
        print(
            f"{name}: {'differs' if row.failed else 'equal'}; {row.runs} inputs, {row.steps} steps; "
            f"largest error {error:.2g} ({row.seconds:.0f} s)",
            *row.failed[:1],
            flush=True,
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
