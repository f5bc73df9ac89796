"""Which program of a bundle serves given inputs, and how inputs are padded up to it and outputs cropped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edgetune.bundle.manifest import Manifest
from edgetune.errors import UsageError
from edgetune.sizes import Dimension

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Dispatch:
    """A program, and the dimension to pad for it: ``size`` rows are the caller's, the rest are padding.

    ``dimension`` None: the inputs have exactly the program's shapes.
    """

    program: int
    dimension: Dimension | None = None
    size: int = 0

    def fill(self, name: str, buffer: np.ndarray, array: np.ndarray) -> None:
        """Copy an input into the program's buffer; its last row is repeated to the end.

        A row of the caller's is valid wherever it stands; a row of zeros might divide by zero.
        """
        if buffer.shape == array.shape or self.dimension is None:
            buffer[...] = array
            return
        axis = dict(self.dimension.inputs)[name]
        rows, given = np.moveaxis(buffer, axis, 0), np.moveaxis(array, axis, 0)
        rows[: self.size] = given
        rows[self.size :] = given[-1:]

    def crop(self, outputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs without the rows of the padding."""
        cropped = dict(outputs)
        if self.dimension is not None:
            for name, axis in self.dimension.outputs:
                cropped[name] = cropped[name].take(np.arange(self.size), axis)
        return cropped


class Dispatcher:
    """Finds the program for the shapes of the inputs."""

    def __init__(self, manifest: Manifest) -> None:
        self._model = manifest.model.name
        self._dimensions = [entry.dimension() for entry in manifest.dimensions]
        self._names = [item.name for item in manifest.inputs]
        self._programs = {
            tuple(item.shape for item in program.inputs): index
            for index, program in enumerate(manifest.all_programs())
        }

    def choose(self, shapes: Mapping[str, Sequence[int]]) -> Dispatch:
        """The program that serves inputs of these shapes, each of which the bundle takes by itself.

        Raises:
            UsageError: two inputs disagree on a size.
        """
        wanted = {name: list(shapes[name]) for name in self._names}
        padded: Dimension | None = None
        size = 0
        for dimension in self._dimensions:
            given = dimension.of(shapes)
            bucket = dimension.sizes.bucket(given)
            if bucket is not None and bucket != given:
                padded, size = dimension, given
                for name, axis in dimension.inputs:
                    wanted[name][axis] = bucket
        program = self._programs.get(tuple(tuple(wanted[name]) for name in self._names))
        if program is None:
            raise UsageError(
                f"no part of the bundle of {self._model} is for inputs of the shapes {dict(shapes)}"
            )
        return Dispatch(program, padded, size)

    def all_shapes(self) -> list[dict[str, Shape]]:
        """The shapes of the inputs for each program, and, where one is padded, for a size between two."""
        found = [dict(zip(self._names, shapes, strict=True)) for shapes in self._programs]
        for dimension in self._dimensions:
            size = dimension.sizes.between()
            if dimension.sizes.padded and size is not None:
                largest = {name: list(shape) for name, shape in found[0].items()}
                for name, axis in dimension.inputs:
                    largest[name][axis] = size
                found.append({name: tuple(shape) for name, shape in largest.items()})
        return found

    def label(self, shapes: Mapping[str, Sequence[int]]) -> str:
        """The sizes that vary, for messages: ``batch=3 (padded to 4)``; empty for a fixed shape."""
        parts = []
        for dimension in self._dimensions:
            size = dimension.of(shapes)
            bucket = dimension.sizes.bucket(size)
            padding = "" if bucket == size else f" (padded to {bucket})"
            parts.append(f"{dimension.name}={size}{padding}")
        return ", ".join(parts)
