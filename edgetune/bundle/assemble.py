"""Compiled model + model + target -> a bundle on disk, complete, verified and in one step.

Nothing appears at the chosen path before every file is written, checked and forced to the disk; an
older bundle there stays usable until then. A bundle that fails its check never appears at all.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgetune.atomic import publish, staging, writing
from edgetune.bundle import manifest as m
from edgetune.bundle.arrays import write_npz
from edgetune.bundle.storage import refuse_to_overwrite, write_tar
from edgetune.errors import MismatchError
from edgetune.records import Choice, CompareResult, CompiledModel, PreparedModel, Program, Source

if TYPE_CHECKING:
    from edgetune.targets import Target

Check = Callable[[Path], CompareResult | None]
"""Runs the bundle at a path and compares its outputs with the reference; None where it cannot be run."""

_OPTIONAL = (m.MODEL, m.REFERENCE)


@dataclass(frozen=True)
class WrittenBundle:
    """What :func:`write_bundle` made: where it stands, what the check said, how large it is.

    ``needs_vm`` and ``without_runtime`` are those of the compiled model.
    """

    path: Path
    verification: CompareResult | None
    size_bytes: int
    needs_vm: str = ""
    without_runtime: str = ""

    def notes(self) -> tuple[str, ...]:
        """What whoever ships the bundle has to know."""
        notes = []
        if self.needs_vm:
            notes.append(f"needs TVM's virtual machine, for {self.needs_vm}")
        if self.without_runtime:
            notes.append(f"has no TVM runtime with it, which must be on the device: {self.without_runtime}")
        return tuple(notes)


def write_bundle(
    out: Path,
    compiled: CompiledModel,
    prepared: PreparedModel,
    target: Target,
    choices: Sequence[Choice],
    *,
    check: Check | None,
    archive: bool = False,
    lean: bool = False,
) -> WrittenBundle:
    """Write the bundle of one model for one target to ``out``, replacing an older bundle there.

    Args:
        out: the directory to write, or with ``archive`` the ``.tar`` file.
        compiled: the library, and the weights as its kernels want them.
        prepared: the model as it was compiled, and its reference run.
        target: what it was compiled for.
        choices: the schedule of each kernel.
        check: called with the finished, unpublished bundle. None, or an answer of None, where the library cannot
            run here and no device is at hand: the manifest then says that the bundle was not verified.
        archive: write one ``.tar`` in place of a directory.
        lean: leave out ``model.onnx`` and ``reference.npz``, which only ``compare`` and
            ``benchmark`` need: for bundles that ship.

    Raises:
        OutputError: ``out`` holds something that is no bundle, or cannot be written.
        MismatchError: the check failed; nothing was written.
    """
    out = out.expanduser().resolve()
    refuse_to_overwrite(out)
    with staging(out) as work:
        directory = work / "bundle"
        with writing(out):
            directory.mkdir()
            weights = _write_files(directory, compiled, prepared)
        described = _describe(directory, compiled, prepared, target, choices, weights)
        verification = None
        if check is not None:
            with writing(out):
                (directory / m.MANIFEST).write_bytes(described.to_json())
            verification = check(directory)
        if verification is not None:
            if not verification.passed:
                raise MismatchError(_mismatch_message(out, verification))
            described = described.model_copy(update={"verification": _verification_entry(verification)})
        with writing(out):
            if lean:
                described = _without_optional_files(directory, described)
            (directory / m.MANIFEST).write_bytes(described.to_json())
            finished = directory
            if archive:
                finished = work / "bundle.tar"
                write_tar(directory, finished)
            size_bytes = sum(entry.stat().st_size for entry in directory.iterdir())
            publish(finished, out)
    return WrittenBundle(out, verification, size_bytes, compiled.needs_vm, compiled.without_runtime)


def _without_optional_files(directory: Path, described: m.Manifest) -> m.Manifest:
    """Take them away at the end: the check needs them."""
    for name in _OPTIONAL:
        (directory / name).unlink(missing_ok=True)
    kept = {name: entry for name, entry in described.files.items() if name not in _OPTIONAL}
    return described.model_copy(update={"files": kept})


def _write_files(directory: Path, compiled: CompiledModel, prepared: PreparedModel) -> tuple[m.Weight, ...]:
    (directory / m.LIBRARY).write_bytes(compiled.library)
    (directory / m.LIBRARY).chmod(0o755)
    weights = _write_weights(directory / m.WEIGHTS, compiled.weights)
    for name, data in compiled.files.items():
        (directory / name).write_bytes(data)
    (directory / m.MODEL).write_bytes(prepared.variants.onnx if prepared.variants else prepared.onnx)
    if prepared.reference_inputs and prepared.reference_outputs:
        (directory / m.REFERENCE).write_bytes(_reference_bytes(prepared))
    return weights


def _write_weights(path: Path, weights: Sequence[np.ndarray]) -> tuple[m.Weight, ...]:
    """All weights in one file, each at a multiple of 64 bytes, in the order of ``main``'s parameters."""
    entries = []
    with path.open("xb") as file:
        for array in weights:
            file.write(b"\0" * (-file.tell() % m.ALIGNMENT_BYTES))
            entries.append(m.Weight(dtype=array.dtype.name, shape=array.shape, offset=file.tell()))
            # reshape(-1) first: a memoryview of a 0-d or empty array cannot be cast to bytes.
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return tuple(entries)


