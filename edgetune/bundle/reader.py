"""Opens a bundle and checks it before anything of it is loaded.

In this order, so that the first message is the most useful one: is it a bundle at all, was it made
for this machine, do the installed packages match, are all files there and unchanged.
"""

from __future__ import annotations

import importlib.metadata
import io
import re
from _thread import allocate_lock, start_new_thread
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgetune.bundle import manifest as m
from edgetune.bundle.arrays import UNREADABLE, load_npz
from edgetune.bundle.package import Runner, choose, parse_package
from edgetune.bundle.storage import Extent, Storage, open_storage, unreadable
from edgetune.cpu import architecture, missing_features
from edgetune.cuda import local_gpu, runs_cubins
from edgetune.errors import BundleError
from edgetune.machine import usable_cpus
from edgetune.records import ReferenceRun
from edgetune.tvm_runtime import FFI

_RECORDED = re.compile(r"(?:run(\d+):)?(input|output):(.*)", re.DOTALL)
_MANY_BYTES = 1 << 20  # below, starting threads costs more than they save
_PINNED = {"tvm": "apache-tvm", "tvm-ffi": "apache-tvm-ffi"}


@dataclass(frozen=True)
class Bundle:
    """An opened bundle: what it says about itself, and where its files lie."""

    path: Path
    manifest: m.Manifest
    storage: Storage

    def file(self, name: str) -> Extent | None:
        """Where the bytes of a listed file lie; None for one that was left out or deleted."""
        return self.storage.files.get(name) if name in self.manifest.files else None

    def model(self) -> bytes | None:
        """The ONNX model in the bundle; None in a lean one."""
        extent = self.file(m.MODEL)
        return None if extent is None else extent.read()

    def reference_runs(self) -> tuple[ReferenceRun, ...]:
        """Recorded inputs and ONNX Runtime's outputs for them; none in a lean bundle.

        Where sizes vary: a run for each combination, the largest first, then one at a size in between.

        Raises:
            BundleError: the file is damaged.
        """
        extent = self.file(m.REFERENCE)
        if extent is None:
            return ()
        runs: dict[int, dict[str, dict[str, np.ndarray]]] = {0: {"input": {}, "output": {}}}
        try:
            for key, array in load_npz(io.BytesIO(extent.read())).items():
                if match := _RECORDED.fullmatch(key):
                    run = runs.setdefault(int(match[1] or 0), {"input": {}, "output": {}})
                    run[match[2]][match[3]] = array
        except UNREADABLE as error:
            raise _changed(self.path, m.REFERENCE) from error
        return tuple(ReferenceRun(runs[number]["input"], runs[number]["output"]) for number in sorted(runs))

    def reference(self) -> tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]] | None:
        """Inputs and outputs of the first recorded run; None in a lean bundle.

        Raises:
            BundleError: the file is damaged.
        """
        return next(((run.inputs, run.outputs) for run in self.reference_runs()), None)


def open_bundle(
    path: str | Path, *, check_files: bool = True, runner: Callable[[], Runner] = Runner
) -> Bundle:
    """Open the bundle at ``path`` (a directory or a ``.tar``) without loading its library.

    Args:
        path: the bundle.
        check_files: compare every file with its SHA-256, about a second for a gigabyte. Sizes are
            always compared.
        runner: says, of several bundles in one, what the best is wanted for; by default this machine.

    Raises:
        BundleError: it is no bundle, or a file is missing or changed.
    """
    path = Path(path).expanduser()
    storage = open_storage(path)
    try:
        described = storage.files[m.MANIFEST].read()
        package = parse_package(described, str(path))
        if package is None:
            manifest = m.parse_manifest(described, str(path))
        else:
            manifest, storage = choose(package, storage, str(path), runner())
        bundle = Bundle(path, manifest, storage)
        _check_files(path, manifest.files, storage, digests=check_files)
    except OSError as error:
        raise unreadable(path, error) from error
    return bundle


def check_storage(path: str | Path) -> list[str]:
    """Compare all files of a bundle, or of several in one, with what its manifest says; their names.

    Raises:
        BundleError: it is no bundle, or a file is missing or changed.
    """
    path = Path(path).expanduser()
    storage = open_storage(path)
    described = storage.files[m.MANIFEST].read()
    listed = parse_package(described, str(path)) or m.parse_manifest(described, str(path))
    _check_files(path, listed.files, storage, digests=True)
    return [name for name in listed.files if name in storage.files]


