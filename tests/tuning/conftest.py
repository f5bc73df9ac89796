"""Kernels made with te, and the processes that several tests share."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from edgetune.devices.local import local_device
from edgetune.devices.transport import Device
from edgetune.records import Task
from edgetune.targets import Target, load_target
from edgetune.tuning.workers import ForkServer, WorkerPool


def as_task(name: str, func: Any, *, weight: int = 1, flops: float = 0.0) -> Task:
    import tvm

    mod = tvm.IRModule({"main": func})
    workload = hashlib.sha256(mod.script().encode()).hexdigest()[:16]
    return Task(name, workload, tvm.ir.save_json(mod), weight, flops)


def matmul_task(n: int = 64) -> Task:
    """relu(a @ b + bias)."""
    import tvm
    from tvm import te

    a, b, bias = te.placeholder((n, n)), te.placeholder((n, n)), te.placeholder((n,))
    k = te.reduce_axis((0, n))
    product = te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="product")
    zero = tvm.tirx.const(0.0, "float32")
    relu = te.compute((n, n), lambda i, j: tvm.tirx.Max(product[i, j] + bias[j], zero), name="relu")
    return as_task(f"matmul{n}", te.create_prim_func([a, b, bias, relu]), weight=3, flops=2.0 * n**3)


def conv_task() -> Task:
    """A 3x3 convolution on NHWC data."""
    from tvm import te, topi

    data, kernel = te.placeholder((1, 16, 16, 8)), te.placeholder((3, 3, 8, 16))
    out = topi.nn.conv2d_nhwc(data, kernel, 1, 1, 1)
    return as_task("conv", te.create_prim_func([data, kernel, out]), weight=2, flops=2.0 * 16 * 16 * 16 * 72)


def add_task(shape: tuple[int, ...] = (32, 32), amount: float = 1.0, dtype: str = "float32") -> Task:
    """x + amount."""
    import tvm
    from tvm import te

    x = te.placeholder(shape, dtype)
    y = te.compute(shape, lambda *i: x(*i) + tvm.tirx.const(amount, dtype), name="y")
    return as_task(f"add{amount:g}", te.create_prim_func([x, y]))


def libc_task(name: str, *arguments: int, shapes: Any = ((32, 32),)) -> Task:
    """A call of a C library function, to crash or hang on purpose; by default with ``add_task``'s signature."""
    import tvm
    from tvm import te

    inputs = [te.placeholder(shape) for shape in shapes]
    y = te.extern(
        shapes[0],
        inputs,
        lambda ins, outs: tvm.tirx.Evaluate(tvm.tirx.call_extern("int32", name, *arguments)),
    )
    return as_task(name, te.create_prim_func([*inputs, y]))


@pytest.fixture(scope="session")
def target() -> Target:
    return load_target("local").with_threads(2)


@pytest.fixture(scope="session")
def server() -> Iterator[ForkServer]:
    with ForkServer() as server:
        yield server


@pytest.fixture(scope="session")
def pool(server: ForkServer) -> Iterator[WorkerPool]:
    with WorkerPool(server, 2) as pool:
        yield pool


@pytest.fixture(scope="session")
def device() -> Iterator[Device]:
    device = local_device(threads=2)
    with device.up():
        yield device


@pytest.fixture(scope="session")
def kernels() -> SimpleNamespace:
    """The functions above: test modules cannot import each other."""
    return SimpleNamespace(matmul=matmul_task, conv=conv_task, add=add_task, libc=libc_task)
