"""A short run of the fuzzer: random and mutated models are right, or refused in one message."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

ROOT = Path(__file__).parents[1]
BAD = ("wrong", "failed", "crashed", "hung")


@pytest.mark.parametrize(("kind", "first", "count"), [("random", 0, 24), ("node", 0, 8)])
def test_nothing_is_wrong(kind: str, first: int, count: int) -> None:
    command = ["benchmarks/fuzz.py", "--kind", kind, "--first", str(first), "--count", str(count)]
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False, timeout=300
    )
    counts = json.loads(done.stdout)
    assert not any(counts[state] for state in BAD), done.stderr
    assert done.returncode == 0
    assert sum(counts.values()) == count
    if kind == "random":
        assert counts["right"] > count / 3


def test_a_seed_gives_the_same_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import fuzz_graphs

    assert fuzz_graphs.case(11, "random") == fuzz_graphs.case(11, "random")
    onnx.load_from_string(fuzz_graphs.case(12, "random"))
