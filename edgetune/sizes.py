"""Sizes of a dimension that varies from call to call: what is asked for, and what a bundle serves.

Each size named here gets kernels of its own. A size between two of them is served by padding up to the
next larger one, where that has been shown to be exact.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgetune.errors import UsageError

_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_LARGEST = 2**63 - 1
"""That ONNX can hold as a dimension; how large a whole tensor may be is said where all of its sizes are known."""
_LIST = re.compile(r"\d+(/\d+)*")


@dataclass(frozen=True)
class Sizes:
    """The sizes that one dimension may have.

    Attributes:
        exact: those with kernels of their own, ascending.
        padded: whether those in between are served too.
    """

    exact: tuple[int, ...]
    padded: bool = False

    def bucket(self, size: int) -> int | None:
        """The size whose kernels serve ``size``; None where there are none."""
        if size in self.exact:
            return size
        if not self.padded or size < self.exact[0]:
            return None
        return next((larger for larger in self.exact if larger > size), None)

    def between(self) -> int | None:
        """A size without kernels of its own between two that have them, as large as there is; or None."""
        for lower, upper in reversed(list(itertools.pairwise(self.exact))):
            if upper - lower > 1:
                return (lower + upper) // 2
        return None

    def __str__(self) -> str:
        """As an option has it: ``1..8``, or ``1/2/4/8`` without the sizes in between."""
        if self.padded and len(self.exact) > 1:
            return f"{self.exact[0]}..{self.exact[-1]}"
        return "/".join(map(str, self.exact))


@dataclass(frozen=True)
class Dimension:
    """A dimension of a model that varies, with all the places where it stands.

    Attributes:
        name: the file's symbol, or ``INPUT.AXIS`` where the file has none.
        inputs, outputs: ``(tensor, axis)``. Outputs are known where padding is exact: there they are cropped.
    """

    name: str
    sizes: Sizes
    inputs: tuple[tuple[str, int], ...]
    outputs: tuple[tuple[str, int], ...] = ()

    def of(self, shapes: Mapping[str, Sequence[int]]) -> int:
        """The size that the inputs' shapes give this dimension.

        Raises:
            UsageError: two inputs give it different ones.
        """
        first, axis = self.inputs[0]
        size = shapes[first][axis]
        for name, where in self.inputs[1:]:
            if shapes[name][where] != size:
                raise UsageError(
                    f"the dimension {self.name!r} is {size} in input {first!r} and {shapes[name][where]} in "
                    f"input {name!r}; give both the same size"
                )
        return size


def parse_sizes(size: int | str | Sequence[int]) -> tuple[int, ...]:
    """The sizes to build for one dimension, ascending.

    Args:
        size: a number; a range ``"1..8"``, of which its two ends and the powers of two between them are
            built; or the sizes themselves, ``"1/2/8"`` or ``(1, 2, 8)``.

    Raises:
        UsageError: it is none of these, or a size is less than one.
    """
    if isinstance(size, str):
        if match := _RANGE.fullmatch(size):
            return _checked(_range_sizes(int(match[1]), int(match[2])), size)
        if not _LIST.fullmatch(size):
            raise _malformed(size)
        return _checked([int(part) for part in size.split("/")], size)
    return _checked(size if isinstance(size, Sequence) else [size], size)


def _range_sizes(first: int, last: int) -> list[int]:
    """The ends, and the powers of two between them: padding then at most doubles the work."""
    powers = [1 << exponent for exponent in range(last.bit_length())]
    return [first, *(power for power in powers if first < power < last), last] if first <= last else []


def _checked(sizes: Sequence[Any], given: object) -> tuple[int, ...]:
    whole = all(type(size) is not bool and hasattr(size, "__index__") for size in sizes)
    if not sizes or not whole or any(not 1 <= size <= _LARGEST for size in sizes):
        raise _malformed(given)
    return tuple(sorted({int(size) for size in sizes}))


def _malformed(given: object) -> UsageError:
    return UsageError(
        f"{given!r} is not the size of a dimension; give a whole number of at least 1, a range as 1..8, or "
        "several sizes as 1/2/8"
    )
