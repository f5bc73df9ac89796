"""Runs ONNX's backend node tests through edgetune: prepare, lower, compile, run, compare.

    python benchmarks/node_tests.py                          all cases; writes docs/operators.md
    python benchmarks/node_tests.py --match 'lstm|gru'       some cases, summary only
    python benchmarks/node_tests.py --names cases.txt        the cases that a file names, one a line
    python benchmarks/node_tests.py --results r.jsonl --budget 200
                                                             a piece: no new case after 200 s; call it again
                                                             for the next, until all are in r.jsonl

Each case runs in one of a few worker processes under a timeout; a worker that crashes or hangs counts
against its case and is replaced. What is expected is what ONNX ships with the case; cases that ONNX
Runtime's CPU provider does not pass are reported apart. Inputs that are really settings (axes, shapes)
are fixed to the case's values where compiling without them is refused, as ``--freeze`` does.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import io
import json
import os
import re
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from case_runner import Say, run_cases

from edgetune.errors import last_line

ROOT = Path(__file__).resolve().parent.parent
MAX_SETTING_ELEMENTS = 16
STATES = ("right", "refused", "wrong", "failed", "crashed", "hung")


@dataclass(frozen=True)
class Outcome:
    """What became of one case.

    ``state`` is one of ``STATES``; ``failed`` is an exception that is no EdgetuneError. ``frozen``
    names the inputs that had to be fixed. ``reference`` says whether ONNX Runtime passes the case.
    """

    case: str
    op: str
    state: str
    reason: str = ""
    reference: bool = False
    frozen: tuple[str, ...] = ()
    seconds: float = 0.0


def cases() -> dict[str, Any]:
    """ONNX's node cases by name."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        found = {case.name: case for case in collect_testcases(None)}
    for case in found.values():
        case.data_sets[:] = [tuple([as_array(v) for v in side] for side in pair) for pair in case.data_sets]
    return found


def as_array(value: Any) -> Any:
    """A value of a case; those of types that NumPy lacks come as ONNX tensors."""
    from onnx import TensorProto, numpy_helper

    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else value


def operator_of(case: Any) -> str:
    """The operator under test: the one that the case is named after, or its first node's."""
    nodes = case.model.graph.node
    if not nodes:
        return "?"
    node = nodes[-1] if "_expanded" in case.name else nodes[0]
    if "_expanded" in case.name:
        return "(function bodies)"
    return str(node.op_type)


def readable(case: Any) -> tuple[Any, bool]:
    """The case, its model declared for the newest opset at which ONNX Runtime passes it, and whether it does.

    ONNX knows newer opsets than ONNX Runtime; most operators are the same in the one before.
    """
    own = next((entry.version for entry in case.model.opset_import if entry.domain == ""), 0)
    for opset in [own, *range(min(own - 1, 26), 20, -1)]:
        changed = copy.deepcopy(case) if opset != own else case
        for entry in changed.model.opset_import:
            if entry.domain == "":
                entry.version = opset
        if passes_onnxruntime(changed):
            return changed, True
    return case, False


