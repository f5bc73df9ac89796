"""What identifies a kernel, and how much it computes."""

from __future__ import annotations

import tvm
import tvm_ffi

SURROUNDINGS = ("op_pattern", "private", "global_symbol", "edgetune.joins")
"""Attributes of a kernel that tell of its surroundings, not of what it computes."""


def workload_hash(mod: tvm.IRModule) -> str:
    """16 hex digits naming the computation of a kernel module (one PrimFunc ``main``).

    It is TVM's structural hash: names of variables and buffers do not count, shapes, types and structure do; it
    is the same in every process that runs the same TVM. The values of floating-point constants do not count
    either: kernels that differ in a factor only are scheduled alike and as fast.
    """
    func = mod["main"]
    for attribute in SURROUNDINGS:
        if func.attrs and attribute in func.attrs:
            func = func.without_attr(attribute)
    masked = tvm_ffi.structural_map(func, (tvm.tirx.FloatImm, _mask))
    return f"{tvm_ffi.structural_hash(masked, map_free_vars=True) & (2**64 - 1):016x}"


def _mask(number: tvm.tirx.FloatImm) -> tvm.tirx.FloatImm:
    return tvm.tirx.FloatImm(str(number.ty.dtype), 1.0)


def kernel_flops(func: tvm.tirx.PrimFunc) -> float:
    """Arithmetic operations of one call, by TVM's count (a multiply-add is two)."""
    from tvm.s_tir.analysis import estimate_tir_flops

    # The count knows no Let: its value and its body are each computed once.
    func = tvm_ffi.structural_map(func, (tvm.tirx.Let, lambda let: let.value + let.body))
    try:
        return float(estimate_tir_flops(tvm.IRModule({"main": func})))
    except tvm.error.InternalError:  # data-dependent extents cannot be counted
        return 0.0
