"""Runs a model in a process of its own before ONNX Runtime runs it in this one.

ONNX Runtime ends the process on some models, and takes any amount of memory where a model asks for it: by a Loop whose
tensors grow, say, of which no file tells the sizes. The child may take so much memory and so much time, no more.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from onnx import ModelProto, TensorProto, numpy_helper

from edgetune.bundle.arrays import write_npz
from edgetune.errors import EdgetuneError, ModelError
from edgetune.model import graphs, limits, shapes
from edgetune.model.reference import Ranges, random_inputs
from edgetune.model.session import DEADLINE_S, Arrays, stopped
from edgetune.records import TensorSpec
from edgetune.sides.base import SideSpec
from edgetune.sides.process import SideProcess, SilentError

LARGE_BYTES = 1 << 30
"""Of all tensors of a model together: where they are larger, it is tried for its memory."""

_LEAST_BYTES = 1 << 30
"""ONNX Runtime itself, with Python around it, takes some hundred megabytes."""

_UNDEFINED_SUMS = ("ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul")
"""Operators whose sum over no elements ONNX Runtime does not write: the result is what the memory held."""

_OUT_OF_MEMORY = re.compile(r"alloc|MemoryError|out of memory|length_error", re.IGNORECASE)


def refuse_deadly(model: ModelProto, bound: ModelProto, specs: Sequence[TensorSpec], frozen: Arrays) -> None:
    """Try a model in a child process where ONNX Runtime might die of it, or take all of the memory.

    Args:
        model: as it was given.
        bound: the same with the shapes of its inputs fixed.
        specs: of the inputs without the frozen ones.
        frozen: values of the inputs that the user fixed.

    Raises:
        ModelError: ONNX Runtime died of it, needs too much memory, or leaves values undefined.
        StoppedError: it did not come to an end.
    """
    _refuse_undefined_sums(bound)
    if any(0 in spec.shape for spec in specs) or _may_kill(model) or _may_grow(bound):
        _try(model, specs, frozen)


def _refuse_undefined_sums(bound: ModelProto) -> None:
    nodes = [node for node in bound.graph.node if node.op_type in _UNDEFINED_SUMS]
    if not nodes:
        return
    sizes = {name: limits.tensor_bytes(kind.tensor_type) for name, kind in shapes.types(bound).items()}
    for node in nodes:
        empty = [name for name in node.input if sizes.get(name) == 0]
        if empty and sizes.get(node.output[0]) != 0:
            raise ModelError(
                f"{node.op_type} {(node.name or node.output[0])!r} sums up the tensor {empty[0]!r} of no elements, and "
                "ONNX Runtime, the reference, leaves the result of that undefined; give it at least one"
            )


def _may_kill(model: ModelProto) -> bool:
    """Whether ONNX Runtime might die of the model.

    It does of recurrent cells on constants of no elements, of DFT's attributes, and of the least integer divided by -1,
    which it finds among constants while it loads a model. Lists of no axes and regions, as exporters write them, are
    harmless.
    """
    tensors = [tensor for graph in graphs.walk_graphs(model.graph) for tensor in graph.initializer]
    for node in graphs.walk_nodes(model.graph):
        if node.op_type == "DFT":
            return True
        tensors += [attribute.t for attribute in node.attribute if attribute.HasField("t")]
    if any(0 in tensor.dims and len(tensor.dims) > 1 for tensor in tensors):
        return True
    divides = any(node.op_type in ("Div", "Mod") for node in graphs.walk_nodes(model.graph))
    return divides and any(map(_holds_least_integer, tensors))


def _holds_least_integer(tensor: TensorProto) -> bool:
    if tensor.data_type not in (TensorProto.INT32, TensorProto.INT64):
        return False
    values = numpy_helper.to_array(tensor)
    return bool((values == np.iinfo(values.dtype).min).any())


def _may_grow(bound: ModelProto) -> bool:
    """Whether tensors are large, or some are of a size that nothing but a run tells."""
    kinds = shapes.types(bound)
    sizes = [
        limits.tensor_bytes(kinds[name].tensor_type) for name in kinds if kinds[name].HasField("tensor_type")
    ]
    if None in sizes or sum(filter(None, sizes)) > LARGE_BYTES:
        return True
    made = {name for node in bound.graph.node for name in node.output if name}
    inner = any(True for node in bound.graph.node for _ in graphs.subgraphs(node))
    return inner or not made <= set(kinds)


def _try(model: ModelProto, specs: Sequence[TensorSpec], frozen: Arrays) -> None:
    data = model.SerializeToString()
    memory = max(_LEAST_BYTES, limits.available_bytes() // 4) + 4 * len(data)
    with tempfile.TemporaryDirectory(prefix="edgetune-") as name:
        path, inputs = Path(name, "model.onnx"), Path(name, "inputs.npz")
        path.write_bytes(data)
        spec = SideSpec("onnxruntime", str(path), str(inputs), 1, memory_bytes=memory)
        for ranges in Ranges:
            write_npz(inputs, {**random_inputs(specs, 0, ranges), **frozen})
            try:
                with SideProcess(spec, timeout_s=DEADLINE_S) as side:
                    side.run(1, timeout_s=DEADLINE_S)
                return
            except SilentError as error:
                raise stopped() from error
            except EdgetuneError as error:
                if _OUT_OF_MEMORY.search(str(error)):
                    raise ModelError(
                        f"ONNX Runtime, the reference, needs more than {memory / (1 << 30):.1f} GB of memory for the "
                        "model, which is what this machine has to spare; look for a Loop or a Concat that makes "
                        "tensors grow, or choose smaller shapes (--shape)"
                    ) from error
                if not isinstance(error, ModelError):
                    raise ModelError(
                        "ONNX Runtime, the reference, does not survive this model; the usual reasons are tensors of no "
                        "elements (give each at least one, those of inputs with --shape), a DFT, or a Loop whose "
                        "tensors grow without bound: export the model without"
                    ) from error
                # What it says for itself is said again, and better, by the run proper.
