"""Folds constants and shape arithmetic, merges Conv with BatchNormalization: onnxslim does it.

Before: ``Shape -> Gather -> Concat -> Reshape`` chains, constants computed at run time. After, the
shapes being fixed: one ``Reshape`` with a constant.
"""

from __future__ import annotations

import contextlib
import io

from onnx import ModelProto, ValueInfoProto

from edgetune.model import graphs, limits
from edgetune.model.pipeline import PassResult, unchanged

MOST_PARTS = 64
"""Of a Concat that others are merged into."""


def simplify(model: ModelProto) -> PassResult:
    """Run onnxslim; inputs that it found unused stay in the signature."""
    import onnxslim

    before = model.SerializeToString(deterministic=True)
    with contextlib.redirect_stdout(io.StringIO()):
        slim = onnxslim.slim(
            graphs.copy(model),
            size_threshold=limits.MOST_FOLDED_BYTES,
            skip_fusion_patterns=["EliminationConcat"] if _parts(model) > MOST_PARTS else None,
        )
    slim.ir_version = max(slim.ir_version, model.ir_version)
    slim.graph.name = model.graph.name
    slim.producer_name, slim.producer_version = model.producer_name, model.producer_version
    slim.graph.ClearField("value_info")
    _restore(slim.graph.input, model.graph.input)
    _restore(slim.graph.output, model.graph.output)
    if slim.SerializeToString(deterministic=True) == before:
        return unchanged(model)
    return PassResult(slim, True)


def _parts(model: ModelProto) -> int:
    """Most inputs of a Concat after all Concats before it are merged into it, as onnxslim does.

    They double wherever one joins a tensor with itself.
    """
    parts: dict[str, int] = {}
    for node in model.graph.node:
        if graphs.is_standard(node, "Concat"):
            parts[node.output[0]] = sum(parts.get(name, 1) for name in node.input)
    return max(parts.values(), default=0)


def _restore(values: list[ValueInfoProto], original: list[ValueInfoProto]) -> None:
    """Put the declarations of the model's own signature back, in place."""
    kept = [ValueInfoProto.FromString(value.SerializeToString()) for value in original]
    del values[:]
    values.extend(kept)
