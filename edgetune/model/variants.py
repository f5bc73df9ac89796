"""Which fixed shapes a model of varying sizes is prepared for.

Before: ``{"x": ("1..4", 3, 224, 224)}``. After: the dimension ``batch`` of the input ``x``, and the shapes
``{"x": (4, 3, 224, 224)}``, ``{"x": (2, ...)}``, ``{"x": (1, ...)}``; with several dimensions, every
combination of their sizes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from onnx import ModelProto

from edgetune.errors import UsageError
from edgetune.model import interface
from edgetune.model.interface import Dim, Value
from edgetune.model.passes.bind_shapes import bound_inputs
from edgetune.model.passes.freeze_inputs import require_input
from edgetune.records import PreparedModel, TensorSpec
from edgetune.sizes import Dimension, Sizes, parse_sizes

MOST_COMBINATIONS = 32
"""Each one is lowered, tuned, compiled and verified."""

Shapes = Mapping[str, Sequence[int | str | Sequence[int]]]
"""Input name -> sizes; one that varies is a text or a sequence, see ``sizes.parse_sizes``."""


@dataclass(frozen=True)
class Plan:
    """The dimensions that vary, and the shapes of the inputs for each combination of their sizes.

    Attributes:
        dimensions: none for a model of fixed shape.
        combinations: a size for each dimension, the largest sizes first; one that is empty without any.
        given: the shapes asked for, with the first combination's sizes.
    """

    dimensions: tuple[Dimension, ...]
    combinations: tuple[tuple[int, ...], ...]
    given: Mapping[str, tuple[int, ...]]

    def shapes(self, sizes: Sequence[int]) -> dict[str, tuple[int, ...]]:
        """The shapes of the inputs that were given, at ``sizes``, one for each dimension."""
        shapes = {name: list(shape) for name, shape in self.given.items()}
        for dimension, size in zip(self.dimensions, sizes, strict=True):
            for name, axis in dimension.inputs:
                if name in shapes:
                    shapes[name][axis] = size
        return {name: tuple(shape) for name, shape in shapes.items()}

    def others(self, index: int) -> list[tuple[int, ...]]:
        """Every combination of the other dimensions' sizes, with the largest size of dimension ``index``."""
        largest = self.dimensions[index].sizes.exact[-1]
        return [sizes for sizes in self.combinations if sizes[index] == largest]


def plan(declared: Sequence[Value], shapes: Shapes) -> Plan:
    """Find the dimensions that vary, and every combination of their sizes.

    A dimension is known by the file's symbol. Where the file has none, the same sizes given for several
    inputs are one dimension: ``x:1..4x3`` and ``y:1..4x5`` have four rows each, or two each, never
    different numbers. Within one input they are different dimensions.

    Raises:
        UsageError: there is no such input, sizes are malformed, a symbol has different ones, or there are
            more than 32 combinations.
    """
    by_name = {value.name: value for value in declared}
    found: dict[object, Dimension] = {}
    given: dict[str, tuple[int, ...]] = {}
    for name, dims in shapes.items():
        value = require_input(name, by_name, "--shape")
        seen: dict[tuple[int, ...], int] = {}
        fixed = []
        for axis, dim in enumerate(dims):
            if not isinstance(dim, str | Sequence):
                fixed.append(dim)
                continue
            sizes = parse_sizes(dim)
            fixed.append(sizes[-1])
            if len(sizes) > 1:
                symbol = _symbol(value, axis)
                seen[sizes] = seen.get(sizes, 0) + 1
                _add(found, symbol or (sizes, seen[sizes]), symbol or f"{name}.{axis}", sizes, (name, axis))
        given[name] = tuple(fixed)
    dimensions = tuple(_everywhere(dimension, declared, given) for dimension in found.values())
    return Plan(dimensions, _combinations(dimensions), given)


def _symbol(value: Value, axis: int) -> str | None:
    dim = value.dims[axis] if value.dims is not None and axis < len(value.dims) else None
    return dim if isinstance(dim, str) else None


def _add(
    found: dict[object, Dimension], key: object, name: str, sizes: tuple[int, ...], place: tuple[str, int]
) -> None:
    known = found.setdefault(key, Dimension(name, Sizes(sizes), ()))
    if known.sizes.exact != sizes:
        first = known.inputs[0][0]
        raise UsageError(
            f"--shape gives {name!r} the sizes {known.sizes} in input {first!r} and {Sizes(sizes)} in input "
            f"{place[0]!r}: it is one dimension; give both the same"
        )
    found[key] = replace(known, inputs=(*known.inputs, place))


def _everywhere(dimension: Dimension, declared: Sequence[Value], given: Mapping[str, object]) -> Dimension:
    """The dimension with the places that its symbol has in inputs whose shape was not given."""
    places = [
        (value.name, axis)
        for value in declared
        if value.name not in given
        for axis, dim in enumerate(value.dims or ())
        if dim == dimension.name
    ]
    return replace(dimension, inputs=(*dimension.inputs, *places))


def _combinations(dimensions: Sequence[Dimension]) -> tuple[tuple[int, ...], ...]:
    count = math.prod(len(dimension.sizes.exact) for dimension in dimensions)
    if count > MOST_COMBINATIONS:
        raise UsageError(
            f"the sizes given make {count} combinations, each with kernels of its own; name fewer sizes, "
            f"as 1/8 in place of 1..8, so that there are at most {MOST_COMBINATIONS}"
        )
    return tuple(itertools.product(*(dimension.sizes.exact[::-1] for dimension in dimensions)))


def leave_open(
    model: ModelProto, the_plan: Plan, sizes: Sequence[int], dimensions: Sequence[Dimension]
) -> ModelProto:
    """A copy of a normalized model with its inputs at ``sizes``, and ``dimensions`` open: a symbol each."""
    opened = ModelProto()
    opened.CopyFrom(model)
    bound = bound_inputs(interface.inputs(model), the_plan.shapes(sizes))
    dims = {value.name: list(value.dims or ()) for value in bound}
    for index, dimension in enumerate(dimensions):
        for name, axis in dimension.inputs:
            dims[name][axis] = f"size{index}"
    for value in opened.graph.input:
        interface.set_dims(value, tuple(dims[value.name]))
    return opened


def served(prepared: PreparedModel) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
    """Inputs and outputs, with the sizes that are served in the place of those that vary: ``1..8``."""
    sizes: dict[tuple[str, int], str] = {
        place: str(dimension.sizes)
        for dimension in prepared.dimensions
        for place in (*dimension.inputs, *(dimension.outputs if dimension.sizes.padded else ()))
    }

    def value(specs: Sequence[TensorSpec]) -> Value:
        name, axes = specs[0].name, zip(*(spec.shape for spec in specs), strict=True)
        dims: list[Dim] = []
        for axis, at_each in enumerate(axes):
            found = sorted(set(at_each))
            dims.append(sizes.get((name, axis), "/".join(map(str, found))) if len(found) > 1 else found[0])
        return Value(name, specs[0].dtype, tuple(dims))

    models = prepared.all_sizes
    return (
        tuple(value(specs) for specs in zip(*(model.inputs for model in models), strict=True)),
        tuple(value(specs) for specs in zip(*(model.outputs for model in models), strict=True)),
    )
