"""The files that both sides of a comparison read: the model for the reference, and the same inputs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgetune.bundle.arrays import write_npz
from edgetune.bundle.reader import Bundle
from edgetune.errors import UsageError
from edgetune.sides.base import SideSpec

Model = str | os.PathLike[str] | bytes | Any
"""A path, bytes, or an ``onnx.ModelProto``."""


@dataclass(frozen=True)
class SideFiles:
    """Paths for :class:`SideSpec`; valid inside :func:`side_files`."""

    bundle: Path
    model: Path | None
    inputs: Path
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]

    def spec(self, name: str, threads: int) -> SideSpec:
        """What the side ``name`` is to run.

        Raises:
            UsageError: it needs the ONNX model, and there is none.
        """
        if name == "edgetune":
            return SideSpec(name, str(self.bundle), str(self.inputs), threads)
        if self.model is None:
            raise UsageError(
                f"{self.bundle} is a lean bundle without its ONNX model; give the model with --model"
            )
        names = self.input_names, self.output_names
        return SideSpec(name, str(self.model), str(self.inputs), threads, *names)


@contextmanager
def side_files(bundle: Bundle, model: Model | None, inputs: Mapping[str, np.ndarray]) -> Iterator[SideFiles]:
    """Lay out files for the sides, in a temporary folder where they are no files yet.

    Args:
        bundle: one side, and where the model is taken from if none is given.
        model: the original ONNX model in place of the one in the bundle.
        inputs: the bundle's inputs; the original model is also given those that were frozen.

    Raises:
        UsageError: there is no file at the path ``model``.
    """
    with tempfile.TemporaryDirectory(prefix="edgetune-") as name:
        folder = Path(name)
        write_npz(folder / "inputs.npz", {**bundle.manifest.frozen_inputs(), **inputs})
        yield SideFiles(
            bundle.path,
            _model_path(bundle, model, folder),
            folder / "inputs.npz",
            tuple(item.name for item in bundle.manifest.inputs),
            tuple(item.name for item in bundle.manifest.outputs),
        )


def _model_path(bundle: Bundle, model: Model | None, folder: Path) -> Path | None:
    if isinstance(model, str | os.PathLike):
        path = Path(model).expanduser()
        if not path.is_file():
            raise UsageError(f"{path} is not a file; give the path of the ONNX model")
        return path
    data = bundle.model() if model is None else model
    if data is None:
        return None
    path = folder / "model.onnx"
    path.write_bytes(data if isinstance(data, bytes) else data.SerializeToString())
    return path
