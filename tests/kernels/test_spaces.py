"""Every schedule of every design space computes what the unscheduled kernel does."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from edgetune.graph.lower import lower
from edgetune.model.prepare import prepare
from edgetune.records import Task
from edgetune.targets import Target
from tests.graph import cases
from tests.graph.support import model, node, weights
from tests.graph.test_compile import network
from tests.kernels.support import Reference, replays, samples


def tasks_of(made: object, target: Target) -> tuple[Task, ...]:
    return lower(prepare(made), target).tasks  # type: ignore[arg-type]


def check(task: Task, target: Target, count: int) -> Counter[bool]:
    """Each space with its own and ``count`` random decisions; how many did and did not fit."""
    reference = Reference(task, target)
    fits: Counter[bool] = Counter()
    for index, schedule in samples(task, target, count):
        fits[schedule is not None] += 1
        if schedule is not None:
            assert reference.problem(schedule.mod) is None, (task.name, index, str(schedule.trace))
            assert replays(task, schedule), (task.name, index)
    return fits


def test_network(local_target: Target) -> None:
    fits: Counter[bool] = Counter()
    for task in tasks_of(network(), local_target):
        fits += check(task, local_target, 1)
    assert fits[True] > 9 * fits[False]


@pytest.mark.parametrize(
    ("shape", "out", "options"),
    [
        ((1, 3, 13, 11), 24, {"pads": [1, 1, 1, 1]}),
        ((2, 33, 7, 7), 40, {"strides": [2, 1]}),
        ((1, 32, 6, 10), 32, {"group": 2, "pads": [2, 2, 2, 2], "dilations": [2, 2]}),
        ((1, 20, 9, 5), 20, {"group": 20, "pads": [1, 0, 1, 2]}),
    ],
)
def test_convolutions(shape: tuple[int, ...], out: int, options: dict, local_target: Target) -> None:
    w = weights(out, shape[1] // options.get("group", 1), 3, 3)
    made = model([node("Conv", ["x", "w"], ["c"], **options), node("Relu", ["c"])], {"x": shape}, {"w": w})
    for task in tasks_of(made, local_target):
        if task.kind != "generic":
            assert check(task, local_target, 1)[False] == 0


@pytest.mark.parametrize("family", ["reduction", "product"])
def test_random_kernels(family: str, local_target: Target) -> None:
    for seed in (1, 2):
        cases.weights.__globals__["RNG"] = np.random.default_rng(seed)
        for task in tasks_of(cases.FAMILIES[family](random.Random(seed).choice), local_target)[:2]:
            check(task, local_target, 1)
