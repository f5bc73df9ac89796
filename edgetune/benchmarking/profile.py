"""Time of each kernel of a bundle, and how far it is from what the machine allows.

The Relax virtual machine calls an observer before and after each instruction; a standalone library times
its kernels itself, and nothing is subtracted. Kernels are timed where they stand, with the caches as the
kernels before left them. Observing costs some microseconds an instruction, part of them within the timed interval:
as much as a small kernel takes. That part is found by further runs in which the observer is called with the same
arguments and the kernels are skipped, and is subtracted, instruction by instruction. On a device a library in C
observes, whose part is some nanoseconds.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgetune.benchmarking.agreement import Agreement, KernelTime
from edgetune.benchmarking.on_device import observe_on_device
from edgetune.benchmarking.roofline import UNKNOWN, Roofline, measure
from edgetune.bundle.inputs import choose_inputs
from edgetune.bundle.manifest import KernelEntry, Manifest
from edgetune.devices.transport import Device
from edgetune.dtypes import numpy_dtype
from edgetune.errors import BundleError, UsageError
from edgetune.runtime import AnyModel, LoadedModel, load
from edgetune.sides.device_side import is_remote, open_for

RUNS = 20
_WARM_UP_RUNS = 3
_EMPTY_RUNS = 11
_SKIP = 1  # TVM's VMInstrumentReturnKind::kSkipRun
_LEAST_S = 0.5
OTHER = "(virtual machine)"
"""Name of the row for everything but kernels: allocation, shapes, checks of arguments."""


@dataclass(frozen=True)
class KernelProfile:
    """One kernel, all its calls of one inference together.

    Attributes:
        name: of the task, or OTHER. calls: in one inference.
        time_us: median over the runs of the sum over its calls. share: of the sum of all rows.
        flops, bytes: of all calls; bytes are the sizes of all tensors read or written.
        gflops: 10^9 operations a second.
        roofline: the least possible time divided by ``time_us``: 1 is as fast as the machine allows,
            0 where nothing is known. bound: what limits it, ``compute`` or ``memory``.
        source: where its schedule came from, empty for functions that were not tuned.
    """

    name: str
    calls: int
    time_us: float
    share: float
    flops: float
    bytes: int
    gflops: float
    roofline: float
    bound: str
    source: str


@dataclass(frozen=True)
class ProfileResult:
    """A bundle's kernels, slowest first.

    ``latency_ms`` is the median of unobserved runs; ``kernels_ms`` the sum of all rows; ``agreement`` says what
    stands between the two.
    """

    bundle: Path
    threads: int
    latency_ms: float
    kernels_ms: float
    kernels: tuple[KernelProfile, ...]
    machine: Roofline
    agreement: Agreement
    device: str = "local"

    def to_json(self) -> dict[str, Any]:
        """The JSON object of ``edgetune profile``."""
        return {
            "bundle": str(self.bundle),
            "device": self.device,
            "threads": self.threads,
            "latency_ms": self.latency_ms,
            "kernels_ms": self.kernels_ms,
            "kernels": [asdict(kernel) for kernel in self.kernels],
            "machine": self.machine.to_json(),
            "agreement": self.agreement.to_json(),
        }


@dataclass(frozen=True)
class _Call:
    """One instruction of one run: its function, its time, the bytes of its tensors."""

    function: str
    time_ns: int
    size_bytes: int


def profile(
    bundle: str | Path,
    threads: int | None = None,
    device: str | Device | None = None,
    *,
    inputs: str | Path | Mapping[str, Any] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    runs: int = RUNS,
    roofline: bool = True,
) -> ProfileResult:
    """Time each kernel of a bundle on a device and set it against the device's roofline.

    Args:
        bundle: the bundle.
        threads: threads to run on, the bundle's own number by default.
        device: where to run, by name or a device that is at hand; this machine by default.
        inputs: a ``.npz`` file or arrays by name; the recorded ones by default.
        shapes: of the recorded inputs, for a bundle of several sizes; its largest by default.
        runs: observed runs.
        roofline: whether to measure the machine's limits, which takes three seconds.

    Raises:
        UsageError: ``runs`` is less than one, or the inputs do not fit.
        BundleError: the bundle is damaged, or for another machine or a GPU.
        DeviceError: the device is unavailable.
    """
    if runs < 1:
        raise UsageError(f"runs={runs} is too few; give 1 or more")
    opened = open_for(bundle, device, check_files=is_remote(device))
    if opened.manifest.target.kind != "llvm":
        raise BundleError(
            f"{bundle} was made for a GPU, whose kernels run on after the call that starts them, so that they cannot "
            "be timed one by one from outside; use NVIDIA's Nsight Systems, or 'edgetune benchmark' for the whole"
        )
    arrays = choose_inputs(opened, inputs, shapes=shapes)
    if device is not None and is_remote(device):
        there = observe_on_device(opened, arrays, device, threads, runs, roofline=roofline)
        calls = [
            [_Call(name, time_ns, 0 if _is_between(name) else size) for name, time_ns, size in run]
            for run in there.runs
        ]
        kernels = summarize(calls, (), opened.manifest, there.machine)
        return _result(
            bundle, there.threads, there.latency_ms, kernels, there.machine, opened.manifest, device
        )
    model = load(bundle, threads=threads)
    machine = measure(model.threads) if roofline else UNKNOWN
    latency_ms = _latency_ms(model, arrays)
    observed = [_observed_run(model, arrays) for _ in range(runs + _WARM_UP_RUNS)][_WARM_UP_RUNS:]
    kernels = summarize(observed, _overheads_ns(model, arrays), model.manifest, machine)
    return _result(bundle, model.threads, latency_ms, kernels, machine, model.manifest, None)


def _result(
    bundle: str | Path,
    threads: int,
    latency_ms: float,
    kernels: tuple[KernelProfile, ...],
    machine: Roofline,
    manifest: Manifest,
    device: str | Device | None,
) -> ProfileResult:
    return ProfileResult(
        bundle=Path(bundle),
        threads=threads,
        latency_ms=latency_ms,
        kernels_ms=sum(kernel.time_us for kernel in kernels) / 1e3,
        kernels=kernels,
        machine=machine,
        agreement=_agreement(latency_ms, kernels, manifest),
        device=device.name if isinstance(device, Device) else device or "local",
    )


def _agreement(latency_ms: float, kernels: Sequence[KernelProfile], manifest: Manifest) -> Agreement:
    alone_us = {entry.name: entry.best_us for entry in manifest.kernels}
    between_us = sum(kernel.time_us for kernel in kernels if kernel.name == OTHER)
    times = []
    for kernel in kernels:
        if kernel.name != OTHER:
            one_us = alone_us.get(kernel.name)
            alone = None if one_us is None else one_us * kernel.calls
            times.append(KernelTime(kernel.name, kernel.calls, kernel.time_us, alone))
    return Agreement.of(latency_ms, between_us, times)


def _latency_ms(model: AnyModel, inputs: Mapping[str, np.ndarray]) -> float:
    times: list[float] = []
    end = time.perf_counter() + _LEAST_S
    while len(times) < 2 * _WARM_UP_RUNS or time.perf_counter() < end:
        start = time.perf_counter()
        model.run(inputs)
        times.append(time.perf_counter() - start)
    return statistics.median(times[_WARM_UP_RUNS:]) * 1e3


def _observed_run(model: AnyModel, inputs: Mapping[str, np.ndarray]) -> list[_Call]:
    if not isinstance(model, LoadedModel):
        return [_Call(*kernel) for kernel in model.observe(inputs)]
    calls: list[_Call] = []
    _run_observed(model, inputs, _observer(calls))
    return calls


def _run_observed(model: LoadedModel, inputs: Mapping[str, np.ndarray], observer: Callable[..., int]) -> None:
    model.instrument(observer)
    try:
        model.run(inputs)
    finally:
        model.instrument(None)


def _overheads_ns(model: AnyModel, inputs: Mapping[str, np.ndarray]) -> list[float]:
    """For each instruction, how much of its interval is the observer's; none where nothing is observed."""
    if not isinstance(model, LoadedModel):
        return []
    runs: list[list[int]] = []
    for _ in range(_EMPTY_RUNS):
        runs.append([])
        _run_observed(model, inputs, _entries_observer(runs[-1]))
    return [statistics.median(times) for times in zip(*runs, strict=True)]


