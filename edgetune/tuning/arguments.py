"""A kernel's arguments: what they are, random values for them, and when two results agree."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from edgetune.dtypes import is_float, numpy_dtype
from edgetune.records import Task
from edgetune.tolerances import absolute_errors, kernel_bounds

if TYPE_CHECKING:
    import tvm


@dataclass(frozen=True)
class ArgumentSpec:
    """One tensor argument of a kernel; ``written`` marks the results."""

    dtype: str
    shape: tuple[int, ...]
    written: bool

    @property
    def nbytes(self) -> int:
        """Size in memory."""
        return int(np.prod(self.shape, dtype=np.int64)) * numpy_dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Prepared:
    """What measuring a task needs: its arguments, and by position what its kernel should compute."""

    task: Task
    specs: tuple[ArgumentSpec, ...]
    expected: Mapping[int, np.ndarray]


def argument_specs(func: tvm.tirx.PrimFunc) -> tuple[ArgumentSpec, ...]:
    """Read the arguments of a kernel with static shapes.

    Raises:
        ValueError: an argument is not a tensor of static shape.
    """
    import tvm
    import tvm_ffi

    written: list[tvm.ir.Var] = []

    def visit(block: tvm.s_tir.SBlock) -> None:
        written.extend(region.source for region in block.writes)

    tvm_ffi.structural_walk(func.body, (tvm.s_tir.SBlock, visit))
    specs = []
    for param in func.params:
        if not isinstance(param.ty, tvm.tirx.BufferType):
            raise ValueError(f"argument {param.name} of the kernel is not a tensor")
        if not all(isinstance(extent, tvm.tirx.IntImm) for extent in param.shape):
            raise ValueError(f"argument {param.name} of the kernel has a dynamic shape")
        shape = tuple(int(extent) for extent in param.shape)
        is_result = any(param.same_as(buffer) for buffer in written)
        specs.append(ArgumentSpec(str(param.dtype), shape, is_result))
    return tuple(specs)


def random_arguments(specs: tuple[ArgumentSpec, ...], workload: str) -> list[np.ndarray]:
    """Return values for the arguments, the same ones for the same workload everywhere.

    Floats lie in [-1, 1); 8 and 16 bit integers take all values; wider ones are 0 or 1, because they are
    mostly indices. Results start as a pattern that no kernel writes by accident.
    """
    generator = np.random.default_rng(zlib.crc32(workload.encode()))
    return [poison(spec) if spec.written else _random(spec, generator) for spec in specs]


def poison(spec: ArgumentSpec) -> np.ndarray:
    """Return what a result holds before the kernel runs: NaN, or the bit pattern 0x5A..."""
    dtype = numpy_dtype(spec.dtype)
    if is_float(spec.dtype):
        return np.full(spec.shape, np.nan, dtype)
    if spec.dtype == "bool":
        return np.zeros(spec.shape, dtype)
    return np.frombuffer(b"\x5a" * spec.nbytes, dtype).reshape(spec.shape).copy()


def disagreement(expected: np.ndarray, got: np.ndarray) -> str | None:
    """Say where two results differ by more than a schedule may cause; None where they agree."""
    wrong = absolute_errors(expected, got) > kernel_bounds(expected)
    if not wrong.any():
        return None
    first = tuple(int(i) for i in np.argwhere(wrong)[0])
    return (
        f"{int(wrong.sum())} of {wrong.size} values are wrong, first at {list(first)}: "
        f"{got[first]} instead of {expected[first]}"
    )


def _random(spec: ArgumentSpec, generator: np.random.Generator) -> np.ndarray:
    dtype = numpy_dtype(spec.dtype)
    if spec.dtype == "bool":
        return generator.integers(0, 2, spec.shape).astype(dtype)
    if np.issubdtype(dtype, np.integer):
        if dtype.itemsize <= 2:
            limits = np.iinfo(dtype)
            return generator.integers(limits.min, limits.max, spec.shape, dtype, endpoint=True)
        return generator.integers(0, 2, spec.shape).astype(dtype)
    return (generator.random(spec.shape, np.float32) * 2 - 1).astype(dtype)
