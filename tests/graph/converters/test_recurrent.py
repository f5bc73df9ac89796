"""LSTM, GRU and RNN against ONNX Runtime, over their attributes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from onnx import helper

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
ACTIVATIONS = {"LSTM": 3, "GRU": 2, "RNN": 1}
NAMES = [
    "Sigmoid", "Tanh", "Relu", "Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu",
    "Softsign", "Softplus",
]  # fmt: skip

few = settings(max_examples=12, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate])


def make(
    op: str, rng: np.random.Generator, steps: int, batch: int, size: int, directions: int, **attributes: Any
) -> tuple[Any, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """A node with all its operands, the input and the initial states variable."""
    gates, inputs = GATES[op], 3

    def draw(*shape: int) -> np.ndarray:
        return rng.uniform(-0.8, 0.8, shape).astype(np.float32)

    variable = {"x": draw(steps, batch, inputs), "h": draw(directions, batch, size)}
    weights = {
        "w": draw(directions, gates * size, inputs),
        "r": draw(directions, gates * size, size),
        "b": draw(directions, 2 * gates * size),
    }
    names = ["x", "w", "r", "b", "lengths" if attributes.pop("lengths", False) else "", "h"]
    if names[4]:
        weights["lengths"] = rng.integers(1, steps + 1, batch).astype(np.int32)
    if op == "LSTM":
        variable["c"] = draw(directions, batch, size)
        names.append("c")
        if attributes.pop("peepholes", False):
            weights["p"] = draw(directions, 3 * size)
            names.append("p")
    attributes.pop("peepholes", None)
    outputs = ["y", "y_h", "y_c"][: 3 if op == "LSTM" else 2]
    direction = attributes.pop("direction", "bidirectional" if directions == 2 else "forward")
    return (
        helper.make_node(op, names, outputs, hidden_size=size, direction=direction, **attributes),
        variable,
        weights,
    )


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
@few
@given(data=st.data())
def test_shapes_directions_and_options(op: str, matches_onnxruntime: Any, data: st.DataObject) -> None:
    directions = data.draw(st.sampled_from([1, 2]))
    attributes: dict[str, Any] = {}
    if directions == 1:
        attributes["direction"] = data.draw(st.sampled_from(["forward", "reverse"]))
    if data.draw(st.booleans()):
        attributes["clip"] = 0.5
    if op == "GRU":
        attributes["linear_before_reset"] = data.draw(st.sampled_from([0, 1]))
    if op == "LSTM":
        attributes["peepholes"] = data.draw(st.booleans())
        attributes["input_forget"] = data.draw(st.sampled_from([0, 1]))
    node, inputs, weights = make(
        op,
        np.random.default_rng(data.draw(st.integers(0, 99))),
        data.draw(st.integers(1, 4)),
        data.draw(st.integers(1, 3)),
        data.draw(st.integers(1, 9)),
        directions,
        lengths=data.draw(st.booleans()),
        **attributes,
    )
    matches_onnxruntime(node, inputs, weights)


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("name", NAMES)
def test_every_activation(op: str, name: str, matches_onnxruntime: Any) -> None:
    count = ACTIVATIONS[op]
    node, inputs, weights = make(
        op, np.random.default_rng(3), 2, 2, 5, 1, activations=[name] * count,
        activation_alpha=[0.3, 0.4, 0.5][:count], activation_beta=[0.1, 0.2, 0.3][:count],
    )  # fmt: skip
    matches_onnxruntime(node, inputs, weights)


def test_parameters_go_to_the_activations_that_take_them(matches_onnxruntime: Any) -> None:
    node, inputs, weights = make(
        "LSTM", np.random.default_rng(3), 2, 1, 4, 2,
        activations=["HardSigmoid", "Tanh", "LeakyRelu", "Sigmoid", "Elu", "Tanh"],
        activation_alpha=[0.3, 0.05, 0.7], activation_beta=[0.4],
    )  # fmt: skip
    matches_onnxruntime(node, inputs, weights)


def test_variable_weights_and_lengths(matches_onnxruntime: Any) -> None:
    node, inputs, weights = make("LSTM", np.random.default_rng(5), 4, 3, 4, 2, lengths=True, peepholes=True)
    matches_onnxruntime(node, {**inputs, **weights})


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_sequences_of_no_steps(op: str, matches_onnxruntime: Any) -> None:
    node, inputs, weights = make(op, np.random.default_rng(5), 3, 3, 4, 2, lengths=True)
    weights["lengths"] = np.array([0, 3, 1], np.int32)
    matches_onnxruntime(node, inputs, weights)
    inputs["lengths"] = weights.pop("lengths")
    matches_onnxruntime(node, inputs, weights)


@pytest.mark.slow
def test_long_sequence_shares_its_kernels(matches_onnxruntime: Any) -> None:
    node, inputs, weights = make("LSTM", np.random.default_rng(6), 100, 1, 16, 2)
    matches_onnxruntime(node, inputs, weights, atol=1e-4)