def _is_between(function: str) -> bool:
    """Whether an instruction is the virtual machine's own, between the kernels."""
    return function.startswith("vm.")


def _observer(calls: list[_Call]) -> Callable[..., int]:
    clock = time.perf_counter_ns
    started = 0

    def observe(_function: Any, name: str, before: bool, _result: Any, *arguments: Any) -> int:
        nonlocal started
        if before:
            started = clock()
            return 0
        time_ns = clock() - started
        size = 0 if _is_between(name) else sum(_size_bytes(item) for item in arguments)
        calls.append(_Call(name, time_ns, size))
        return 0

    return observe


def _entries_observer(times_ns: list[int]) -> Callable[..., int]:
    """Notes for each instruction how long it takes from the end of one call of an observer to the next.

    Between the two lies what also lies within a timed interval besides the kernel: leaving the observer, and
    entering it with the instruction's arguments. Kernels are skipped, the machine's own instructions cannot be.
    """
    clock = time.perf_counter_ns
    left = clock()

    def observe(_function: Any, name: str, before: bool, _result: Any, *_arguments: Any) -> int:
        nonlocal left
        if before:
            times_ns.append(clock() - left)
        left = clock()
        return _SKIP if before and not _is_between(name) else 0

    return observe


def _size_bytes(argument: Any) -> int:
    if not hasattr(argument, "__dlpack__"):
        return 0
    return int(np.prod(argument.shape, dtype=np.int64)) * numpy_dtype(str(argument.dtype)).itemsize


