"""Runs random and mutated ONNX models through edgetune: each is right, or refused in one message.

    python benchmarks/fuzz.py --count 2000                   seeds 0 to 1999
    python benchmarks/fuzz.py --first 1234 --count 1 -v      one case again, its model left in fuzz-1234.onnx
    python benchmarks/fuzz.py --results r.jsonl --budget 200 a piece: call it again until all seeds are in r.jsonl

A model is checked, compiled with default schedules, run on two sets of random inputs and compared with
ONNX Runtime's values. Worker processes take one model after another, each with a deadline; one that dies
or hangs counts against its model and is replaced. Where edgetune and ONNX Runtime differ and ONNX's
reference implementation sides with edgetune, or TopK sorts NaN, the case is ``disputed``, not wrong. Exit
code 1 when any case is wrong, failed (an exception that is no message for users), crashed or hung.
"""

from __future__ import annotations

import argparse
import functools
import io
import json
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from case_runner import Say, run_cases

from edgetune.errors import last_line

GOOD = ("right", "refused", "disputed")
BAD = ("wrong", "failed", "crashed", "hung")
RECYCLE = 250
"""Models that one worker takes: TVM keeps some memory of each."""


@dataclass(frozen=True)
class Outcome:
    """What became of the model of a seed; ``reason`` is the message, the difference or the traceback's end."""

    seed: int
    state: str
    reason: str = ""
    seconds: float = 0.0


def run_case(data: bytes, target: Any, say: Any) -> tuple[str, str]:
    """State and reason of one model; ``say`` is told which part runs, for the case that it never returns."""
    from edgetune.bundle.manifest import Tensor
    from edgetune.checking import check
    from edgetune.errors import EdgetuneError
    from edgetune.graph.compile import compile_model
    from edgetune.graph.execute import loaded
    from edgetune.graph.lower import lower
    from edgetune.model.prepare import prepare

    try:
        say("preparing")
        prepared = prepare(data)
        say("lowering")
        lowered = lower(prepared, target)
        for spec in (*prepared.inputs, *prepared.outputs):
            Tensor.of(spec)
        say("compiling")
        compiled = compile_model(lowered, (), target)
    except EdgetuneError as error:
        say("checking")
        return "refused", _refusal(data, str(error), check)
    say("running")
    from edgetune.dtypes import held, unheld

    run = loaded(compiled)
    worst = ("right", "")
    for inputs, expected in samples(data, prepared):
        got = run([held(inputs[spec.name]) for spec in compiled.inputs])
        pairs = zip(prepared.outputs, got, strict=True)
        outputs = {spec.name: unheld(array, spec.dtype) for spec, array in pairs}
        if problem := differing(expected, outputs):
            agreed = not differing(by_reference(data, inputs), outputs) or _sorts_nan(data, expected)
            worst = ("disputed" if agreed else "wrong", problem)
            if not agreed:
                break
    return worst


def _refusal(data: bytes, message: str, check: Any) -> str:
    """The message of a refusal; ``edgetune check`` must come to an answer, too."""
    from edgetune.errors import EdgetuneError

    try:
        found = check(data, target="local")
    except EdgetuneError as error:
        said = str(error)
    else:
        said = found.message or "supported"
    if not said.strip() or not message.strip():
        raise ValueError("a refusal without a message")
    return message


def samples(data: bytes, prepared: Any) -> Iterator[tuple[dict[str, np.ndarray], dict[str, np.ndarray]]]:
    """Inputs with ONNX Runtime's outputs: those of the reference run, and one more where the model runs on them."""
    from edgetune.errors import EdgetuneError
    from edgetune.model.reference import Ranges, random_inputs
    from edgetune.model.session import Session

    yield prepared.reference_inputs, prepared.reference_outputs
    more = {name: _wider(array) for name, array in random_inputs(prepared.inputs, 77, Ranges.WIDE).items()}
    try:
        yield more, Session(data).run(more)
    except EdgetuneError:
        return


def _sorts_nan(data: bytes, expected: dict[str, np.ndarray]) -> bool:
    """Whether the model sorts, and there is NaN, which the standard puts nowhere."""
    import onnx

    sorts = any(node.op_type == "TopK" for node in onnx.load_from_string(data).graph.node)
    return sorts and any(array.dtype.kind == "f" and np.isnan(array).any() for array in expected.values())


