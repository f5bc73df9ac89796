"""What a rule is told about a node, and what it says about the node's outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import NodeProto

from edgetune.model.interface import Dim


class Kind(Enum):
    """What is known of a tensor that has no rows."""

    SHARED = "the same whatever the size and the rows are"
    SIZE = "made of the size alone"


SHARED, SIZE = Kind.SHARED, Kind.SIZE
ROWS = "rows"
"""In shapes: as many as there are rows."""
State: TypeAlias = "int | Kind | str"
"""An axis along which rows lie, a kind, or a text that says why rows are mixed."""


class Mixed(Exception):
    """Rows are mixed, or may be; the text goes on after the operator's name."""


@dataclass(frozen=True)
class NodeFacts:
    """What is known of a node; the tuples have an entry for each of its inputs, None for one left out.

    Attributes:
        states: no texts. shapes: None where not even the rank is known. values: of small constants.
        output: dimensions of the first output.
    """

    node: NodeProto
    opset: int
    states: tuple[State | None, ...]
    shapes: tuple[tuple[Dim, ...] | None, ...]
    values: tuple[np.ndarray | None, ...]
    output: tuple[Dim, ...] | None

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute's value."""
        found = next((item for item in self.node.attribute if item.name == name), None)
        return default if found is None else onnx.helper.get_attribute_value(found)

    def shape(self, index: int) -> tuple[Dim, ...]:
        """Dimensions of an input."""
        dims = self.shapes[index] if index < len(self.shapes) else None
        return known(dims)

    def value(self, index: int) -> list[int]:
        """A constant input of whole numbers."""
        value = self.values[index] if index < len(self.values) else None
        if value is None:
            raise Mixed("takes an operand that is no constant")
        return [int(item) for item in value.reshape(-1)]

    def given(self, index: int) -> bool:
        """Whether an optional input is there."""
        return index < len(self.states) and self.states[index] is not None

    def rows(self, index: int = 0) -> int:
        """The axis of the rows in an input that must have them, all other inputs being SHARED."""
        self.shared(*(other for other in range(len(self.states)) if other != index))
        return self.axis(index)

    def axis(self, index: int) -> int:
        """The axis of the rows in an input that must have them."""
        state = self.states[index]
        if not isinstance(state, int):
            raise Mixed("takes rows as another operand than the first")
        return state

    def shared(self, *indices: int) -> None:
        """Hold that these inputs, where they are given, are SHARED."""
        for index in indices:
            if self.given(index) and self.states[index] is not SHARED:
                raise Mixed("takes an operand that depends on the rows or on their number")

    def sizes(self, *indices: int) -> None:
        """Hold that these inputs, where they are given, have no rows."""
        for index in indices:
            if index < len(self.states) and isinstance(self.states[index], int):
                raise Mixed("takes rows as a shape")


Rule = Callable[[NodeFacts], Sequence[State]]
"""Gives the states of the outputs, or raises :class:`Mixed`."""


def known(dims: tuple[Dim, ...] | None) -> tuple[Dim, ...]:
    """Dimensions that are needed."""
    if dims is None:
        raise Mixed("has tensors of unknown shape")
    return dims


def every_output(facts: NodeFacts, axis: State) -> list[State]:
    """The same state for each output."""
    return [axis] * len(facts.node.output)


def number(dim: Dim) -> int:
    """A dimension that must be fixed."""
    if not isinstance(dim, int):
        raise Mixed("has tensors of unknown shape")
    return dim


def axis_of(facts: NodeFacts, default: int, rank: int) -> int:
    """The attribute ``axis``, counted from the front."""
    axis = int(facts.attribute("axis", default))
    return axis + rank if axis < 0 else axis
