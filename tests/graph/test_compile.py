"""Hashes, constants, chosen schedules, and code for every CPU that ships."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnx
import pytest

from edgetune.graph.compile import applies, compile_model
from edgetune.graph.lower import lower
from edgetune.kernels.registry import design_spaces
from edgetune.metaschedule import trace_text
from edgetune.model.prepare import prepare
from edgetune.records import Choice, PreparedModel, Source
from edgetune.targets import Target, list_targets, load_target
from tests.graph.support import check, mismatches, model, node, run, weights


def network() -> onnx.ModelProto:
    """A bit of everything: convolutions of three kinds, pooling, a gate, a residual, a product, softmax."""
    rng = np.random.default_rng(3)
    constants = {
        name: (rng.standard_normal(shape) * 0.2).astype(np.float32)
        for name, shape in {
            "w1": (24, 3, 3, 3), "b1": (24,), "w2": (24, 1, 3, 3), "w3": (40, 24, 1, 1), "w4": (40, 40, 1, 1),
            "w5": (40, 10),
        }.items()
    }  # fmt: skip
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["a"], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("HardSwish", ["a"], ["b"]),
        node("Conv", ["b", "w2"], ["c"], group=24, pads=[1, 1, 1, 1]),
        node("MaxPool", ["c"], ["d"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["d", "w3"], ["e"]),
        node("GlobalAveragePool", ["e"], ["f"]),
        node("Conv", ["f", "w4"], ["g"]),
        node("Sigmoid", ["g"], ["h"]),
        node("Mul", ["e", "h"], ["i"]),
        node("Add", ["i", "e"], ["j"]),
        node("GlobalAveragePool", ["j"], ["k"]),
        node("Flatten", ["k"], ["l"]),
        node("MatMul", ["l", "w5"], ["m"]),
        node("Softmax", ["m"], ["y"]),
    ]
    return model(nodes, {"x": (1, 3, 26, 22)}, constants)


def scaled(*factors: float) -> onnx.ModelProto:
    """Kernels that differ in a constant only."""
    names = ["x", *(f"v{i}" for i in range(len(factors)))]
    nodes = [
        n
        for i in range(len(factors))
        for n in (
            node("LeakyRelu", [names[i]], [f"u{i}"], alpha=factors[i]),
            node("ReduceMax", [f"u{i}", "axes"], [f"m{i}"], keepdims=1),
            node("Sub", [f"u{i}", f"m{i}"], [names[i + 1]]),
        )
    ]
    return model(nodes, {"x": (4, 40)}, {"axes": np.array([1])}, [names[-1]], opset=18)


def test_constants_do_not_make_another_workload(local_target: Target) -> None:
    """Kernels that differ in factors share a task; each keeps its factor."""
    prepared = prepare(scaled(0.1, 0.5, 0.25))
    lowered = lower(prepared, local_target)
    assert len(lowered.tasks) < len(lowered.kernels)
    choices = [
        Choice(task, Source.RECORD, trace_text(design_spaces(task, local_target)[1].trace))
        for task in lowered.tasks
    ]
    for chosen in ((), choices):
        compiled = compile_model(lowered, chosen, local_target)
        assert not mismatches(prepared, run(compiled, prepared.reference_inputs), 1e-5, 1e-6)


HASHES = """
from tests.graph.test_compile import network
from edgetune.graph.lower import lower
from edgetune.model.prepare import prepare
from edgetune.targets import load_target
print(*sorted(task.workload for task in lower(prepare(network()), load_target("zen2")).tasks))
"""


def test_workloads_are_the_same_in_every_process() -> None:
    command = [sys.executable, "-c", HASHES]
    other = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    here = [task.workload for task in lower(prepare(network()), load_target("zen2")).tasks]
    assert other == sorted(here)
    assert len(here) > 5


def test_workloads_differ_between_shapes(local_target: Target) -> None:
    def workloads(size: int) -> set[str]:
        made = model([node("Conv", ["x", "w"])], {"x": (1, 8, size, 8)}, {"w": weights(16, 8, 3, 3)})
        return {task.workload for task in lower(prepare(made), local_target).tasks}

    assert not workloads(8) & workloads(9)


def test_every_choice_of_the_network(local_target: Target) -> None:
    """The last space of every kernel in place of the default one."""
    prepared = prepare(network())
    lowered = lower(prepared, local_target)
    assert {task.kind for task in lowered.tasks} == {"contraction", "window", "generic"}
    choices = []
    for task in lowered.tasks:
        trace = trace_text(design_spaces(task, local_target)[-1].trace)
        assert applies(task, trace)
        choices.append(Choice(task, Source.RECORD, trace))
    compiled = compile_model(lowered, choices, local_target)
    assert not mismatches(prepared, run(compiled, prepared.reference_inputs), 1e-4, 1e-5)


def test_a_trace_of_another_kernel_does_not_apply(local_target: Target) -> None:
    tasks = lower(prepare(network()), local_target).tasks
    contraction = next(task for task in tasks if task.kind == "contraction")
    window = next(task for task in tasks if task.kind == "window")
    assert not applies(window, trace_text(design_spaces(contraction, local_target)[0].trace))
    assert not applies(window, "not JSON")


def test_network_on_this_machine(local_target: Target, no_fallback: None) -> None:
    check(network(), local_target)


@pytest.fixture(scope="module")
def small() -> PreparedModel:
    """A kernel of each family."""
    constants = {"w": weights(24, 3, 3, 3), "v": weights(24, 1, 3, 3)}
    nodes = [
        node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        node("Sigmoid", ["a"], ["b"]),
        node("Conv", ["b", "v"], ["c"], group=24),
        node("GlobalAveragePool", ["c"]),
    ]
    return prepare(model(nodes, {"x": (1, 3, 11, 13)}, constants))


@pytest.mark.parametrize("target", [t for t in list_targets() if t.kind == "llvm"], ids=lambda t: t.name)
def test_code_for_every_cpu(target: Target, small: PreparedModel, no_fallback: None) -> None:
    compiled = compile_model(lower(small, target), (), target)
    machines = {"x86_64": 62, "aarch64": 183, "arm": 40, "riscv64": 243}
    assert int.from_bytes(compiled.library[18:20], "little") == machines[target.arch]
