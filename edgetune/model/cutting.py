"""Cuts a model in two at named tensors: the first part is compiled, the rest stays an ONNX model.

Before: ``image -> backbone -> boxes, scores -> NonMaxSuppression -> picked``. Cut at ``boxes`` and
``scores``, the first part ends in these two, and the rest begins with them: it holds
NonMaxSuppression, and runs in ONNX Runtime on what the compiled part gives.

Both parts are made of the model's own nodes. Where an output hangs on a tensor of the first part
that was not cut at, the rest computes that tensor once more, from the model's inputs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TypeProto, ValueInfoProto

from edgetune.atomic import publish, staging, writing
from edgetune.errors import UsageError, did_you_mean
from edgetune.model import graphs, interface, shapes
from edgetune.model.interface import Value
from edgetune.model.loading import SourceModel, load_model
from edgetune.model.passes.bind_shapes import bound_inputs
from edgetune.model.passes.freeze_inputs import freeze_inputs, frozen_arrays
from edgetune.model.variants import Plan, Shapes, plan

_FIRST_IR_WITH_CONSTANT_INITIALIZERS = 4
_VIEWS = ("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze")
_FILE = ("the rest of the model", "--save-rest")


@dataclass(frozen=True)
class Part:
    """A model, and the settings of those inputs that it has."""

    model: SourceModel
    shapes: Shapes
    freeze: Mapping[str, Any]


def first_part(
    loaded: SourceModel,
    shapes_: Shapes,
    freeze: Mapping[str, Any],
    names: Sequence[str],
) -> Part:
    """The part of a model that computes the tensors ``names``, and the settings of the inputs that it has.

    Name and digest are the whole model's.

    Args:
        loaded: the whole model.
        shapes_: of the whole model's inputs; a symbol's size holds in the part, too.
        freeze: of the whole model's inputs.
        names: tensors of the main graph; the part's outputs, in this order.

    Raises:
        UsageError: a name is none of a tensor that a node of the main graph makes, or ``shapes_`` or
            ``freeze`` do not fit the model.
        UnsupportedModelError: an input of the model is no numeric tensor.
    """
    names = tuple(dict.fromkeys(names))
    model = loaded.proto
    _require_tensors(model, names)
    declared = interface.inputs(model)
    frozen = frozen_arrays(declared, freeze)
    open_ = [value for value in declared if value.name not in frozen]
    planned = plan(open_, shapes_)
    bound = {v.name: v for v in bound_inputs(open_, planned.shapes(planned.combinations[0]))}
    part = _part(model, [_value(name, kind) for name, kind in _types(model, names).items()], ())
    kept = {value.name for value in part.graph.input}
    changed = [v for v in open_ if v.name in kept and bound[v.name].fixed and bound[v.name].dims != v.dims]
    return Part(
        SourceModel(part, loaded.name, loaded.sha256),
        {v.name: _sizes(bound[v.name], planned) for v in changed},
        {name: value for name, value in freeze.items() if name in kept},
    )


def _sizes(value: Value, planned: Plan) -> tuple[int | tuple[int, ...], ...]:
    """The shape of an input, with every size of a dimension that varies."""
    varying = {
        axis: dimension.sizes.exact
        for dimension in planned.dimensions
        for name, axis in dimension.inputs
        if name == value.name
    }
    return tuple(varying.get(axis, size) for axis, size in enumerate(value.spec().shape))


def up_to(
    model: str | os.PathLike[str] | bytes | ModelProto, names: Sequence[str]
) -> str | os.PathLike[str] | bytes | ModelProto:
    """The part of a model that computes the tensors ``names``; ``model`` itself where they are its outputs.

    Where it has no such tensors, ``model`` is given back as well.

    Raises:
        ModelError: it cannot be read.
    """
    loaded = load_model(model)
    outputs = {value.name for value in loaded.proto.graph.output}
    made = {name for node in loaded.proto.graph.node for name in node.output}
    if outputs >= set(names) or not made >= set(names) - outputs:
        return model
    return first_part(loaded, {}, {}, names).model.proto


def rest_part(loaded: SourceModel, freeze: Mapping[str, Any], cut: Sequence[Value]) -> ModelProto:
    """The part of a model that is left after the tensors ``cut``.

    Its inputs are those of ``cut`` that it reads, then inputs of the model; its outputs those of the
    model that are not in ``cut``. Frozen inputs are constants.

    Raises:
        UsageError: every output is among ``cut``, so that nothing is left.
    """
    model = freeze_inputs(loaded.proto, freeze).model
    names = {value.name for value in cut}
    outputs = [value for value in model.graph.output if value.name not in names]
    if not outputs:
        raise UsageError(
            "--save-rest: nothing is left of the model, for every output of it is named with --cut; "
            "leave --save-rest away"
        )
    values = [
        onnx.helper.make_tensor_value_info(
            value.name,
            onnx.helper.np_dtype_to_tensor_dtype(_dtype(value.dtype)),
            [dim if isinstance(dim, int) else None for dim in value.dims or ()],
        )
        for value in cut
    ]
    return _part(model, outputs, values)


@dataclass(frozen=True)
class Rest:
    """What comes after the tensors that a model was cut at, and a note for the user."""

    model: ModelProto
    path: Path
    note: str


def rest_of(
    loaded: SourceModel,
    shapes_: Shapes,
    freeze: Mapping[str, Any],
    names: Sequence[str],
    outputs: Sequence[Value],
    path: Path,
) -> Rest:
    """What is left of a model after the tensors ``names``, which its first part gives as ``outputs``.

    Raises:
        UsageError: see :func:`first_part` and :func:`rest_part`.
    """
    rest = rest_part(loaded, freeze, outputs)
    first = first_part(loaded, shapes_, freeze, names).model.proto
    return Rest(rest, path, describe_rest(rest, first, path))


def describe_rest(rest: ModelProto, first: ModelProto, path: Path) -> str:
    """What a user should know of a rest that was written to ``path``."""
    made = {name for node in first.graph.node for name in node.output}
    repeated = sum(any(name in made for name in node.output if name) for node in rest.graph.node)
    again = (
        f"; {repeated} of its nodes repeat work of the part before: name more tensors with --cut to avoid it"
        if repeated
        else ""
    )
    return (
        f"the rest of the model, {_nodes(len(rest.graph.node))}, is in {path}: "
        f"from {_listed(rest.graph.input)} to {_listed(rest.graph.output)}{again}"
    )


def check_options(cut: Sequence[str], save_rest: Path | None) -> None:
    """Check early what can be said of the two options without the model.

    Raises:
        UsageError: ``cut`` is one string, or ``save_rest`` is given without ``cut``.
        OutputError: no ONNX file can be written to ``save_rest``.
    """
    if isinstance(cut, str):
        raise UsageError(f"cut={cut!r} is one string; give a list of names, as cut=[{cut!r}]")
    if save_rest is None:
        return
    if not cut:
        raise UsageError(
            "--save-rest needs --cut, which says where the rest begins; 'edgetune check' advises where"
        )
    path = save_rest
    with writing(path, *_FILE):
        if path.is_dir():
            raise IsADirectoryError(21, "it is a directory")
    with staging(path, *_FILE):
        pass


def save(model: ModelProto, path: Path) -> None:
    """Write ``model`` to ``path`` in one step.

    Raises:
        OutputError: it cannot be written.
    """
    with staging(path, *_FILE) as work, writing(path, *_FILE):
        file = work / path.name
        file.write_bytes(model.SerializeToString())
        publish(file, path)


def frontier(graph: GraphProto, blocked: Iterable[int]) -> tuple[tuple[str, ...], int]:
    """Where to cut so that all that does not hang on some nodes comes first.

    Tensors that the rest can compute for itself from constants and from the shapes of what it has are
    not among them.

    Args:
        graph: the main graph, its nodes in topological order.
        blocked: indices of the nodes that cannot be in the first part.

    Returns:
        The names, in the order they are made, and how many nodes come before; no names where none of those
        does real work.
    """
    blocked = set(blocked)
    behind: set[str] = set()
    before: list[NodeProto] = []
    after: list[NodeProto] = []
    for index, node in enumerate(graph.node):
        if index in blocked or _reads(node) & behind:
            behind |= {name for name in node.output if name}
            after.append(node)
        else:
            before.append(node)
    wanted = {value.name for value in graph.output}.union(*map(_reads, after))
    cut = [name for node in before for name in node.output if name and name in wanted]
    kept = _without_cheap(graph, before, cut)
    return kept, len(before)


def _without_cheap(graph: GraphProto, before: Sequence[NodeProto], cut: Sequence[str]) -> tuple[str, ...]:
    """The tensors of ``cut`` that are worth handing over.

    Not worth it is what depends on constants and on the shapes of inputs and of other tensors of ``cut``
    alone, and another view of one of those.
    """
    cheap = {tensor.name for tensor in graph.initializer}
    cheap |= {tensor.values.name for tensor in graph.sparse_initializer}
    given = {value.name for value in graph.input} | cheap
    # Whether a tensor is in the rest's hands depends on what is cut at: take away until nothing changes.
    at_hand = set(cut)
    while True:
        found, views = set(cheap), set[str]()
        for node in before:
            reads = _reads(node)
            is_shape = graphs.is_standard(node, "Shape", "Size") and reads <= given | at_hand | found
            if is_shape or reads <= found:
                found |= {name for name in node.output if name}
            elif _is_view(node, at_hand | views, found):
                views |= set(node.output)
        dear = set(cut) - found - views
        if dear == at_hand:
            return tuple(name for name in cut if name in dear)
        at_hand = dear


def _is_view(node: NodeProto, of: set[str], known: set[str]) -> bool:
    """Whether ``node`` shows one of the tensors ``of`` in another shape, which it takes from those ``known``."""
    return (
        graphs.is_standard(node, *_VIEWS)
        and node.input[0] in of
        and {name for name in node.input[1:] if name} <= known
    )


def _part(
    model: ModelProto, outputs: Sequence[ValueInfoProto], given: Sequence[ValueInfoProto]
) -> ModelProto:
    """The nodes that compute ``outputs`` from the tensors ``given`` and the model's inputs."""
    stop = {value.name for value in given}
    wanted = {value.name for value in outputs}
    nodes = []
    for node in reversed(model.graph.node):
        if any(name in wanted for name in node.output if name and name not in stop):
            nodes.append(node)
            wanted |= _reads(node)
    part = ModelProto()
    for field, value in model.ListFields():
        if field.name != "graph":
            graphs.copy_field(part, field.name, value)
    part.ir_version = max(part.ir_version, _FIRST_IR_WITH_CONSTANT_INITIALIZERS)
    graph = part.graph
    graph.name = model.graph.name
    graph.node.extend(reversed(nodes))
    graph.output.extend(outputs)
    # A tensor that is cut at may take the place of a weight's name in no valid model: names are unique.
    graph.initializer.extend(t for t in model.graph.initializer if t.name in wanted)
    graph.sparse_initializer.extend(t for t in model.graph.sparse_initializer if t.values.name in wanted)
    filled = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    graph.input.extend(value for value in given if value.name in wanted)
    graph.input.extend(v for v in model.graph.input if v.name in wanted - filled)
    made = {name for node in nodes for name in node.output} - {value.name for value in outputs} - stop
    graph.value_info.extend(value for value in model.graph.value_info if value.name in made)
    return part


