"""Kernels that tests send to devices: one that computes, and some that crash or hang on purpose."""

from __future__ import annotations

import numpy as np

from edgetune.devices.session import Session

TARGETS = {"x86_64": "x86-64-v3", "aarch64": "armv8-a", "arm": "armv7-a", "riscv64": "riscv64"}


def kernel_for(target_name: str) -> bytes:
    """y = 2x + 1, with a loop that the runtime's threads share."""
    import tvm
    from tvm import te

    from edgetune.targets import load_target
    from edgetune.tuning.build import library_of

    target = load_target(target_name)
    x = te.placeholder((64, 64), name="x")
    y = te.compute((64, 64), lambda i, j: x[i, j] * 2.0 + 1.0, name="y")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([x, y]))
    schedule.parallel(schedule.get_loops("y")[0])
    mod = tvm.IRModule({"main": schedule.mod["main"].with_attr("global_symbol", "main")})
    return library_of(tvm.tirx.build(mod, target=target.tvm()), target)


def libc_call(name: str, *arguments: int) -> bytes:
    """A kernel for this machine that calls a function of the C library: to crash or hang on purpose."""
    import tvm
    from tvm import te

    from edgetune.targets import load_target
    from edgetune.tuning.build import library_of

    a = te.placeholder((4,), name="a")
    b = te.extern(
        (4,),
        [a],
        lambda ins, outs: tvm.tirx.Evaluate(tvm.tirx.call_extern("int32", name, *arguments)),
        name="b",
    )
    mod = tvm.IRModule({"main": te.create_prim_func([a, b]).with_attr("global_symbol", "main")})
    target = load_target("local")
    return library_of(tvm.tirx.build(mod, target=target.tvm()), target)


def run_library(session: Session, library: bytes, timeout_s: float) -> None:
    import tvm

    with session.deadline(timeout_s, "the kernel"):
        session.upload("kernel.so", library)
        module = session.load("kernel.so")
        cpu = session.tvm_device("cpu")
        tensors = [tvm.runtime.tensor(np.zeros(4, np.float32), device=cpu) for _ in range(2)]
        module["main"](*tensors)
