"""Runs bundles of edgetune: ctypes and NumPy, nothing else.

model = edgetune_runtime.load("classifier")
outputs = model.run({"x": array})
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgetune_runtime.capi import API_VERSION, CallError, Library, Session
from edgetune_runtime.cpu import architecture, missing_features

__all__ = ["BundleError", "Model", "load"]

_MANIFEST, _LIBRARY, _WEIGHTS = "manifest.json", "model.so", "weights.bin"
_RUNTIME = ("libtvm_ffi.so", "libtvm_runtime.so", "libtvm_runtime_extra.so")
_NEWEST_SCHEMA_VERSION = 3


class BundleError(Exception):
    """The bundle is damaged, or made for another machine; one sentence says what to do."""


def load(bundle: str | Path, *, threads: int = 0, check_files: bool = True) -> Model:
    """Load a bundle: a standalone one, or one with TVM's runtime libraries in it.

    Args:
        bundle: its folder; of several in one, the best for this machine is taken.
        threads: threads to run on; 0 for the bundle's own number.
        check_files: compare every file with its SHA-256 first.

    Raises:
        BundleError: it is no bundle, is damaged, was made for another machine, or lacks TVM's runtime libraries, or
            there is no memory.
    """
    folder = Path(bundle)
    try:
        return _load(folder, int(threads), check_files)
    except MemoryError as error:
        raise BundleError(f"{folder} cannot be loaded: there is no memory for it; free some") from error
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise BundleError(f"{folder / _MANIFEST} is damaged; copy the bundle again") from error


def _load(folder: Path, threads: int, check_files: bool) -> Model:
    content = _read_manifest(folder / _MANIFEST)
    names: Mapping[str, str] = {}
    if content["schema_version"] == 3:
        content, names = _choose(folder, content, check_files)
    if reason := _unfit(content):
        raise BundleError(f"{folder} does not run here: this machine {reason}; compile one for this machine")
    runtime = _RUNTIME if content["engine"] == "vm" else ()
    wanted = [_LIBRARY, _WEIGHTS, *(name for name in runtime if name in content["files"])]
    paths = {name: folder / Path(names.get(name, name)).name for name in wanted}
    for name, path in paths.items():
        _check_file(path, content["files"][name], check_files)
    return Model(folder, content, paths, threads)


class Model:
    """A loaded model; calls of :meth:`run` from several threads wait for each other.

    Attributes:
        name: the model's. manifest: all that the bundle says about itself.
        inputs, outputs: names, dtypes and shapes, in the model's order; where sizes vary, the largest ones.
    """

    def __init__(
        self, folder: Path, manifest: dict[str, Any], files: Mapping[str, Path], threads: int
    ) -> None:
        self.manifest = manifest
        self.name = manifest["model"]["name"]
        self._lock = threading.Lock()
        weights = files[_WEIGHTS]
        data = np.memmap(weights, np.uint8, "r") if weights.stat().st_size else np.empty(0, np.uint8)
        threads = threads or manifest["threads"]
        try:
            library = _load_library(files)
            self._sessions = [Session(library, data, threads)]
            count = self._sessions[0].sizes
            self._sessions += [Session(library, data, threads, size=size) for size in range(1, count)]
        except (OSError, AttributeError, CallError) as error:
            raise BundleError(f"{folder} cannot be loaded: {error}; build the bundle again") from error
        self.inputs, self.outputs = self._sessions[0].inputs, self._sessions[0].outputs

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run once, on one array for each input by name; the outputs by name, which are the caller's.

        Raises:
            ValueError: an input is missing, unknown, or has another dtype or shape.
            BundleError: a kernel failed.
        """
        arrays = {name: np.asarray(value) for name, value in inputs.items()}
        if set(arrays) != {tensor.name for tensor in self.inputs}:
            names = ", ".join(tensor.name for tensor in self.inputs)
            raise ValueError(f"{self.name} takes the inputs {names}, not {list(arrays)}")
        session = self._for({name: array.shape for name, array in arrays.items()})
        with self._lock:
            for name, buffer in session.buffers.items():
                array = arrays[name]
                if array.dtype != buffer.dtype or array.shape != buffer.shape:
                    raise ValueError(
                        f"input {name} of {self.name} is {array.dtype}{list(array.shape)}, it takes "
                        f"{buffer.dtype}{list(buffer.shape)}"
                    )
                buffer[...] = array
            try:
                session.run()
            except CallError as error:
                raise BundleError(f"{self.name} failed while running: {error}") from error
            return {name: result.copy() for name, result in session.results.items()}

    def _for(self, shapes: Mapping[str, Sequence[int]]) -> Session:
        """The session for inputs of these shapes."""
        for session in self._sessions:
            if all(buffer.shape == shapes[name] for name, buffer in session.buffers.items()):
                return session
        if len(self._sessions) == 1:
            return self._sessions[0]
        served = "; ".join(
            ", ".join(f"{tensor.name}{list(tensor.shape)}" for tensor in session.inputs)
            for session in self._sessions
        )
        raise ValueError(
            f"{self.name} has no code for inputs of the shapes {dict(shapes)}, but for: {served}"
        )


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
        digest = content.pop("digest")
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
        whole = content["format"] == "edgetune-bundle" and isinstance(content["schema_version"], int)
        whole = whole and hashlib.sha256(canonical.encode()).hexdigest() == digest
    except OSError as error:
        raise BundleError(
            f"{path.parent} is not a bundle: {error.strerror}; give the folder of a bundle"
        ) from error
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise BundleError(f"{path} is damaged; copy the bundle again") from error
    if not whole:
        raise BundleError(f"{path} is damaged, or was changed; copy the bundle again")
    if content["schema_version"] > _NEWEST_SCHEMA_VERSION:
        raise BundleError(f"{path} was written by a newer edgetune; upgrade edgetune-runtime")
    return content


