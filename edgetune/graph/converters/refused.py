"""Operators that a static compiler cannot express: refused with the reason, where the importer would go on."""

from __future__ import annotations

from typing import Any

from edgetune.errors import UnsupportedModelError
from edgetune.graph.converters.base import Node, converter

CUT = "cut it off the model and run it beside the bundle"
"""What to do with an operator that cannot be compiled at all."""

_VALUE_DEPENDENT = ("NonZero", "Unique", "NonMaxSuppression")


def _refusal(op_type: str) -> type:
    def convert(node: Node) -> Any:
        raise UnsupportedModelError(f"how many elements {op_type} gives depends on the input's values; {CUT}")

    convert.__doc__ = f"{op_type}: always refused."
    return converter(convert)


def _loop(op_type: str) -> type:
    def convert(node: Node) -> Any:
        raise UnsupportedModelError(
            f"how often {op_type} runs is not known, or it is of a form older than opset 9: freeze the inputs that "
            "decide it, or export the model without it"
        )

    convert.__doc__ = f"{op_type}: what is left of these could not be unrolled."
    return converter(convert)


CONVERTERS: dict[str, type] = {
    **{op_type: _refusal(op_type) for op_type in _VALUE_DEPENDENT},
    **{op_type: _loop(op_type) for op_type in ("Loop", "Scan")},
    "com.microsoft.NonMaxSuppression": _refusal("NonMaxSuppression"),
}
