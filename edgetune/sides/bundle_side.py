"""The side of an edgetune bundle."""

from __future__ import annotations

import numpy as np

from edgetune.runtime import AnyModel, load
from edgetune.sides.base import SideSpec


class BundleSide:
    """Runs a loaded bundle as a user's program would: NumPy arrays in, NumPy arrays out."""

    def __init__(self, model: AnyModel, inputs: dict[str, np.ndarray]) -> None:
        self._model = model
        self._inputs = inputs

    def run(self) -> dict[str, np.ndarray]:
        """Run once."""
        return self._model.run(self._inputs)

    def version(self) -> str:
        """Edgetune's version."""
        return f"edgetune {self._model.manifest.versions['edgetune']}"


def open_side(spec: SideSpec) -> BundleSide:
    """Load the bundle at ``spec.path``."""
    model = load(spec.path, threads=spec.threads)
    names = {item.name for item in model.inputs}
    return BundleSide(model, {name: array for name, array in spec.arrays().items() if name in names})