def _choose(folder: Path, package: dict[str, Any], check: bool) -> tuple[dict[str, Any], Mapping[str, str]]:
    reasons = []
    for variant in package["variants"]:
        path = folder / variant["manifest"]
        _check_file(path, package["files"][path.name], check)
        content = _read_manifest(path)
        reason = _unfit(content)
        if not reason:
            return content, variant["files"]
        reasons.append(f"{variant['target']}: this machine {reason}")
    raise BundleError(f"{folder} does not run here ({'; '.join(reasons)}); compile one for this machine")


def _unfit(manifest: Mapping[str, Any]) -> str:
    """Why this machine does not run a bundle, after "this machine"; empty where it does."""
    target = manifest["target"]
    wanted = architecture(target["mtriple"].split("-")[0])
    if wanted != architecture():
        return f"is {architecture()}, not {wanted}"
    if target["kind"] != "llvm":
        return f"runs code for CPUs alone with this package, and for {target['kind']} with edgetune.load"
    if missing := missing_features(target["cpu_features"]):
        return f"lacks the CPU features {', '.join(missing)}"
    if manifest["engine"] == "vm" and _RUNTIME[0] not in manifest["files"]:
        return "has no TVM, and neither has the bundle"
    return ""


def _check_file(path: Path, entry: Mapping[str, Any], check: bool) -> None:
    try:
        size = path.stat().st_size
        same = size == entry["size"]
        if same and check:
            digest = hashlib.sha256()
            with path.open("rb") as file:
                while chunk := file.read(1 << 20):
                    digest.update(chunk)
            same = digest.hexdigest() == entry["sha256"]
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror}; copy the whole bundle again") from error
    if not same:
        raise BundleError(f"{path} was changed or damaged; copy the bundle again")


def _load_library(files: Mapping[str, Path]) -> Library:
    # Under a name of its own: the system gives a library that it has loaded under the same name before, even where
    # the file was replaced by another since. TVM's libraries are looked for beside it.
    with tempfile.TemporaryDirectory(prefix="edgetune-") as folder:
        for name, path in files.items():
            if name != _WEIGHTS:
                Path(folder, name).symlink_to(path.resolve())
        library = Library(Path(folder, _LIBRARY))
    if library.api_version() != API_VERSION:
        raise OSError("it has another version of the C API")
    return library