def check_loadable(bundle: Bundle) -> None:
    """Check that this machine and its packages can run the bundle's library.

    Raises:
        BundleError: another architecture, missing CPU features, or, for the VM, other versions of TVM or
            tvm-ffi.
    """
    _check_machine(bundle)
    if bundle.manifest.engine == "vm":
        _check_versions(bundle)


def _check_files(path: Path, files: Mapping[str, m.FileEntry], storage: Storage, *, digests: bool) -> None:
    found: dict[str, Extent] = {}
    for name, entry in files.items():
        extent = storage.files.get(name)
        if extent is None:
            if entry.optional:
                continue
            raise BundleError(f"{path}: {name} is missing; copy the whole bundle again, or build it again")
        if extent.size != entry.size:
            raise BundleError(
                f"{path}: {name} has {extent.size} bytes in place of {entry.size}; "
                "copy the bundle again, or build it again"
            )
        found[name] = extent
    if digests:
        for name, digest in zip(found, _digests(list(found.values())), strict=True):
            if digest != files[name].sha256:
                raise _changed(path, name)


def _digests(extents: Sequence[Extent]) -> list[str]:
    """SHA-256 of every file: several at once where they are large, the largest first."""
    order = sorted(range(len(extents)), key=lambda index: -extents[index].size)
    locks = [allocate_lock() for _ in extents]
    found: dict[int, str] = {}

    def digest(index: int) -> None:
        if index not in found:
            found[index] = extents[index].sha256()

    def work() -> None:
        for index in order:
            if locks[index].acquire(blocking=False):
                try:
                    digest(index)
                finally:
                    locks[index].release()

    def help_out() -> None:
        with suppress(Exception):  # what went wrong there is tried again, and said, here
            work()

    helpers = len(usable_cpus()) - 1 if sum(extent.size for extent in extents) >= _MANY_BYTES else 0
    # Not threading.Thread: its start waits for the thread's first step, for ever where there is no memory for it.
    with suppress(RuntimeError):  # the system gives no thread
        for _ in range(min(helpers, len(extents) - 1)):
            start_new_thread(help_out, ())
    work()
    for index in order:
        with locks[index]:
            digest(index)
    return [found[index] for index in range(len(extents))]


def _changed(path: Path, name: str) -> BundleError:
    return BundleError(
        f"{path}: {name} was changed or damaged after the bundle was written; "
        "copy the bundle again, or build it again"
    )


def _check_machine(bundle: Bundle) -> None:
    target = bundle.manifest.target
    wanted, found = architecture(target.mtriple.split("-")[0]), architecture()
    if wanted != found:
        raise BundleError(
            f"{bundle.path} was made for {target.name} ({wanted}), this machine is {found}; "
            "build one for this machine with --target local"
        )
    missing = missing_features(target.cpu_features)
    if missing:
        raise BundleError(
            f"{bundle.path} was made for {target.name} ({target.mcpu}) and uses CPU features that this "
            f"machine lacks: {', '.join(missing)}; build one for this machine with --target local"
        )
    if target.kind != "llvm":
        _check_gpu(bundle)


def _check_gpu(bundle: Bundle) -> None:
    """Check that this machine has a GPU that runs the bundle's machine code."""
    target = bundle.manifest.target
    wanted, found = str((target.description.get("gpu") or {}).get("arch", "")), local_gpu()
    if not runs_cubins(wanted, found):
        here = f"one of {found}" if found else "none that NVIDIA's driver shows"
        raise BundleError(
            f"{bundle.path} was made for a {target.kind} device ({target.name}, {wanted}), and this machine has "
            f"{here}; build one for this machine with --target local"
        )


def _check_versions(bundle: Bundle) -> None:
    own = "; 'edgetune-runtime' loads it with the one inside" if FFI in bundle.manifest.files else ""
    for name, package in _PINNED.items():
        wanted = bundle.manifest.versions.get(name)
        try:
            found = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found = "not installed"
        if found != wanted:
            raise BundleError(
                f"{bundle.path} was built with {package} {wanted}, here it is {found}; "
                f"run 'pip install {package}=={wanted}', or build the bundle again{own}"
            )
