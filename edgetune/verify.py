"""Compares a bundle's outputs with ONNX Runtime's, value by value.

A value fails when its absolute error exceeds ``atol`` and its relative error exceeds ``rtol``: small
values may be off by a little absolutely, large ones by a little relatively. Equal values pass whatever
they are; NaN equals NaN, infinity equals infinity of the same sign.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from edgetune.bundle.dispatch import Dispatcher
from edgetune.bundle.inputs import SEED, check_inputs, choose_inputs
from edgetune.bundle.reader import Bundle
from edgetune.devices.inventory import open_device
from edgetune.devices.transport import Device
from edgetune.dtypes import plain
from edgetune.errors import UsageError
from edgetune.machine import usable_cpus
from edgetune.records import CompareResult, OutputDifference, ReferenceRun
from edgetune.sides.device_side import DeviceSide, device_side, is_remote, open_for
from edgetune.sides.files import Model, side_files
from edgetune.sides.process import SideProcess
from edgetune.tolerances import absolute_errors, mismatch, model_tolerances


def compare(
    bundle: str | Path,
    model: Model | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    inputs: str | Path | Mapping[str, Any] | None = None,
    device: str | Device | None = None,
) -> CompareResult:
    """Compare a bundle's outputs with ONNX Runtime's, each run in a process of its own.

    Where sizes vary, every combination that has kernels of its own is compared, and a size in between that
    is padded. With neither ``model`` nor ``inputs``, the bundle is compared with the outputs of the original model
    that were recorded when it was built. Else ONNX Runtime runs: ``model``, or the ONNX model in
    the bundle.

    Args:
        bundle: the bundle.
        model: the original ONNX model: a path, bytes or ``ModelProto``.
        rtol: relative tolerance for all outputs; by default that of :func:`edgetune.tolerances.model_tolerances`.
        atol: absolute tolerance, likewise.
        inputs: a ``.npz`` file or arrays by name; the recorded ones by default, random ones where
            the bundle has none.
        device: where the bundle runs, by name or a device that is at hand; this machine by default. ONNX Runtime
            runs here, wherever the bundle does.

    Raises:
        UsageError: a tolerance is negative, or the inputs do not fit the model.
        BundleError: the bundle is damaged or for another machine.
        DeviceError: the device is unavailable.
    """
    _check_tolerances(rtol, atol)
    opened = open_for(bundle, device)
    dispatcher = Dispatcher(opened.manifest)
    outputs: list[OutputDifference] = []
    reference = ""
    with _elsewhere(device, opened.manifest.threads) as there:
        for run in _runs(opened, model, inputs):
            actual, expected, reference = _both_sides(opened, model, run, there)
            sizes = dispatcher.label({name: array.shape for name, array in run.inputs.items()})
            for item in opened.manifest.outputs:
                found = difference(
                    item.name, expected.get(item.name), actual[item.name], rtol=rtol, atol=atol
                )
                outputs.append(replace(found, sizes=sizes))
    passed = all(output.passed for output in outputs)
    return CompareResult(passed, tuple(outputs), reference, _notes(opened, model))


def _runs(
    bundle: Bundle, model: Model | None, inputs: str | Path | Mapping[str, Any] | None
) -> list[ReferenceRun]:
    """What to compare: where sizes vary, a run of every program, and one at a size between theirs.

    A run without outputs is one that ONNX Runtime has to make.
    """
    if inputs is not None:
        return [ReferenceRun(choose_inputs(bundle, inputs), {})]
    recorded = bundle.reference_runs()
    for run in recorded:
        check_inputs(bundle.manifest.input_specs(), run.inputs, bundle.manifest.model.name)
    if recorded:
        return [run if model is None else ReferenceRun(run.inputs, {}) for run in recorded]
    shapes = Dispatcher(bundle.manifest).all_shapes()
    return [ReferenceRun(choose_inputs(bundle, None, SEED, sizes), {}) for sizes in shapes]


@contextlib.contextmanager
def _elsewhere(device: str | Device | None, threads: int) -> Iterator[Device | None]:
    """The device, up for all runs, if it is another machine; None for this one."""
    if device is None or not is_remote(device):
        yield None
        return
    opened = device if isinstance(device, Device) else open_device(device, threads)
    with opened.up():
        yield opened


def _both_sides(
    bundle: Bundle, model: Model | None, run: ReferenceRun, device: Device | None
) -> tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray], str]:
    """The bundle's outputs, those of the reference, and what that is."""
    threads = bundle.manifest.threads
    with side_files(bundle, model, run.inputs) as files:
        # The bundle first: what is wrong with it is of more interest than a missing model.
        with contextlib.ExitStack() as stack:
            side: SideProcess | DeviceSide
            if device is not None:
                side = stack.enter_context(device_side(bundle, run.inputs, device, threads))
            else:
                side = stack.enter_context(SideProcess(files.spec("edgetune", threads)))
            actual = side.outputs()
        if run.outputs:
            return actual, run.outputs, "the recorded outputs of ONNX Runtime"
        with SideProcess(files.spec("onnxruntime", min(threads, len(usable_cpus())))) as other:
            return actual, other.outputs(), other.version


