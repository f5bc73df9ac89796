"""Several bundles of one model in one: code for several machines, what is equal stored once.

``manifest.json`` lists the variants; each is an ordinary bundle whose manifest is a file ``TARGET.json``, and whose
files have other names here. The loader takes the variant that uses most of this CPU's features, and falls back to
those that use less. The text file ``variants`` says the same to apps in C (``edgetune_library.h``).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from edgetune.atomic import publish, staging, writing
from edgetune.bundle import manifest as m
from edgetune.bundle.storage import Storage, refuse_to_overwrite, write_tar
from edgetune.cpu import architecture, missing_features
from edgetune.errors import BundleError, UsageError
from edgetune.tvm_runtime import CARRIED

VARIANTS = "variants"
_PER_TARGET = (".so", ".a")


class Variant(m.Part):
    """One bundle: the file with its manifest, and the file here for each of its own."""

    target: str
    manifest: str
    files: dict[str, str]


class Package(m.Part):
    """``manifest.json`` of several bundles in one, the best for a machine first."""

    format: Literal["edgetune-bundle"] = "edgetune-bundle"
    schema_version: Literal[3] = 3
    variants: tuple[Variant, ...] = Field(min_length=1)
    files: dict[str, m.FileEntry]

    def to_json(self) -> bytes:
        """The bytes of ``manifest.json``."""
        content = self.model_dump(mode="json")
        return m.with_digest(content)


@dataclass(frozen=True)
class Merged:
    """What :func:`merge` wrote: the targets, the best first; bytes, and how many were to be stored once only."""

    path: Path
    targets: tuple[str, ...]
    size_bytes: int
    saved_bytes: int


@dataclass(frozen=True)
class Runner:
    """What a variant has to run on; this machine where nothing is said.

    Attributes:
        name: for messages. arch: one of ``cpu.ARCHITECTURES``. features: of its CPU, LLVM's names.
    """

    name: str = "this machine"
    arch: str | None = None
    features: frozenset[str] | None = None


def choose(package: Package, storage: Storage, where: str, runner: Runner) -> tuple[m.Manifest, Storage]:
    """The variant for a runner, as a bundle of its own.

    Raises:
        BundleError: there is none, or it is damaged.
    """
    reasons = []
    for variant in package.variants:
        manifest = _manifest_of(variant, package, storage, where)
        reason = _unfit(manifest.target, runner)
        if reason:
            reasons.append(f"{variant.target}: {reason}")
            continue
        files = {name: storage.files[kept] for name, kept in variant.files.items() if kept in storage.files}
        return manifest, Storage(storage.path, files, storage.archive)
    raise BundleError(
        f"{where} has no code that {runner.name} can run ({'; '.join(reasons)}); add a bundle for it with "
        "'edgetune bundle merge'"
    )


def _unfit(target: m.TargetEntry, runner: Runner) -> str:
    """Why a runner does not run code for a target; empty where it does."""
    wanted = architecture(target.mtriple.split("-")[0])
    if target.kind != "llvm":
        return f"for a {target.kind} device"
    if wanted != (runner.arch or architecture()):
        return f"for {wanted}"
    missing = missing_features(target.cpu_features, runner.features, runner.arch)
    return f"lacks {', '.join(missing)}" if missing else ""


def _manifest_of(variant: Variant, package: Package, storage: Storage, where: str) -> m.Manifest:
    data = storage.files[variant.manifest].read() if variant.manifest in storage.files else b""
    entry = package.files.get(variant.manifest)
    if entry is None or hashlib.sha256(data).hexdigest() != entry.sha256:
        raise BundleError(
            f"{where}: {variant.manifest} is missing or was changed after the bundle was written; copy the bundle "
            "again, or merge it again"
        )
    return m.parse_manifest(data, f"{where} ({variant.manifest})")


def merge(
    bundles: Sequence[Path],
    out: Path,
    *,
    read: Callable[[Path], tuple[m.Manifest, Storage]],
    archive: bool = False,
) -> Merged:
    """Put bundles of one model for several targets into one.

    Args:
        bundles: directories or ``.tar`` files.
        out: the directory, or with ``archive`` the ``.tar``, to write.
        read: opens a bundle and checks its files.
        archive: write one ``.tar`` in place of a directory.

    Raises:
        BundleError: one is damaged.
        UsageError: they are of different models, or two are for the same target.
        OutputError: ``out`` holds something that is no bundle, or cannot be written.
    """
    out = out.expanduser().resolve()
    refuse_to_overwrite(out)
    opened = [read(path) for path in bundles]
    _check_alike([manifest for manifest, _ in opened], bundles)
    # Who uses more of a CPU is faster on it.
    opened.sort(key=lambda item: -len(item[0].target.cpu_features))
    with staging(out) as work, writing(out):
        folder = work / "bundle"
        folder.mkdir()
        store = _Store(folder)
        variants = [_add(store, manifest, storage) for manifest, storage in opened]
        lines = [
            f"{variant.files[m.LIBRARY]} {variant.files[m.WEIGHTS]}\n"
            for variant, (manifest, _) in zip(variants, opened, strict=True)
            if _for_apps(variant, manifest)
        ]
        store.put(VARIANTS, "".join(lines).encode(), optional=True)
        package = Package(variants=tuple(variants), files=store.entries)
        (folder / m.MANIFEST).write_bytes(package.to_json())
        finished = folder
        if archive:
            finished = work / "bundle.tar"
            write_tar(folder, finished)
        size = sum(entry.stat().st_size for entry in folder.iterdir())
        publish(finished, out)
    return Merged(out, tuple(variant.target for variant in variants), size, store.saved_bytes)


def _for_apps(variant: Variant, manifest: m.Manifest) -> bool:
    """Whether apps in C can load it: a library finds TVM's runtime under its own name only."""
    runtime = {name: kept for name, kept in variant.files.items() if name in CARRIED}
    return manifest.engine == "standalone" or (
        len(runtime) > 0 and all(name == kept for name, kept in runtime.items())
    )


