"""The side of ONNX Runtime, as fast as its CPU provider goes by itself."""

from __future__ import annotations

import re

import numpy as np

from edgetune.errors import ModelError, first_line
from edgetune.sides.base import SideSpec

_NOISE = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")


class OnnxRuntimeSide:
    """Runs one session with all of ONNX Runtime's own optimisations and its defaults otherwise."""

    def __init__(self, spec: SideSpec) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = spec.threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 4  # fatal only: its errors arrive as exceptions
        self._name = f"ONNX Runtime {onnxruntime.__version__}"
        try:
            self._session = onnxruntime.InferenceSession(
                spec.path, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            raise ModelError(f"ONNX Runtime cannot load {spec.path}: {_reason(error)}") from error
        names = {item.name for item in self._session.get_inputs()}
        self._inputs = {name: array for name, array in spec.arrays().items() if name in names}
        self._outputs = [item.name for item in self._session.get_outputs()]

    def run(self) -> dict[str, np.ndarray]:
        """Run once.

        Raises:
            ModelError: the model does not take these inputs.
        """
        try:
            values = self._session.run(self._outputs, self._inputs)
        except Exception as error:
            raise ModelError(f"ONNX Runtime cannot run the model: {_reason(error)}") from error
        return dict(zip(self._outputs, values, strict=True))

    def version(self) -> str:
        """ONNX Runtime's version."""
        return self._name


def _reason(error: Exception) -> str:
    return _NOISE.sub("", first_line(error)).strip()[:400]


def open_side(spec: SideSpec) -> OnnxRuntimeSide:
    """Load the ONNX file at ``spec.path``."""
    return OnnxRuntimeSide(spec)
