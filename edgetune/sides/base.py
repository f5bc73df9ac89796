"""What a side is, and where it is found by name.

A new side is one module with a function ``open_side(spec: SideSpec) -> Side``. Its name is a key of
:data:`SIDES`, or the path of its ``.py`` file, which needs no change here. A runtime that does not read
ONNX files has a function ``convert(spec: SideSpec, folder: Path) -> Path`` too: it writes the model in the
runtime's own form into ``folder`` before the clock starts, in processes of its own (``converting.py``), so that
neither its time nor its memory counts; ``open_side`` then finds what it returned in ``spec.path``.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from edgetune.bundle.arrays import read_npz
from edgetune.errors import UsageError, did_you_mean

SIDES: Mapping[str, str] = {
    "edgetune": "edgetune.sides.bundle_side",
    "onnxruntime": "edgetune.sides.onnxruntime_side",
    "openvino": "edgetune.sides.openvino_side",
    "mnn": "edgetune.sides.mnn_side",
    "ncnn": "edgetune.sides.ncnn_side",
    "litert": "edgetune.sides.litert_side",
    "iree": "edgetune.sides.iree_side",
}
"""Name -> module."""


@dataclass(frozen=True)
class SideSpec:
    """What a side is to run.

    Attributes:
        name: a key of SIDES, or the path of a ``.py`` file.
        path: the bundle, or the ONNX file.
        inputs: an ``.npz`` file with the inputs by name; names that the model lacks are ignored.
        threads: how many threads to run on.
        input_names, output_names: of the model, in its order, for runtimes that know tensors by position.
        cpus: to run on; any, where none are named.
        memory_bytes: that its process may take; all, where it is 0. Systems other than Linux may not hold it.
    """

    name: str
    path: str
    inputs: str
    threads: int
    input_names: tuple[str, ...] = ()
    output_names: tuple[str, ...] = ()
    cpus: tuple[int, ...] = ()
    memory_bytes: int = 0

    def to_json(self) -> dict[str, Any]:
        """For the way to the child process."""
        return asdict(self)

    def arrays(self) -> dict[str, np.ndarray]:
        """The inputs."""
        return read_npz(Path(self.inputs))


class Side(Protocol):
    """A loaded model with its inputs at hand. Not for use from several threads."""

    def run(self) -> dict[str, np.ndarray]:
        """Run once and return the outputs by name: exactly what is timed, nothing more."""

    def version(self) -> str:
        """Name and version of what runs, for the report."""


def side_module(name: str) -> ModuleType:
    """The module of a side: it has ``open_side``, and ``convert`` where its runtime does not read ONNX files.

    Raises:
        UsageError: there is no such side.
    """
    if name in SIDES:
        return importlib.import_module(SIDES[name])
    path = Path(name)
    if path.suffix != ".py" or not path.is_file():
        raise UsageError(f"no side {name!r} to run against; {did_you_mean(name, SIDES)}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, "open_side"):
        raise UsageError(f"{path} has no function open_side(spec); see edgetune/sides/base.py")
    return module
