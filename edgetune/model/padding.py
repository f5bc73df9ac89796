"""Which dimension can be padded: sizes between two that have kernels then run with those of the larger.

Exact only where every row is computed by itself. That is shown twice: by a proof on the graph
(``rowwise/``), and by running the original model in ONNX Runtime at a size in between and, with padding, at
the larger size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from onnx import ModelProto

from edgetune.errors import ModelError
from edgetune.model import interface
from edgetune.model.passes.bind_shapes import bound_inputs
from edgetune.model.reference import difference, reference_run
from edgetune.model.rowwise.proof import rows
from edgetune.model.session import Arrays, Session
from edgetune.model.variants import Plan, leave_open
from edgetune.records import ReferenceRun
from edgetune.sizes import Dimension, Sizes


@dataclass(frozen=True)
class Found:
    """The dimensions, at most one of them padded, with a run at a size in between; and what to tell of it."""

    dimensions: tuple[Dimension, ...]
    run: ReferenceRun | None
    notes: tuple[str, ...]


class Padding:
    """Finds the dimension to pad: the first one for which it is exact.

    One at most: the proof for one holds at the sizes that the others have kernels for.

    Args:
        planned: dimensions and sizes. model: normalized, its inputs frozen.
        session: the original model. frozen: values of its frozen inputs.
    """

    def __init__(self, planned: Plan, model: ModelProto, session: Session, frozen: Arrays) -> None:
        self._plan = planned
        self._model = model
        self._session = session
        self._frozen = frozen

    def find(self) -> Found:
        """Try one dimension after the other."""
        dimensions = list(self._plan.dimensions)
        run: ReferenceRun | None = None
        notes = []
        for index, dimension in enumerate(dimensions):
            size = dimension.sizes.between()
            if size is None:
                continue
            outputs, problem = self._proof(index)
            if not problem and run is not None:
                problem = "another dimension is padded already, and only one can be"
            elif not problem:
                padded = replace(dimension, sizes=Sizes(dimension.sizes.exact, True), outputs=outputs)
                run, problem = self._try(index, padded, size)
                dimensions[index] = dimension if run is None else padded
            if problem:
                notes.append(
                    f"of {dimension.name!r} only the sizes {dimension.sizes} are served, none in between, "
                    f"for padding it is not known to be exact: {problem}"
                )
        return Found(tuple(dimensions), run, tuple(notes))

    def _proof(self, index: int) -> tuple[tuple[tuple[str, int], ...], str]:
        """Where the rows lie in the outputs, the same at every size of the other dimensions; or a problem."""
        dimension = self._plan.dimensions[index]
        found = set()
        for sizes in self._plan.others(index):
            result = rows(leave_open(self._model, self._plan, sizes, [dimension]), dimension)
            if result.problem:
                return (), result.problem
            found.add(result.outputs)
        if len(found) > 1:
            return (), "the outputs differ with the other sizes"
        return found.pop(), ""

    def _try(self, index: int, dimension: Dimension, size: int) -> tuple[ReferenceRun | None, str]:
        """The original model at ``size``, if padding to the next larger size gives the same."""
        bucket = dimension.sizes.bucket(size)
        assert bucket is not None
        sizes = list(self._plan.combinations[0])
        sizes[index] = size
        bound = bound_inputs(interface.inputs(self._model), self._plan.shapes(sizes))
        try:
            inputs, outputs, _ = reference_run(self._session, [v.spec() for v in bound], self._frozen)
            padded = self._session.run({**_padded(inputs, dimension, bucket), **self._frozen})
        except ModelError as error:
            return None, f"at the size {size}, {error}"
        problem = difference(outputs, _cropped(padded, dimension, size))
        return (None, problem) if problem else (ReferenceRun(inputs, outputs), "")


def _padded(inputs: Mapping[str, np.ndarray], dimension: Dimension, bucket: int) -> Arrays:
    """The last row again and again, as the runtime does it: what is valid once is so twice."""
    arrays = dict(inputs)
    for name, axis in dimension.inputs:
        rows_ = np.minimum(np.arange(bucket), arrays[name].shape[axis] - 1)
        arrays[name] = arrays[name].take(rows_, axis)
    return arrays


def _cropped(outputs: Mapping[str, np.ndarray], dimension: Dimension, size: int) -> Arrays:
    arrays = dict(outputs)
    for name, axis in dimension.outputs:
        arrays[name] = arrays[name].take(np.arange(size), axis)
    return arrays