def summarize(
    runs: list[list[_Call]], overheads_ns: Sequence[float], manifest: Manifest, machine: Roofline
) -> tuple[KernelProfile, ...]:
    """One row for each kernel, slowest first, and one for the rest.

    Args:
        runs: the instructions of each run, every time the same ones in the same order.
        overheads_ns: what to take off each of them; none to take off nothing.
        manifest: knows the kernels' operations and sources.
        machine: its limits.
    """
    overheads_ns = overheads_ns or [0.0] * len(runs[0])
    entries = {symbol: entry for entry in manifest.kernels for symbol in entry.symbols}
    positions: dict[str, list[int]] = defaultdict(list)
    for position, call in enumerate(runs[0]):
        entry = entries.get(call.function)
        known = OTHER if _is_between(call.function) else call.function
        positions[entry.name if entry else known].append(position)
    times_us = {
        name: statistics.median(
            sum(max(0.0, calls[index].time_ns - overheads_ns[index]) for index in indices) for calls in runs
        )
        / 1e3
        for name, indices in positions.items()
    }
    total_us = sum(times_us.values()) or 1.0
    by_name = {entry.name: entry for entry in manifest.kernels}
    rows = [
        _row(
            name, [runs[0][index] for index in indices], times_us[name], total_us, by_name.get(name), machine
        )
        for name, indices in positions.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.time_us))


def _row(
    name: str,
    calls: list[_Call],
    time_us: float,
    total_us: float,
    entry: KernelEntry | None,
    machine: Roofline,
) -> KernelProfile:
    flops = (entry.flops if entry else 0.0) * len(calls)
    limits = [machine.least_time_us(flops / len(calls), call.size_bytes) for call in calls]
    least_us = sum(limit for limit, _ in limits)
    is_kernel = name != OTHER
    return KernelProfile(
        name=name,
        calls=len(calls),
        time_us=time_us,
        share=time_us / total_us,
        flops=flops,
        bytes=sum(call.size_bytes for call in calls),
        gflops=flops / time_us / 1e3 if time_us else 0.0,
        roofline=least_us / time_us if time_us and is_kernel else 0.0,
        bound=max(limits)[1] if is_kernel and least_us else "",
        source=entry.source if entry else "",
    )
