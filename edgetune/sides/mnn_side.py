"""The side of MNN, in its precision "high", which is float32."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from edgetune.errors import ModelError
from edgetune.sides.base import SideSpec
from edgetune.sides.converting import import_peer, run_converter

_DTYPES = {"float32": "float", "int32": "int", "int64": "int64", "uint8": "uint8"}


def convert(spec: SideSpec, folder: Path) -> Path:
    """The model as MNN's own file, by the converter of its Python package."""
    import_peer("MNN", "MNN")
    made = folder / "model.mnn"
    command = [sys.executable, "-m", "MNN.tools.mnnconvert", "-f", "ONNX", "--bizCode", "edgetune"]
    return run_converter([*command, "--modelFile", spec.path, "--MNNModel", made], "MNN", made)


class MnnSide:
    """Runs a module of MNN's expression interface, which takes models with control flow as well."""

    def __init__(self, spec: SideSpec) -> None:
        mnn = import_peer("MNN", "MNN")
        self._expr = import_peer("MNN.expr", "MNN")
        modules = import_peer("MNN.nn", "MNN")
        self._name = f"MNN {mnn.version()}"
        settings = {"backend": "CPU", "precision": "high", "numThread": spec.threads}
        # Kept: a module does not hold its runtime alive.
        self._runtime = modules.create_runtime_manager((settings,))
        self._outputs = spec.output_names
        self._module = modules.load_module_from_file(
            spec.path, list(spec.input_names), list(spec.output_names), runtime_manager=self._runtime
        )
        arrays = spec.arrays()
        self._inputs = [arrays[name] for name in spec.input_names]
        for array in self._inputs:
            if array.dtype.name not in _DTYPES:
                raise ModelError(f"MNN takes no inputs of type {array.dtype.name}")

    def run(self) -> dict[str, np.ndarray]:
        """Run once."""
        expr = self._expr
        inputs = [
            expr.const(array, list(array.shape), expr.NCHW, getattr(expr, _DTYPES[array.dtype.name]))
            for array in self._inputs
        ]
        values = self._module.forward(inputs)
        return {name: value.read() for name, value in zip(self._outputs, values, strict=True)}

    def version(self) -> str:
        """MNN's version."""
        return self._name


def open_side(spec: SideSpec) -> MnnSide:
    """Load the converted model at ``spec.path``."""
    return MnnSide(spec)
