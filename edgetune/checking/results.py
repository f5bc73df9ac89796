"""What ``edgetune check`` answers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgetune.checking.nodes import UnsupportedNode
    from edgetune.checking.prefix import Prefix
    from edgetune.model.interface import Value


@dataclass(frozen=True)
class OpenDimension:
    """A dimension that a shape must fix; ``symbol`` is its name in the file, if it has one."""

    input: str
    axis: int
    symbol: str | None


@dataclass(frozen=True)
class CheckResult:
    """What ``edgetune check`` found.

    Attributes:
        message: why the model cannot be compiled and what to do; empty where it can be.
        inputs: of the model as given, frozen ones left out; as are ``outputs``. Open dimensions
            are symbols, or None.
        tasks: number of distinct kernels to tune; None where it cannot be compiled.
        flops: floating-point operations of one inference; None while dimensions are open.
        params: number of weights.
        notes: what preparing the model did or left out.
        prefix: where nodes stand in the way, the part before them that can be compiled; None where there is
            none.
        rest: the ONNX file with what comes after the tensors that the model was cut at, if one was asked for.
    """

    model: str
    supported: bool
    message: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    unsupported: tuple[UnsupportedNode, ...] = ()
    dynamic_dims: tuple[OpenDimension, ...] = ()
    tasks: int | None = None
    flops: int | None = None
    params: int = 0
    notes: tuple[str, ...] = ()
    prefix: Prefix | None = None
    rest: Path | None = None

    def to_json(self) -> dict[str, Any]:
        """The JSON object of ``edgetune check``."""
        return {
            "model": self.model,
            "supported": self.supported,
            "message": self.message,
            "inputs": [_value_json(value) for value in self.inputs],
            "outputs": [_value_json(value) for value in self.outputs],
            "unsupported": [{"node": n.node, "op": n.op, "reason": n.reason} for n in self.unsupported],
            "dynamic_dims": [
                {"input": dim.input, "axis": dim.axis, "symbol": dim.symbol} for dim in self.dynamic_dims
            ],
            "tasks": self.tasks,
            "flops": self.flops,
            "params": self.params,
            "notes": list(self.notes),
            "prefix": None if self.prefix is None else self.prefix.to_json(),
            "rest": None if self.rest is None else str(self.rest),
        }


def _value_json(value: Value) -> dict[str, Any]:
    return {
        "name": value.name,
        "dtype": value.dtype,
        "shape": None if value.dims is None else list(value.dims),
    }
