"""A model that needs TVM's virtual machine: TopK of a product, for batches of 1 and 4."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.parser import parse_model

from edgetune.bundle.assemble import write_bundle
from edgetune.targets import Target

WEIGHT = np.linspace(-1, 1, 16 * 12, dtype=np.float32).reshape(16, 12)


def model() -> onnx.ModelProto:
    made = parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        best (float[batch, 16] x) => (float[batch, 3] values, int64[batch, 3] indices)
        {
            s = MatMul(x, w)
            values, indices = TopK(s, three)
        }"""
    )
    three = numpy_helper.from_array(np.array([3], np.int64), "three")
    made.graph.initializer.extend([numpy_helper.from_array(WEIGHT, "w"), three])
    return made


def compiled(target: Target, out: Path) -> Path:
    """A bundle for batches of 1 and 4, which is not run here."""
    from edgetune.graph.compile import compile_model
    from edgetune.graph.lower import lower
    from edgetune.model.prepare import prepare

    prepared = prepare(model(), {"x": ("1/4", 16)})
    made = compile_model(lower(prepared, target), (), target, app=prepared.name)
    return write_bundle(out, made, prepared, target, [], check=None).path
