"""The side of OpenVINO, its CPU plugin held to float32: by itself it may compute in bfloat16."""

from __future__ import annotations

import numpy as np

from edgetune.errors import ModelError
from edgetune.sides.base import SideSpec
from edgetune.sides.converting import import_peer, telling_line


class OpenVinoSide:
    """Runs one infer request with the latency hint; inputs and outputs are shared with NumPy, not copied."""

    def __init__(self, spec: SideSpec) -> None:
        openvino = import_peer("openvino", "OpenVINO")
        self._name = f"OpenVINO {openvino.__version__.partition('-')[0]}"
        settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",
            "INFERENCE_NUM_THREADS": spec.threads,
            "NUM_STREAMS": 1,
        }
        try:
            compiled = openvino.Core().compile_model(spec.path, "CPU", settings)
        except RuntimeError as error:
            raise ModelError(f"OpenVINO cannot compile the model: {telling_line(str(error))}") from error
        self._request = compiled.create_infer_request()
        arrays = spec.arrays()
        # By position: a name may be taken away where an input is also an output.
        self._inputs = {index: arrays[name] for index, name in enumerate(spec.input_names)}
        self._outputs = spec.output_names

    def run(self) -> dict[str, np.ndarray]:
        """Run once."""
        results = self._request.infer(self._inputs, share_inputs=True, share_outputs=True)
        return {name: results[index] for index, name in enumerate(self._outputs)}

    def version(self) -> str:
        """OpenVINO's version."""
        return self._name


def open_side(spec: SideSpec) -> OpenVinoSide:
    """Compile the ONNX file at ``spec.path``."""
    return OpenVinoSide(spec)
