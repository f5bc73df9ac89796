"""Raises the operator set of old models, where an operator has a form that the importer misreads.

Before: opset 9 with ``Slice <starts, ends>``, which became inputs in opset 10. After: opset 10, with
them as inputs; onnx's own converter does it. Models without such an operator keep their opset.
"""

from __future__ import annotations

from onnx import ModelProto
from onnx.version_converter import convert_version

from edgetune.model import graphs
from edgetune.model.pipeline import PassResult, unchanged

FIRST_READABLE = {"BatchNormalization": 9, "Resize": 11, "Slice": 10, "Upsample": 11}
"""The first opset in which each of these has the form that the importer knows.

Forms older than opset 7 are not in question: ONNX Runtime, the reference, does not run them.
"""

_FIRST_SUPPORTED = 7
"""By ONNX Runtime and by onnxslim; some operators of earlier ones happen to run."""
_FIRST_WITH_TYPED_CONSTANTS = 9
"""The converter writes new inputs as int64 constants, which earlier opsets do not allow."""


def convert_opset(model: ModelProto) -> PassResult:
    """Convert the model to the lowest opset at which all its operators are readable."""
    own = graphs.opset(model)
    target = max(
        (
            FIRST_READABLE.get(node.op_type, _FIRST_SUPPORTED)
            for node in graphs.walk_nodes(model.graph)
            if node.domain in graphs.DEFAULT_DOMAINS
        ),
        default=own,
    )
    if own >= target:
        return unchanged(model)
    target = max(target, _FIRST_WITH_TYPED_CONSTANTS)
    converted = convert_version(model, target)
    converted.ir_version = max(converted.ir_version, model.ir_version)
    converted.graph.ClearField("value_info")
    return PassResult(converted, True, (f"operator set {own} was converted to {target}",))
