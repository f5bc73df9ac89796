"""Writes out ``Loop`` and ``Scan`` of a known number of steps.

Before: ``Loop(3, true, x) <body: y = Add(x, i)>``. After: three copies of the body, each reading what
the one before made. How often a Loop runs is found by running what its condition depends on; where
that depends on an input of the model, the Loop stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from edgetune.errors import ModelError
from edgetune.model import graphs, shapes
from edgetune.model.pipeline import PassResult, unchanged
from edgetune.model.session import Session

MAX_STEPS = 1024
MAX_NODES = 20_000
"""Nodes that one loop may become: beyond that a graph compiles for hours."""


def unroll_loops(model: ModelProto) -> PassResult:
    """Unroll every Loop and Scan of the main graph whose number of steps is known."""
    if not any(graphs.is_standard(node, "Loop", "Scan") for node in model.graph.node):
        return unchanged(model)
    known = graphs.constants(model.graph)
    sizes = shapes.static_shapes(shapes.annotate(model))
    steps = {
        index: count
        for index, node in enumerate(model.graph.node)
        if (count := _steps(node, model, known, sizes)) is not None and _fits(node, count)
    }
    if not steps:
        return unchanged(model)
    model = graphs.copy(model)
    writer = _Writer(graphs.opset(model), graphs.names(model.graph))
    nodes: list[NodeProto] = []
    for index, node in enumerate(model.graph.node):
        if index not in steps:
            nodes.append(node)
            continue
        unroll = writer.loop if node.op_type == "Loop" else writer.scan
        unroll(node, steps[index], sizes)
        nodes += writer.take()
    model.graph.initializer.extend(writer.tensors)
    graphs.replace_nodes(model.graph, nodes)
    return PassResult(model, True)


def _body(node: NodeProto) -> GraphProto:
    return next(attribute.g for attribute in node.attribute if attribute.name == "body")


def _fits(node: NodeProto, steps: int) -> bool:
    size = sum(1 for _ in graphs.walk_nodes(_body(node)))
    return steps <= MAX_STEPS and steps * size <= MAX_NODES


def _steps(
    node: NodeProto,
    model: ModelProto,
    known: Mapping[str, TensorProto],
    sizes: Mapping[str, tuple[int, ...] | None],
) -> int | None:
    """How often the body runs; None where that is not known."""
    if graphs.is_standard(node, "Scan"):
        return _scan_steps(node, graphs.opset(model), sizes)
    if not graphs.is_standard(node, "Loop"):
        return None
    counted = _counting_loop(node, known, model)
    if counted is None:
        return None
    steps = counted
    # No step at all: the scan outputs are empty, and their other sizes must come from inference.
    carried = len(_body(node).input) - 2
    if steps == 0 and any(name and sizes.get(name) is None for name in node.output[carried:]):
        return None
    return steps


def _scan_steps(node: NodeProto, opset: int, sizes: Mapping[str, tuple[int, ...] | None]) -> int | None:
    if opset < 9:
        return None  # Scan-8 has a batch dimension and sequence lengths
    scan = _Scan.of(node)
    if any(axis < 0 for axis in [*scan.input_axes, *scan.output_axes]):
        ranks = {name: len(shape) for name, shape in sizes.items() if shape is not None}
        if any(name not in ranks for name in [*scan.inputs(node), *scan.outputs(node)] if name):
            return None
    shape = sizes.get(scan.inputs(node)[0])
    if shape is None:
        return None
    steps = shape[scan.input_axes[0]]
    return steps or None  # an empty Scan is left to the importer to refuse


def _counting_loop(node: NodeProto, known: Mapping[str, TensorProto], model: ModelProto) -> int | None:
    """The number of steps, found by running the Loop with nothing in it but its condition."""
    limit, start = node.input[0], node.input[1]
    if (limit and limit not in known) or (start and start not in known):
        return None
    body = _body(node)
    needed = _needed_for_condition(body)
    carried = [value.name for value in body.input[2:]]
    kept = [index for index, name in enumerate(carried) if name in needed]
    initial = [node.input[2 + index] for index in kept]
    reduced = _reduced_body(body, needed, kept)
    outside = set(initial) | _captured_by(reduced)
    if any(name not in known for name in outside):
        return None
    bound = (
        min(int(numpy_helper.to_array(known[limit]).reshape(())), MAX_STEPS + 1) if limit else MAX_STEPS + 1
    )
    tensors = [_named(known[name], name) for name in outside | ({start} if start else set())]
    tensors.append(numpy_helper.from_array(np.array(max(bound, 0), np.int64), "edgetune_limit"))
    loop = onnx.helper.make_node(
        "Loop",
        ["edgetune_limit", start, *initial],
        [*(f"edgetune_last_{index}" for index in kept), "edgetune_counts"],
        body=reduced,
    )
    graph = onnx.helper.make_graph(
        [loop], "count", [], [onnx.ValueInfoProto(name="edgetune_counts")], tensors
    )
    counter = onnx.helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    try:
        return int(Session(counter, optimize=False).run({})["edgetune_counts"].shape[0])
    except ModelError:
        return None


def _named(tensor: TensorProto, name: str) -> TensorProto:
    duplicate = TensorProto.FromString(tensor.SerializeToString())
    duplicate.name = name
    return duplicate


def _needed_for_condition(body: GraphProto) -> set[str]:
    """Tensors of the body that its condition depends on, through any number of steps."""
    inputs = [value.name for value in body.input]
    outputs = [value.name for value in body.output]
    needed = {outputs[0]}
    while True:
        before = len(needed)
        for node in reversed(body.node):
            if needed & set(node.output):
                needed |= {*node.input, *graphs.captured(node)}
        for index, name in enumerate(inputs[2:], start=1):
            if name in needed:
                needed.add(outputs[index])
        if len(needed) == before:
            return needed - {""}


def _reduced_body(body: GraphProto, needed: set[str], kept: Sequence[int]) -> GraphProto:
    """``body`` with its condition, the values that takes part in it, and the step as scan output."""
    reduced = GraphProto(name="condition")
    reduced.input.extend([body.input[0], body.input[1], *(body.input[2 + index] for index in kept)])
    reduced.node.extend(node for node in body.node if needed & set(node.output))
    reduced.initializer.extend(tensor for tensor in body.initializer if tensor.name in needed)
    reduced.node.append(onnx.helper.make_node("Identity", [body.input[0].name], ["edgetune_step"]))
    reduced.output.extend([body.output[0], *(body.output[1 + index] for index in kept)])
    reduced.output.append(onnx.helper.make_tensor_value_info("edgetune_step", TensorProto.INT64, []))
    return reduced


def _captured_by(body: GraphProto) -> set[str]:
    holder = NodeProto(op_type="Loop")
    holder.attribute.append(onnx.helper.make_attribute("body", body))
    return graphs.captured(holder)


@dataclass(frozen=True)
class _Scan:
    """The attributes of a Scan node, defaults filled in."""

    states: int
    input_axes: tuple[int, ...]
    input_reversed: tuple[bool, ...]
    output_axes: tuple[int, ...]
    output_reversed: tuple[bool, ...]

    @classmethod
    def of(cls, node: NodeProto) -> _Scan:
        given = {a.name: list(a.ints) for a in node.attribute}
        scans = next(a.i for a in node.attribute if a.name == "num_scan_inputs")
        states = len(node.input) - scans
        outputs = len(_body(node).output) - states

        def ints(name: str, count: int) -> tuple[int, ...]:
            return tuple(given.get(name) or [0] * count)

        return cls(
            states,
            ints("scan_input_axes", scans),
            tuple(map(bool, ints("scan_input_directions", scans))),
            ints("scan_output_axes", outputs),
            tuple(map(bool, ints("scan_output_directions", outputs))),
        )

    def inputs(self, node: NodeProto) -> list[str]:
        return list(node.input[self.states :])

    def outputs(self, node: NodeProto) -> list[str]:
        return list(node.output[self.states :])


class _Writer:
    """Collects the nodes and tensors that loops become."""

    def __init__(self, opset: int, taken: set[str]) -> None:
        self.opset = opset
        self.taken = taken
        self.tensors: list[TensorProto] = []
        self.nodes: list[NodeProto] = []

    def take(self) -> list[NodeProto]:
        nodes, self.nodes = self.nodes, []
        return nodes

    def constant(self, value: np.ndarray, stem: str) -> str:
        name = graphs.fresh(stem, self.taken)
        self.tensors.append(numpy_helper.from_array(value, name))
        return name

    def emit(self, op_type: str, inputs: Sequence[str], output: str, **attributes: int) -> None:
        self.nodes.append(onnx.helper.make_node(op_type, inputs, [output], **attributes))

    def step(self, body: GraphProto, inputs: Sequence[str]) -> list[str]:
        """One copy of ``body``; returns the names of its outputs."""
        outputs = [graphs.fresh(value.name, self.taken) for value in body.output]
        mapping = {value.name: name for value, name in zip(body.input, inputs, strict=True)}
        nodes, tensors = graphs.splice(body, mapping, outputs, self.taken)
        self.nodes += nodes
        self.tensors += tensors
        return outputs

    def loop(self, node: NodeProto, steps: int, sizes: Mapping[str, tuple[int, ...] | None]) -> None:
        body = _body(node)
        carried = list(node.input[2:])
        states = len(carried)
        collected: list[list[str]] = [[] for _ in body.output[1 + states :]]
        condition = node.input[1] or self.constant(np.array(True), "loop_condition")
        for index in range(steps):
            number = self.constant(np.array(index, np.int64), "loop_step")
            condition, *results = self.step(body, [number, condition, *carried])
            carried = results[:states]
            for column, name in zip(collected, results[states:], strict=True):
                column.append(name)
        self.finish(node.output[:states], carried)
        for output, column, value in zip(
            node.output[states:], collected, body.output[1 + states :], strict=False
        ):
            if not output:
                continue
            if column:
                self.stack(column, output, 0)
            else:
                empty = np.zeros(sizes[output] or (0,), _dtype(value))
                self.emit("Identity", [self.constant(empty, "loop_empty")], output)

    def scan(self, node: NodeProto, steps: int, sizes: Mapping[str, tuple[int, ...] | None]) -> None:
        body, scan = _body(node), _Scan.of(node)
        carried = list(node.input[: scan.states])
        collected: list[list[str]] = [[] for _ in scan.output_axes]
        for index in range(steps):
            slices = []
            for name, axis, backwards in zip(
                scan.inputs(node), scan.input_axes, scan.input_reversed, strict=True
            ):
                place = self.constant(
                    np.array(steps - 1 - index if backwards else index, np.int64), "scan_step"
                )
                slices.append(graphs.fresh(f"{name}_step", self.taken))
                self.emit("Gather", [name, place], slices[-1], axis=axis)
            results = self.step(body, [*carried, *slices])
            carried = results[: scan.states]
            for column, name in zip(collected, results[scan.states :], strict=True):
                column.append(name)
        self.finish(node.output[: scan.states], carried)
        for output, column, axis, backwards in zip(
            scan.outputs(node), collected, scan.output_axes, scan.output_reversed, strict=False
        ):
            if output:
                shape = sizes.get(output)
                positive = axis + len(shape) if axis < 0 and shape is not None else axis
                self.stack(column[::-1] if backwards else column, output, positive)

    def finish(self, outputs: Sequence[str], values: Sequence[str]) -> None:
        """The last carried values under the names of the loop's outputs."""
        for output, value in zip(outputs, values, strict=False):
            if output:
                self.emit("Identity", [value], output)

    def stack(self, parts: Sequence[str], output: str, axis: int) -> None:
        """Join ``parts`` along a new axis."""
        raised = []
        axes = self.constant(np.array([axis], np.int64), "loop_axis") if self.opset >= 13 else ""
        for part in parts:
            raised.append(graphs.fresh(f"{part}_row", self.taken))
            if axes:
                self.emit("Unsqueeze", [part, axes], raised[-1])
            else:
                self.nodes.append(onnx.helper.make_node("Unsqueeze", [part], [raised[-1]], axes=[axis]))
        self.emit("Concat", raised, output, axis=axis)


def _dtype(value: onnx.ValueInfoProto) -> np.dtype:
    return onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