def _reference_bytes(prepared: PreparedModel) -> bytes:
    """Inputs as ``input:NAME`` and ONNX Runtime's outputs as ``output:NAME``, in one .npz.

    Those of further runs, at other sizes, have ``runN:`` before them.
    """
    arrays: dict[str, np.ndarray] = {}
    for number, run in enumerate(prepared.reference_runs):
        prefix = f"run{number}:" if number else ""
        arrays |= {f"{prefix}input:{name}": value for name, value in run.inputs.items()}
        arrays |= {f"{prefix}output:{name}": value for name, value in run.outputs.items()}
    buffer = io.BytesIO()
    write_npz(buffer, arrays)
    return buffer.getvalue()


def _describe(
    directory: Path,
    compiled: CompiledModel,
    prepared: PreparedModel,
    target: Target,
    choices: Sequence[Choice],
    weights: tuple[m.Weight, ...],
) -> m.Manifest:
    from edgetune.versions import versions

    return m.Manifest(
        schema_version=m.SCHEMA_VERSION if compiled.programs or compiled.standalone else 1,
        engine="standalone" if compiled.standalone else "vm",
        model=m.ModelEntry(
            name=prepared.name, sha256=prepared.sha256, params=prepared.params, flops=prepared.flops
        ),
        inputs=tuple(m.Tensor.of(spec) for spec in compiled.inputs),
        outputs=tuple(m.Tensor.of(spec) for spec in compiled.outputs),
        target=_target_entry(target),
        threads=target.threads,
        versions=versions(),
        verification=None,
        records_sha256=records_digest(choices),
        kernels=tuple(_kernel_entry(choice, compiled) for choice in choices),
        weights=weights,
        dimensions=tuple(m.DimensionEntry.of(dimension) for dimension in prepared.dimensions),
        programs=tuple(_program_entry(program) for program in compiled.programs),
        frozen={name: _frozen_entry(value) for name, value in prepared.frozen.items()},
        files={
            entry.name: _file_entry(entry, optional=entry.name in (*_OPTIONAL, *compiled.files))
            for entry in sorted(directory.iterdir())
        },
    )


def records_digest(choices: Sequence[Choice]) -> str:
    """SHA-256 over the (workload, trace) pairs of all kernels built from records, in sorted order."""
    pairs = sorted(
        [choice.task.workload, choice.trace or ""] for choice in choices if choice.source != Source.DEFAULT
    )
    return hashlib.sha256(json.dumps(pairs).encode()).hexdigest()


def _target_entry(target: Target) -> m.TargetEntry:
    return m.TargetEntry(
        name=target.name,
        kind=target.kind,
        mtriple=target.mtriple,
        mcpu=target.mcpu,
        mattr=tuple(target.mattr),
        cpu_features=target.required_features(),
        threads=target.threads,
        fingerprint=target.fingerprint,
        description=target.model_dump(mode="json"),
    )


def _kernel_entry(choice: Choice, compiled: CompiledModel) -> m.KernelEntry:
    task = choice.task
    # A task's own name is a function of the library too, unless another task's kernel is called so.
    symbols = {task.name} - compiled.symbols.keys()
    symbols |= {symbol for symbol, name in compiled.symbols.items() if name == task.name}
    return m.KernelEntry(
        name=task.name,
        workload=task.workload,
        kind=task.kind,
        source=str(choice.source),
        calls=task.weight,
        flops=task.flops,
        best_us=None if choice.best_s is None else choice.best_s * 1e6,
        symbols=tuple(sorted(symbols)),
    )


def _program_entry(program: Program) -> m.ProgramEntry:
    return m.ProgramEntry(
        function=program.function,
        inputs=tuple(m.Tensor.of(spec) for spec in program.inputs),
        outputs=tuple(m.Tensor.of(spec) for spec in program.outputs),
        weights=program.weights,
    )


def _frozen_entry(value: np.ndarray) -> dict[str, Any]:
    array = np.asarray(value)
    return {"dtype": array.dtype.name, "shape": list(array.shape), "values": array.reshape(-1).tolist()}


def _file_entry(path: Path, optional: bool) -> m.FileEntry:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return m.FileEntry(size=path.stat().st_size, sha256=digest, optional=optional)


def _verification_entry(result: CompareResult) -> m.Verification:
    return m.Verification(
        passed=result.passed,
        reference=result.reference,
        outputs=tuple(
            m.OutputCheck(
                name=output.name,
                passed=output.passed,
                # JSON has no infinity; a value may pass on one tolerance with the other error infinite.
                max_abs_error=min(output.max_abs_error, np.finfo(np.float64).max),
                max_rel_error=min(output.max_rel_error, np.finfo(np.float64).max),
                rtol=output.rtol,
                atol=output.atol,
                sizes=output.sizes,
            )
            for output in result.outputs
        ),
    )


def _mismatch_message(out: Path, result: CompareResult) -> str:
    first = result.first_failure
    return (
        f"the compiled model differs from {result.reference}: {first.describe() if first else 'no output'}; "
        f"the bundle {out} was not written. Allow larger differences with --rtol and --atol if they are "
        "harmless to you; otherwise report the model"
    )


def check_output(out: Path) -> None:
    """Check early, before hours of tuning, that a bundle can be written to ``out``.

    Raises:
        OutputError: ``out`` holds something that is no bundle, or cannot be written.
    """
    out = out.expanduser().resolve()
    refuse_to_overwrite(out)
    with staging(out):
        pass