def _wider(array: np.ndarray) -> np.ndarray:
    """Negative integers as well, and floats further from zero."""
    if array.dtype.kind == "i":
        return np.asarray(array - 5)
    return np.asarray(array * 3).astype(array.dtype) if array.dtype.kind not in "bu" else array


def differing(expected: dict[str, np.ndarray] | None, outputs: dict[str, np.ndarray]) -> str:
    """The first output that differs by more than ``edgetune compare`` allows; empty where none does."""
    from edgetune.verify import difference

    if expected is None:
        return "no reference"
    for name, array in outputs.items():
        found = difference(name, expected.get(name), array)
        if not found.passed:
            return found.describe()
    return ""


def by_reference(data: bytes, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray] | None:
    """Outputs of ONNX's reference implementation; None where it cannot run the model."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    try:
        model = onnx.load_from_string(data)
        values = ReferenceEvaluator(model).run(None, inputs)
        return {
            value.name: np.asarray(array) for value, array in zip(model.graph.output, values, strict=True)
        }
    except Exception:
        return None


def answerer(kind: str | None) -> Callable[[int, Say], Outcome]:
    """What a worker does with a seed."""
    import fuzz_graphs

    from edgetune.targets import detect_local

    target = detect_local(threads=1)
    if kind != "random":
        fuzz_graphs.node_tests()

    def answer(seed: int, say: Say) -> Outcome:
        start = time.monotonic()
        say("making the model")
        try:
            with redirect_stdout(io.StringIO()):
                state, reason = run_case(fuzz_graphs.case(seed, kind), target, say)
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            said = f"{type(error).__name__}: {last_line(error)[:300]}"
            state, reason = "failed", f"{said} ({place.filename}:{place.lineno})"
        return Outcome(seed, state, reason[:600], time.monotonic() - start)

    return answer


def lost(seed: int, state: str, reason: str, part: str) -> Outcome:
    """The outcome of a model whose worker was lost."""
    return Outcome(seed, state, f"{reason} while {part}")


def show(outcomes: list[Outcome], total: int) -> None:
    """Progress and whatever is bad, on stderr."""
    last = outcomes[-1]
    if last.state in BAD:
        print(f"seed {last.seed}: {last.state}: {last.reason}", file=sys.stderr)
    if len(outcomes) % 100 == 0 or len(outcomes) == total:
        counts = Counter(outcome.state for outcome in outcomes)
        print(
            f"{len(outcomes)}/{total} " + " ".join(f"{s} {counts[s]}" for s in (*GOOD, *BAD)), file=sys.stderr
        )


def read_results(path: Path | None) -> list[Outcome]:
    """Outcomes of earlier pieces."""
    if path is None or not path.exists():
        return []
    return [Outcome(**json.loads(line)) for line in path.read_text().splitlines()]


def main() -> int:
    """Command line."""
    import fuzz_graphs

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=2000, help="how many models")
    parser.add_argument("--first", type=int, default=0, help="seed of the first one")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for one model")
    parser.add_argument("--kind", choices=fuzz_graphs.KINDS, help="only models of this kind")
    parser.add_argument("--results", type=Path, help="JSON lines of outcomes: added to, and not run again")
    parser.add_argument(
        "--budget", type=float, default=float("inf"), help="begin no model after so many seconds"
    )
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="print every outcome, and keep the models"
    )
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.count)
    earlier = [outcome for outcome in read_results(options.results) if outcome.seed in seeds]
    missing = [seed for seed in seeds if seed not in {outcome.seed for outcome in earlier}]
    new = run_cases(
        missing,
        functools.partial(answerer, options.kind),
        workers=options.workers,
        timeout_s=options.timeout,
        lost=lost,
        show=functools.partial(show, total=len(missing)),
        budget_s=options.budget,
        recycle=RECYCLE,
    )
    if options.results:
        with options.results.open("a") as stream:
            stream.writelines(json.dumps(asdict(outcome)) + "\n" for outcome in new)
    outcomes = [*earlier, *new]
    if options.verbose:
        for outcome in outcomes:
            Path(f"fuzz-{outcome.seed}.onnx").write_bytes(fuzz_graphs.case(outcome.seed, options.kind))
            print(f"seed {outcome.seed}: {outcome.state}: {outcome.reason}")
    counts = Counter(outcome.state for outcome in outcomes)
    print(json.dumps({state: counts[state] for state in (*GOOD, *BAD)}))
    return 1 if any(counts[state] for state in BAD) else 0


if __name__ == "__main__":
    sys.exit(main())
