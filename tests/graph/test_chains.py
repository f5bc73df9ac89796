"""Chains of functions that use their argument more than once."""

from __future__ import annotations

import itertools

import pytest

from edgetune.graph.lower import lower
from edgetune.targets import Target
from tests.graph.support import check, model, node, weights


@pytest.mark.usefixtures("no_fallback")
@pytest.mark.parametrize(("op", "length"), [("Sigmoid", 7), ("Relu", 40)])
def test_long_chains_compile(op: str, length: int, local_target: Target) -> None:
    """In one kernel, TVM would generate code for hours; the values are ONNX Runtime's."""
    names = ["x", *(f"t{i}" for i in range(1, length)), "y"]
    nodes = [node(op, [x], [y]) for x, y in itertools.pairwise(names)]
    check(model(nodes, {"x": (2, 24)}, {}), local_target)


@pytest.mark.usefixtures("no_fallback")
def test_what_uses_its_arguments_once_stays_one_kernel(local_target: Target) -> None:
    names = ["x", *(f"t{i}" for i in range(1, 30)), "y"]
    nodes = [
        node("Add" if i % 2 else "Mul", [x, "w"], [y]) for i, (x, y) in enumerate(itertools.pairwise(names))
    ]
    prepared = check(model(nodes, {"x": (2, 24)}, {"w": weights(24)}), local_target)
    assert len(lower(prepared, local_target).tasks) == 1
