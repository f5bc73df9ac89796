"""Profiles: attribution of times to kernels, and the roofline."""

from __future__ import annotations

import ctypes
import json

import numpy as np
import pytest

from edgetune.benchmarking.agreement import Agreement, KernelTime
from edgetune.benchmarking.multiply_add import _build
from edgetune.benchmarking.profile import OTHER, _Call, profile, summarize
from edgetune.benchmarking.roofline import Roofline, measure
from edgetune.bundle.manifest import KernelEntry
from edgetune.bundle.reader import open_bundle
from edgetune.errors import DeviceError, UsageError

MACHINE = Roofline(100.0, ((1 << 10, 50.0), (1 << 20, 10.0)))


def test_least_time():
    # 1e5 operations at 100 GFLOP/s: 1 us. 1000 bytes at 50 GB/s: 0.02 us; 1e6 bytes at 10 GB/s: 100 us.
    assert MACHINE.least_time_us(1e5, 1000) == (pytest.approx(1.0), "compute")
    assert MACHINE.least_time_us(1e5, 1_000_000) == (pytest.approx(100.0), "memory")
    assert MACHINE.bandwidth_for(1 << 30) == 10.0


def test_times_are_summed_by_kernel(shared_bundle):
    manifest = open_bundle(shared_bundle).manifest.model_copy(
        update={
            "kernels": (
                KernelEntry(
                    name="conv",
                    workload="a",
                    kind="conv2d",
                    source="record",
                    flops=1e5,
                    symbols=("conv", "conv1"),
                ),
            )
        }
    )
    microsecond = 1000

    def run(scale: int) -> list[_Call]:
        return [
            _Call("vm.builtin.null_value", microsecond, 0),
            _Call("conv", 11 * scale * microsecond, 1000),
            _Call("vm.builtin.alloc_tensor", 3 * microsecond, 0),
            _Call("conv1", 21 * scale * microsecond, 1000),
            _Call("concat", 5 * microsecond, 500),
        ]

    overheads_ns = [1000.0] * 5
    rows = summarize([run(1), run(1), run(7)], overheads_ns, manifest, MACHINE)
    assert [row.name for row in rows] == ["conv", "concat", OTHER]
    conv, concat, other = rows
    # 1 us of each interval is the cost of observing.
    assert (conv.time_us, concat.time_us, other.time_us) == (30.0, 4.0, 2.0)
    assert conv.calls == 2
    assert conv.share == pytest.approx(30 / 36)
    assert conv.flops == 2e5
    assert conv.gflops == pytest.approx(2e5 / 30e-6 / 1e9)
    assert conv.bytes == 2000
    assert conv.roofline == pytest.approx(2 * 1.0 / 30)
    assert (conv.bound, conv.source) == ("compute", "record")
    assert concat.roofline == pytest.approx(500 / 50e9 * 1e6 / 4)
    assert (concat.bound, concat.source, concat.gflops) == ("memory", "", 0.0)
    assert (other.roofline, other.bound) == (0.0, "")


def test_what_stands_between_the_kernels_and_the_latency():
    kernels = [KernelTime("a", 1, 600.0, 500.0), KernelTime("b", 2, 150.0, None)]
    apart = Agreement.of(1.0, 50.0, kernels)
    assert (apart.kernels_ms, apart.outside_ms) == (pytest.approx(0.75), pytest.approx(0.2))
    assert apart.by_records_ms == pytest.approx(0.65)
    assert not apart.agrees
    text = apart.describe()
    assert text.index("+0.200 ms handing over arrays") < text.index("+0.100 ms kernels that take longer")
    assert "1 kernels without a record take 0.150 ms" in text
    together = Agreement.of(0.8, 10.0, [KernelTime("a", 1, 780.0, 760.0)])
    assert together.agrees
    assert together.describe().endswith("within 10%")


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_multiply_adds_are_really_computed(steps, tmp_path):
    """The count of operations is true only if the compiler leaves none out."""
    run = _build(tmp_path).multiply_add
    run.argtypes, run.restype = (ctypes.c_long, ctypes.c_float, ctypes.c_float), ctypes.c_float
    sums = np.arange(12, dtype=np.float64)
    for _ in range(steps):
        sums = sums * 0.5 + 1.25
    assert run(steps, 0.5, 1.25) == pytest.approx(sums.sum(), rel=1e-6)


def test_machine_is_measured():
    machine = measure(1)
    assert machine.peak_gflops > 0.1
    assert all(bandwidth > 0.01 for _, bandwidth in machine.bandwidth_gbps)
    sizes = [size for size, _ in machine.bandwidth_gbps]
    assert sizes == sorted(sizes)


def test_bundle(shared_bundle):
    result = profile(shared_bundle, runs=3)
    by_name = {kernel.name: kernel for kernel in result.kernels}
    assert by_name["conv2d"].calls == 1
    assert by_name["conv2d"].source == "record"
    assert by_name["conv2d"].gflops > 0
    assert OTHER in by_name
    assert sum(kernel.share for kernel in result.kernels) == pytest.approx(1.0)
    assert result.kernels_ms == pytest.approx(sum(kernel.time_us for kernel in result.kernels) / 1e3)
    assert result.latency_ms > 0
    agreement = result.to_json()["agreement"]
    assert agreement["kernels_ms"] + agreement["between_ms"] == pytest.approx(result.kernels_ms)
    total = agreement["kernels_ms"] + agreement["between_ms"] + agreement["outside_ms"]
    assert total == pytest.approx(result.latency_ms)
    # x, the kernel's weights and its result, at least.
    assert by_name["conv2d"].bytes >= 4 * (3 * 16 * 16 + 8 * 3 * 9 + 8 * 16 * 16)


def test_what_is_wrong_is_said(shared_bundle):
    with pytest.raises(UsageError, match="runs=0"):
        profile(shared_bundle, runs=0)
    with pytest.raises(DeviceError, match="'pi4'"):
        profile(shared_bundle, device="pi4")


def test_command(run_cli, shared_bundle):
    code, out, _ = run_cli("profile", str(shared_bundle), "--runs", "2", "--json")
    assert code == 0
    payload = json.loads(out)
    assert {"name", "time_us", "share", "gflops", "roofline"} <= payload["kernels"][0].keys()
    assert payload["machine"]["peak_gflops"] > 0
    code, out, _ = run_cli("profile", str(shared_bundle), "--runs", "2")
    assert code == 0
    assert "of roofline" in out
    assert "conv2d" in out