def _reads(node: NodeProto) -> set[str]:
    return {name for name in node.input if name} | graphs.captured(node)


def _types(model: ModelProto, names: Sequence[str]) -> dict[str, TypeProto | None]:
    """Types of the tensors; of operators that the standard does not know, as ONNX Runtime has them."""
    known = shapes.types(model)
    if any(name not in known for name in names):
        part = shapes.annotate(_part(model, [ValueInfoProto(name=name) for name in names], ()))
        known |= {value.name: value.type for value in part.graph.output if value.HasField("type")}
    return {name: known.get(name) for name in names}


def _value(name: str, kind: TypeProto | None) -> ValueInfoProto:
    return ValueInfoProto(name=name) if kind is None else onnx.helper.make_value_info(name, kind)


def _require_tensors(model: ModelProto, names: Sequence[str]) -> None:
    made = [name for node in model.graph.node for name in node.output if name]
    known = set(made)
    for name in names:
        if name not in known:
            raise UsageError(f"--cut {name!r} cannot be: {_why_not(model, name, made)}")


def _why_not(model: ModelProto, name: str, made: Sequence[str]) -> str:
    graph = model.graph
    if name in {t.name for t in graph.initializer}:
        return "it is a weight of the model; name a tensor that a node makes"
    if name in {value.name for value in graph.input}:
        return (
            "it is an input of the model, before which nothing is computed; name a tensor that a node makes"
        )
    for node in graph.node:
        if any(
            name in child.output for inner in graphs.subgraphs(node) for child in graphs.walk_nodes(inner)
        ):
            outside = " or ".join(repr(output) for output in node.output if output)
            return (
                f"it is made inside a branch or body of the {node.op_type} node {node.name!r}; "
                f"a model can be cut between the nodes of its main graph only: at {outside} behind this node, "
                "or at a tensor before it"
            )
    for function in model.functions:
        if any(name in child.output for child in graphs.walk_nodes(function)):
            return (
                f"it is made inside the model's own function {function.name!r}; name what a call of it makes"
            )
    named = [node.name for node in graph.node if node.name == name]
    if named:
        node = next(node for node in graph.node if node.name == name)
        outputs = " and ".join(f"--cut {output!r}" for output in node.output if output)
        return f"it is the name of a node; to cut behind it, name what it makes: {outputs}"
    return f"the model has no such tensor; {did_you_mean(name, made)}"


def _dtype(name: str) -> Any:
    import ml_dtypes
    import numpy as np

    return np.dtype(getattr(ml_dtypes, name, name))


def _nodes(count: int) -> str:
    return f"{count} node{'' if count == 1 else 's'}"


def _listed(values: Iterable[ValueInfoProto]) -> str:
    return ", ".join(repr(value.name) for value in values)
