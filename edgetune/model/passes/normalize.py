"""One form for every file: initializers are constants, nothing stale, nothing but the graph.

Before: IR version 3 lists every initializer among the inputs; sizes of the original export stand
in ``value_info``; doc strings carry source paths. After: none of these.
"""

from __future__ import annotations

from onnx import GraphProto, ModelProto

from edgetune.model import graphs, interface
from edgetune.model.pipeline import PassResult

_FIRST_IR_WITH_CONSTANT_INITIALIZERS = 4


def normalize(model: ModelProto) -> PassResult:
    """Drop initializers from the inputs, stale sizes of inner tensors and outputs, and doc strings."""
    model = graphs.copy(model)
    model.ir_version = max(model.ir_version, _FIRST_IR_WITH_CONSTANT_INITIALIZERS)
    model.ClearField("doc_string")
    model.ClearField("metadata_props")
    for graph in graphs.walk_graphs(model.graph):
        _clean(graph)
    # A size declared for an output may be a remnant, too: only the number of dimensions is kept.
    for value in model.graph.output:
        if value.type.WhichOneof("value") == "tensor_type":
            dims = interface.dims_of(value)
            interface.set_dims(value, None if dims is None else (None,) * len(dims))
    return PassResult(model, True)


def _clean(graph: GraphProto) -> None:
    filled = {tensor.name for tensor in graph.initializer}
    kept = [value for value in graph.input if value.name not in filled]
    del graph.input[:]
    graph.input.extend(kept)
    graph.ClearField("value_info")
    graph.ClearField("doc_string")
    for node in graph.node:
        node.ClearField("doc_string")
        node.ClearField("metadata_props")