def difference(
    name: str,
    expected: np.ndarray | None,
    actual: np.ndarray,
    *,
    rtol: float | None = None,
    atol: float | None = None,
) -> OutputDifference:
    """Compare one output with its reference.

    Args:
        name: the output's name.
        expected: the reference; None where it has no such output.
        actual: what the bundle gave.
        rtol: relative tolerance; by default that of :func:`edgetune.tolerances.model_tolerances`.
        atol: absolute tolerance, likewise.
    """
    default_rtol, default_atol = model_tolerances(actual if expected is None else expected)
    rtol = default_rtol if rtol is None else rtol
    atol = default_atol if atol is None else atol
    problem = "is not among the outputs of the reference" if expected is None else mismatch(expected, actual)
    if problem or expected is None:
        return OutputDifference(
            name, False, math.inf, math.inf, rtol, atol, actual.size, actual.size,
            passing_atol=math.inf, passing_rtol=math.inf, problem=problem,
        )  # fmt: skip
    expected, actual = plain(expected), plain(actual)
    abs_error = absolute_errors(expected, actual)
    with np.errstate(all="ignore"):
        rel_error = np.where(abs_error == 0, 0.0, abs_error / np.abs(expected.astype(np.float64)))
    # Infinity differs from anything else by infinitely much relatively, too.
    rel_error = np.where(np.isnan(rel_error), np.inf, rel_error)
    failing = (abs_error > atol) & (rel_error > rtol)
    position = value = wanted = None
    if failing.any():
        position = tuple(int(part) for part in np.unravel_index(int(failing.argmax()), failing.shape))
        value, wanted = actual[position].item(), expected[position].item()
    # Where the reference is zero, a relative error says nothing as long as the absolute one is allowed.
    telling = (expected != 0) | (abs_error > atol)
    return OutputDifference(
        name=name,
        passed=position is None,
        max_abs_error=_largest(abs_error),
        max_rel_error=_largest(rel_error[telling]),
        rtol=rtol,
        atol=atol,
        size=actual.size,
        failed=int(failing.sum()),
        position=position,
        value=value,
        expected=wanted,
        passing_atol=_largest(abs_error[rel_error > rtol]),
        passing_rtol=_largest(rel_error[abs_error > atol]),
    )


def _largest(values: np.ndarray) -> float:
    return float(values.max(initial=0.0))


def _check_tolerances(rtol: float | None, atol: float | None) -> None:
    for name, value in (("rtol", rtol), ("atol", atol)):
        if value is not None and not value >= 0:
            raise UsageError(f"{name}={value} is not a tolerance; give a number of 0 or more")


def _notes(bundle: Bundle, model: Model | None) -> tuple[str, ...]:
    if model is None or not isinstance(model, bytes | str | os.PathLike):
        return ()
    data = model if isinstance(model, bytes) else Path(model).expanduser().read_bytes()
    entry = bundle.manifest.files.get("model.onnx")
    known = {bundle.manifest.model.sha256, entry.sha256 if entry else ""}
    if hashlib.sha256(data).hexdigest() in known:
        return ()
    return ("the model given is not the file that the bundle was built from: its SHA-256 differs",)
