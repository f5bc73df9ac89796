"""The reference kernel: a fixed small matrix product, timed before and after each batch.

What it computes never changes, so its time tells how fast the device is at the moment: clocks that
throttle, or another program on the same cores, show in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgetune.cuda import leave_sources
from edgetune.targets import Target
from edgetune.tuning.build import ENTRY, library_of

if TYPE_CHECKING:
    import tvm

SIZE = 160
"""Rows and columns: 8 million operations in 300 kB, bound by arithmetic."""
REPEATS = 5
REPEAT_MS = 2


def arguments() -> list[np.ndarray]:
    """Return the kernel's arguments: two matrices and room for the product."""
    generator = np.random.default_rng(0)
    return [generator.random((SIZE, SIZE), np.float32) for _ in range(3)]


def build_reference_kernel(target: Target) -> bytes:
    """Build the reference kernel for a target; runs in a worker."""
    import tvm

    leave_sources(target)
    tvm_target = target.tvm()
    schedule = _scheduled(_product(), target.kind)
    return library_of(tvm.tirx.build(schedule.mod, target=tvm_target), target)


def _product() -> tvm.IRModule:
    import tvm
    from tvm import te

    left = te.placeholder((SIZE, SIZE), name="left")
    right = te.placeholder((SIZE, SIZE), name="right")
    k = te.reduce_axis((0, SIZE), name="k")
    product = te.compute((SIZE, SIZE), lambda i, j: te.sum(left[i, k] * right[k, j], axis=k), name="product")
    return tvm.IRModule(
        {ENTRY: te.create_prim_func([left, right, product]).with_attr("global_symbol", ENTRY)}
    )


def _scheduled(mod: tvm.IRModule, kind: str) -> tvm.s_tir.Schedule:
    from tvm.s_tir import Schedule

    schedule = Schedule(mod)
    block = schedule.get_sblock("product")
    i, j, k = schedule.get_loops(block)
    if kind == "cuda":
        outer, inner = schedule.split(schedule.fuse(i, j), [None, 128])
        schedule.bind(outer, "blockIdx.x")
        schedule.bind(inner, "threadIdx.x")
        return schedule
    columns, lanes = schedule.split(j, [None, 16])
    schedule.reorder(i, columns, k, lanes)
    schedule.parallel(i)
    schedule.vectorize(lanes)
    schedule.vectorize(schedule.get_loops(schedule.decompose_reduction(block, k))[-1])
    return schedule
