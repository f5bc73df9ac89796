"""Runs the standalone library of a bundle, with NumPy arrays in and out.

Imports neither TVM nor anything of the compiler.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from edgetune.bundle import manifest as m
from edgetune.bundle.inputs import check_inputs, plainly_right
from edgetune.bundle.loading import library_file, map_weights
from edgetune.bundle.reader import Bundle
from edgetune.errors import BundleError, UsageError
from edgetune.records import TensorSpec
from edgetune.standalone.capi import API_VERSION, ERROR_ARGUMENT, ERROR_THREADS, CallError, Library, Session


class StandaloneModel:
    """A standalone model ready to run; get one from :func:`edgetune.load`.

    Its additional threads run on ``cores``, on any where none are given.

    Several models, and several of the same bundle, live side by side in one process. A model may be used
    from several Python threads: calls of :meth:`run` wait for each other. For runs at the same time, load
    it several times: the weights are shared, each has its own memory and threads.

    Attributes:
        name: the model's name.
        inputs, outputs: names, dtypes and shapes, in the model's order.
        threads: how many threads a run uses.
        manifest: all that the bundle says about itself.
    """

    def __init__(self, bundle: Bundle, threads: int, cores: Sequence[int] = ()) -> None:
        self.manifest = bundle.manifest
        self.name = bundle.manifest.model.name
        self.threads = threads
        self._path = bundle.path
        self._lock = threading.RLock()
        try:
            # The reader has compared the weights' SHA-256 already, or was told not to.
            self._session = Session(_load(bundle), map_weights(bundle, "r"), threads, cores)
        except CallError as error:
            kind = UsageError if error.status in (ERROR_ARGUMENT, ERROR_THREADS) else BundleError
            raise kind(f"{self._path} cannot be loaded: {error}") from error
        self.inputs = tuple(TensorSpec(*tensor) for tensor in self._session.inputs)
        self.outputs = tuple(TensorSpec(*tensor) for tensor in self._session.outputs)
        told = (
            tuple(item.spec() for item in self.manifest.inputs),
            tuple(item.spec() for item in self.manifest.outputs),
        )
        if told != (self.inputs, self.outputs):
            raise BundleError(
                f"{self._path}: {m.LIBRARY} and {m.MANIFEST} belong to different models; build the bundle again"
            )

    def __repr__(self) -> str:
        return f"<StandaloneModel {self.name!r} from {self._path} on {self.threads} threads>"

    def run(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Run the model once.

        Args:
            inputs: one array for each input, by name, of exactly its dtype and shape. They are
                copied, and free to be changed afterwards.

        Returns:
            Arrays by output name, in the model's order; they are the caller's to keep and to change.

        Raises:
            UsageError: an input is missing, unknown, or has another dtype or shape.
            BundleError: a kernel failed.
        """
        with self._lock:
            self._fill(inputs)
            try:
                self._session.run()
            except CallError as error:
                raise BundleError(f"{self._path} failed while running: {error}") from error
            return {name: result.copy() for name, result in self._session.results.items()}

    def observe(self, inputs: Mapping[str, Any]) -> list[tuple[str, int, int]]:
        """Run the model once and time its kernels.

        Returns:
            Of each kernel, in the order of the run: its name, its time in nanoseconds, the bytes of all
            tensors that it reads or writes.

        Raises:
            UsageError, BundleError: as :meth:`run`.
        """
        with self._lock:
            self._fill(inputs)
            try:
                return self._session.observe()
            except CallError as error:
                raise BundleError(f"{self._path} failed while running: {error}") from error

    def _fill(self, inputs: Mapping[str, Any]) -> None:
        buffers = self._session.buffers
        arrays = inputs if plainly_right(buffers, inputs) else check_inputs(self.inputs, inputs, self.name)
        for name, buffer in buffers.items():
            buffer[...] = arrays[name]


def _load(bundle: Bundle) -> Library:
    with library_file(bundle, copied=False) as path:
        library = Library(path)
    found = library.api_version()
    if found != API_VERSION:
        raise BundleError(
            f"the library of {bundle.path} has version {found} of the C API, this edgetune knows "
            f"{API_VERSION}; build the bundle again with this edgetune"
        )
    return library