def passes_onnxruntime(case: Any) -> bool:
    """Whether ONNX Runtime's CPU provider gives the values that ONNX expects."""
    import onnxruntime

    from edgetune import narrow

    try:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        wide = narrow.widen(case.model)
        session = onnxruntime.InferenceSession(
            wide.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        outputs = [value.name for value in case.model.graph.output]
        for inputs, expected in case.data_sets:
            names = [value.name for value in case.model.graph.input]
            arrays = [value if isinstance(value, list) else np.asarray(value) for value in inputs]
            given = wide.feed(dict(zip(names, arrays, strict=False)))
            got = wide.result(outputs, session.run(wide.names(outputs), given))
            if difference(expected, list(got.values()), case):
                return False
    except Exception:  # ONNX Runtime raises types of its own
        return False
    return True


def difference(expected: list[Any], got: list[Any], case: Any) -> str:
    """What differs by more than the case's tolerance; empty where nothing does."""
    for index, (want, have) in enumerate(zip(expected, got, strict=True)):
        if isinstance(want, (list, str)) or want is None or getattr(want, "dtype", None) == np.object_:
            if not isinstance(want, np.ndarray) or not np.array_equal(want, have):
                return f"output {index} is no tensor of numbers"
            continue
        want, have = np.asarray(want), np.asarray(have)
        if want.shape != have.shape or want.dtype != have.dtype:
            return f"output {index} is {have.dtype} {list(have.shape)}, not {want.dtype} {list(want.shape)}"
        if want.dtype.kind in "biu":
            if not np.array_equal(want, have):
                return f"output {index} differs in {np.count_nonzero(want != have)} of {want.size} elements"
            continue
        if want.dtype.kind not in "fc":
            want, have = want.astype(np.float32), have.astype(np.float32)
        if not np.allclose(have, want, case.rtol, case.atol, equal_nan=True):
            with np.errstate(all="ignore"):
                return f"output {index} differs by up to {np.nanmax(np.abs(have.astype(float) - want)):.3g}"
    return ""


FLOAT_SETTINGS = ("Resize", "Upsample", "OneHot", "Dropout", "MelWeightMatrix", "Range")
"""Operators whose scales, depth, ratio or limits, which a compiler must know, are floats."""


GENERATING = re.compile(
    r"test_(range|hannwindow|hammingwindow|blackmanwindow|melweightmatrix|constantofshape)"
)
"""Cases of operators that make a tensor out of settings alone."""


def settings(case: Any) -> dict[str, np.ndarray]:
    """Small inputs that say what to do: integers and flags, and floats of some operators."""
    from edgetune.dtypes import plain

    names = [value.name for value in case.model.graph.input]
    floats = case.model.graph.node and (
        case.model.graph.node[0].op_type in FLOAT_SETTINGS or case.name.startswith("test_range_")
    )
    first_counts = "_range_" in case.name or "melweight" in case.name
    found = {}
    for index, (name, value) in enumerate(zip(names, case.data_sets[0][0], strict=False)):
        if isinstance(value, list):
            continue
        array = np.asarray(value)
        kinds = "iubf" if floats and (index or first_counts) else "iub"
        if array.ndim <= 1 and array.size <= MAX_SETTING_ELEMENTS and plain(array).dtype.kind in kinds:
            found[name] = array
    return found


def run_case(case: Any, target: Any) -> tuple[str, str, tuple[str, ...]]:
    """State, reason and frozen inputs of one case."""
    from edgetune.errors import EdgetuneError

    attempts: list[dict[str, np.ndarray]] = [{}]
    fixed = settings(case)
    if fixed and len(fixed) == len(case.model.graph.input) and not GENERATING.match(case.name):
        # Something must be left to compute with; what settings say something about comes first.
        fixed.pop(case.model.graph.input[0].name, None)
    if fixed:
        attempts.append(fixed)
    reason = ""
    for frozen in attempts:
        try:
            wrong = compile_and_compare(case, target, frozen)
        except EdgetuneError as error:
            reason = str(error)
            continue
        return ("wrong" if wrong else "right"), wrong, tuple(frozen)
    return "refused", reason, ()


def compile_and_compare(case: Any, target: Any, frozen: dict[str, np.ndarray]) -> str:
    """Compile the case's model and compare what it gives; the difference, or an empty string."""
    from edgetune.dtypes import held, unheld
    from edgetune.graph.compile import compile_model
    from edgetune.graph.execute import loaded
    from edgetune.graph.lower import lower
    from edgetune.model.prepare import prepare

    names = [value.name for value in case.model.graph.input]
    first = dict(zip(names, case.data_sets[0][0], strict=False))
    shapes = {
        name: np.shape(value)
        for name, value in first.items()
        if not isinstance(value, list) and np.asarray(value).dtype != object and name not in frozen
    }
    prepared = prepare(case.model, shapes, frozen)
    compiled = compile_model(lower(prepared, target), (), target)
    run = loaded(compiled)
    for inputs, expected in case.data_sets:
        given = dict(zip(names, inputs, strict=False))
        got = run([held(np.asarray(given[spec.name])) for spec in compiled.inputs])
        got = [unheld(array, spec.dtype) for array, spec in zip(got, compiled.outputs, strict=True)]
        if problem := difference(expected, got, case):
            return problem
    return ""


def answerer() -> Callable[[str, Say], Outcome]:
    """What a worker does with the name of a case; it says whether ONNX Runtime passes it."""
    from edgetune.targets import detect_local

    os.nice(10)
    target = detect_local(threads=1)
    known = cases()

    def answer(name: str, say: Say) -> Outcome:
        start = time.monotonic()
        case, reference = readable(known[name])
        say(reference)
        try:
            state, reason, frozen = run_case(case, target)
        except Exception as error:
            state, reason, frozen = "failed", f"{type(error).__name__}: {last_line(error)[:300]}", ()
        return Outcome(name, operator_of(case), state, reason, reference, frozen, time.monotonic() - start)

    return answer


def show(outcomes: list[Outcome], total: int) -> None:
    """One line of progress."""
    if len(outcomes) % 20 == 0 or len(outcomes) == total:
        counts = Counter(o.state for o in outcomes)
        print(f"{len(outcomes)}/{total} " + " ".join(f"{s} {counts[s]}" for s in STATES), file=sys.stderr)


def read_results(path: Path) -> list[Outcome]:
    """Outcomes of earlier pieces."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [Outcome(**{**fields, "frozen": tuple(fields["frozen"])}) for fields in map(json.loads, lines)]


def summary(outcomes: list[Outcome]) -> str:
    """Counts over all cases and over those that ONNX Runtime passes."""
    lines = []
    for title, chosen in (
        ("all cases", outcomes),
        ("that ONNX Runtime passes", [o for o in outcomes if o.reference]),
    ):
        counts = Counter(o.state for o in chosen)
        lines.append(f"{title}: {len(chosen)}; " + ", ".join(f"{counts[s]} {s}" for s in STATES))
    return "\n".join(lines)


def table(outcomes: list[Outcome]) -> str:
    """The document."""
    by_op: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_op[outcome.op].append(outcome)
    counts = Counter(o.state for o in outcomes if o.reference)
    total = sum(counts.values())
    others = Counter(o.state for o in outcomes if not o.reference)
    minutes = sum(o.seconds for o in outcomes) / 60
    lines = [
        "# Operators",
        "",
        "Results of ONNX's own node tests, each compiled and run on a CPU by edgetune's whole pipeline, against the",
        f"values that ONNX ships with them. ONNX Runtime's CPU provider passes {total} of the {len(outcomes)} cases.",
        f"Of these {counts['right']} are right ({counts['right'] / max(total, 1):.1%}), {counts['refused']} are "
        f"refused with a reason, {_bad(counts)} are wrong or fail.",
        f"Of the other {sum(others.values())} cases, which ONNX Runtime, the reference, does not pass, "
        f"{others['refused']} are refused, {_bad(others)} wrong or fail.",
        "",
        "Inputs that a compiler must know (axes, shapes, scales) are fixed to the case's values where compiling is",
        "refused without, as `--freeze` does.",
        "",
        f"Made by `python benchmarks/node_tests.py`, in {minutes:.0f} minutes of one core.",
        "",
        "| operator | cases | right | refused | wrong | not passed by ONNX Runtime | why refused, or what is wrong |",
        "|---|--:|--:|--:|--:|---|---|",
    ]
    lines += [_row(op, found) for op, found in sorted(by_op.items())]
    return "\n".join(lines) + "\n"


def _bad(counts: Counter[str]) -> int:
    return sum(counts[state] for state in STATES[2:])


def _row(op: str, found: list[Outcome]) -> str:
    states = Counter(o.state for o in found if o.reference)
    others = Counter(o.state for o in found if not o.reference)
    beyond = ", ".join(f"{others[state]} {state}" for state in STATES if others[state])
    reasons = dict.fromkeys(_short(o.reason) for o in found if o.state != "right")
    return (
        f"| {op} | {sum(states.values())} | {states['right']} | {states['refused']} | {_bad(states)} | "
        f"{beyond} | {'; '.join(list(reasons)[:3])} |"
    )


def _short(reason: str) -> str:
    reason = reason.removeprefix("the model cannot be imported: ").split(" `edgetune check`")[0]
    reason = re.sub(r"(input|output) '[^']*'", r"an \1", reason).replace(
        "Non-zero status code returned while ", ""
    )
    return re.sub(r"\s+", " ", reason).replace("|", "\\|")[:160].rstrip(". ")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--match", help="only cases whose name matches this regular expression")
    parser.add_argument("--names", type=Path, help="only the cases that this file names")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--budget", type=float, default=float("inf"), help="start no case after so many seconds"
    )
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for one case")
    parser.add_argument("--results", type=Path, help="JSON lines of outcomes: added to, and not run again")
    parser.add_argument("--list", action="store_true", help="print every case that is not right")
    options = parser.parse_args()
    known = cases()
    total = len(known)
    if options.match:
        known = {name: case for name, case in known.items() if re.search(options.match, name)}
    if options.names:
        known = {name: known[name] for name in options.names.read_text().split()}
    outcomes = read_results(options.results) if options.results else []
    done = {o.case for o in outcomes}
    missing = [name for name in known if name not in done]

    def lost(name: str, state: str, reason: str, reference: bool | None) -> Outcome:
        return Outcome(name, operator_of(known[name]), state, reason, bool(reference))

    new = run_cases(
        missing,
        answerer,
        workers=options.workers,
        timeout_s=options.timeout,
        lost=lost,
        show=functools.partial(show, total=len(missing)),
        budget_s=options.budget,
    )
    if options.results:
        with options.results.open("a") as stream:
            stream.writelines(json.dumps(asdict(o)) + "\n" for o in new)
    outcomes = sorted([o for o in outcomes if o.case in known] + new, key=lambda o: o.case)
    if options.list:
        for o in outcomes:
            if o.state != "right":
                print(
                    f"{o.case}: {o.state}{'' if o.reference else ' (so is ONNX Runtime)'}: {_short(o.reason)}"
                )
    if len(outcomes) == total:
        (ROOT / "docs" / "operators.md").write_text(table(outcomes))
    print(summary(outcomes))


if __name__ == "__main__":
    main()
