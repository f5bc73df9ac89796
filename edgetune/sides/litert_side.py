"""The side of LiteRT (TensorFlow Lite) with its XNNPACK delegate, on a float32 model.

Models are converted by onnx2tf, whose requirements contradict edgetune's: it is taken from the path of programs,
or from ONNX2TF, and lives in an environment of its own ("pipx install onnx2tf").
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
from pathlib import Path

import numpy as np

from edgetune.errors import ModelError, UsageError
from edgetune.sides.base import SideSpec
from edgetune.sides.converting import import_peer, run_converter, telling_line

CONVERTER_VARIABLE = "ONNX2TF"


def convert(spec: SideSpec, folder: Path) -> Path:
    """The model as a float32 TFLite file whose inputs keep their layout."""
    import_peer("ai_edge_litert.interpreter", "LiteRT")
    program = os.environ.get(CONVERTER_VARIABLE) or shutil.which("onnx2tf")
    if program is None:
        raise UsageError(
            'LiteRT needs the converter onnx2tf 2 or later; install it in an environment of its own ("pipx install '
            f'onnx2tf"), and put it on the path or into {CONVERTER_VARIABLE}'
        )
    model = folder / "model.onnx"
    model.symlink_to(Path(spec.path).resolve())
    # Without the last option images become NHWC, and the inputs of the other sides would not fit.
    command: list[str | Path] = [
        program,
        "-i",
        model,
        "-o",
        folder,
        "-n",
        "-coion",
        "-kat",
        *spec.input_names,
    ]
    return run_converter(command, "LiteRT (onnx2tf)", folder / "model_float32.tflite")


class LiteRtSide:
    """Runs one interpreter."""

    def __init__(self, spec: SideSpec) -> None:
        litert = import_peer("ai_edge_litert.interpreter", "LiteRT")
        self._name = f"LiteRT {importlib.metadata.version('ai-edge-litert')}"
        try:
            self._interpreter = litert.Interpreter(spec.path, num_threads=spec.threads)
            self._interpreter.allocate_tensors()
        except (RuntimeError, ValueError) as error:
            raise ModelError(f"LiteRT cannot load the converted model: {telling_line(str(error))}") from error
        arrays = spec.arrays()
        self._inputs = [
            (place, arrays[name])
            for place, name in _places(self._interpreter.get_input_details(), spec.input_names)
        ]
        self._outputs = _places(self._interpreter.get_output_details(), spec.output_names)

    def run(self) -> dict[str, np.ndarray]:
        """Run once."""
        for place, array in self._inputs:
            self._interpreter.set_tensor(place, array)
        self._interpreter.invoke()
        return {name: self._interpreter.get_tensor(place) for place, name in self._outputs}

    def version(self) -> str:
        """LiteRT's version."""
        return self._name


def _places(details: list[dict[str, object]], names: tuple[str, ...]) -> list[tuple[object, str]]:
    """The tensors that go by these names; those that the converter renamed, by their position."""
    if len(details) != len(names):
        raise ModelError(
            f"LiteRT's converted model has {len(details)} inputs or outputs in place of {len(names)}"
        )
    known = {str(detail["name"]): detail["index"] for detail in details}
    if set(known) == set(names):
        return [(known[name], name) for name in names]
    return [(detail["index"], name) for detail, name in zip(details, names, strict=True)]


def open_side(spec: SideSpec) -> LiteRtSide:
    """Load the converted model at ``spec.path``."""
    return LiteRtSide(spec)