def _check_alike(manifests: Sequence[m.Manifest], bundles: Sequence[Path]) -> None:
    first, seen = manifests[0], set()
    for manifest, path in zip(manifests, bundles, strict=True):
        known = (manifest.model.sha256, manifest.inputs, manifest.outputs, manifest.frozen)
        if known != (first.model.sha256, first.inputs, first.outputs, first.frozen):
            raise UsageError(
                f"{path} and {bundles[0]} are not of one model with the same inputs and outputs; merge bundles of "
                "one model, compiled with the same --shape, --freeze and --cut"
            )
        if manifest.target.name in seen:
            raise UsageError(f"two bundles are for {manifest.target.name}; leave one of them out")
        seen.add(manifest.target.name)


def _add(store: _Store, manifest: m.Manifest, storage: Storage) -> Variant:
    target = manifest.target.name
    files = {
        name: store.place(name, target, storage.files[name].read(), optional=entry.optional)
        for name, entry in manifest.files.items()
        if name in storage.files
    }
    described = f"{target}.json"
    store.put(described, storage.files[m.MANIFEST].read(), optional=False)
    return Variant(target=target, manifest=described, files=files)


class _Store:
    """The files of a package: what is equal is one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.entries: dict[str, m.FileEntry] = {}
        self.saved_bytes = 0

    def place(self, name: str, target: str, data: bytes, *, optional: bool) -> str:
        """Store a file of a bundle, unless its content is there already; its name here."""
        suffix = Path(name).suffix
        digest = hashlib.sha256(data).hexdigest()
        for kept, entry in self.entries.items():
            if entry.sha256 == digest and Path(kept).suffix == suffix:
                self.saved_bytes += len(data)
                return kept
        free = name not in self.entries and (suffix not in _PER_TARGET or name in CARRIED)
        here = name if free else f"{target}{suffix}" if name == m.LIBRARY else f"{target}-{name}"
        self.put(here, data, optional=optional)
        return here

    def put(self, name: str, data: bytes, *, optional: bool) -> None:
        """Store a file under a name."""
        if name in self.entries:
            raise UsageError(f"two files would be called {name}; rename the target of one bundle")
        (self._folder / name).write_bytes(data)
        if name.endswith(".so"):
            (self._folder / name).chmod(0o755)
        digest = hashlib.sha256(data).hexdigest()
        self.entries[name] = m.FileEntry(size=len(data), sha256=digest, optional=optional)


def parse_package(data: bytes, where: str) -> Package | None:
    """The package that a ``manifest.json`` describes; None where it is that of a bundle.

    Raises:
        BundleError: it is damaged.
    """
    if b'"variants"' not in data:  # parsing twice takes a third of a millisecond
        return None
    try:
        content = json.loads(data)
    except ValueError:
        return None
    if not isinstance(content, Mapping) or content.get("schema_version") != 3:
        return None
    return m.parse_as(Package, data, where)
