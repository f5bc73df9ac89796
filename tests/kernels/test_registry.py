"""Which family schedules a kernel, and what happens where its schedules do not fit."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import tvm
from tvm import te
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import ScheduleError

from edgetune.graph.workload import kernel_flops, workload_hash
from edgetune.kernels import contraction, generic, registry, tiles, window, winograd
from edgetune.kernels.schedules import KERNEL_ATTR, Space, divisors
from edgetune.records import Task
from edgetune.targets import Target


def module(*tensors: te.Tensor) -> tvm.IRModule:
    func = te.create_prim_func(list(tensors))
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


def marked(kind: str) -> tvm.IRModule:
    """A kernel that says it is of a family, but has none of its blocks."""
    x = te.placeholder((64, 48), name="x")
    k = te.reduce_axis((0, 48), "k")
    return module(
        x, te.compute((64,), lambda i: te.sum(x[i, k], axis=k), name="odd", attrs={KERNEL_ATTR: kind})
    )


def task_of(mod: tvm.IRModule) -> Task:
    return Task("odd", workload_hash(mod), tvm.ir.save_json(mod), kind=registry.kind_of(mod["main"]))


@pytest.mark.parametrize("kind", [contraction.KIND, window.KIND, winograd.KIND])
def test_a_kernel_that_its_family_cannot_schedule(
    kind: str, local_target: Target, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "edgetune.kernels")
    mod = marked(kind)
    assert registry.kind_of(mod["main"]) == kind
    spaces = registry.design_spaces(task_of(mod), local_target)
    assert spaces
    assert spaces[0].trace.insts
    assert f"a schedule of family {kind} does not fit" in caplog.text
    tvm.tirx.build(registry.default_schedule(mod, local_target).mod, target=local_target.tvm())


def test_one_space_that_does_not_fit(local_target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    mod = marked(generic.KIND)

    def spaces(mod: tvm.IRModule, target: Target) -> Iterator[Space]:
        def fails() -> Schedule:
            raise RuntimeError("does not fit")

        yield fails
        yield lambda: Schedule(mod)
        raise RuntimeError("no more")

    monkeypatch.setattr(generic, "spaces", spaces)
    assert len(registry.design_spaces(task_of(mod), local_target)) == 1


def test_no_family_fits(local_target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    def spaces(mod: tvm.IRModule, target: Target) -> Iterator[Space]:
        yield from ()
        raise ScheduleError("none")

    monkeypatch.setattr(generic, "spaces", spaces)
    (schedule,) = registry.design_spaces(task_of(marked(generic.KIND)), local_target)
    loop = schedule.get(schedule.get_loops(schedule.get_sblock("odd"))[0])
    assert loop.kind == tvm.tirx.ForKind.PARALLEL


def test_loops_without_iterations(local_target: Target) -> None:
    x = te.placeholder((0, 4), name="x")
    mod = module(x, te.compute((0, 4), lambda i, j: x[i, j] + 1.0, name="y"))
    (schedule,) = registry.design_spaces(task_of(mod), local_target)
    assert not schedule.trace.insts


def test_a_kernel_without_dimensions(local_target: Target) -> None:
    x = te.placeholder((), name="x")
    mod = module(x, te.compute((), lambda: x() + 1.0, name="y"))
    assert registry.design_spaces(task_of(mod), local_target)


@pytest.mark.parametrize("by_lane", [False, True])
@pytest.mark.parametrize(
    ("blocks", "columns", "registers"), [(1, 1, 16), (3, 11, 16), (4, 12, 32), (40, 97, 32)]
)
def test_register_tiles_fit(blocks: int, columns: int, registers: int, by_lane: bool) -> None:
    found = tiles.register_tiles(blocks, columns, tiles.RegisterFile(registers, by_lane))
    assert found
    for _, b, c in found:
        assert blocks % b == 0
        assert columns % c == 0
        assert b * c + min(b, c) < registers


def test_padded_columns_stay_within_an_eighth() -> None:
    for columns in range(1, 60):
        assert (
            columns <= tiles.padded_columns(4, columns, tiles.RegisterFile(16)) <= columns + -(-columns // 8)
        )


def test_divisors() -> None:
    assert divisors(12) == [1, 2, 3, 4, 6, 12]


def test_flops_count_shared_values_once() -> None:
    x = te.placeholder((10,), name="x")

    def twice(i: tvm.tirx.Var) -> tvm.tirx.PrimExpr:
        shared = tvm.tirx.Var("shared", "float32")
        return tvm.tirx.Let(shared, x(i) + 1.0, shared * shared)

    assert kernel_flops(module(x, te.compute((10,), twice, name="y"))["main"]) == pytest.approx(20, abs=10)
