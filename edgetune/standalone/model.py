"""Runs a standalone library through its C API, with NumPy arrays in and out.

Imports neither TVM nor anything of the compiler.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

from edgetune.bundle import manifest as m
from edgetune.bundle.inputs import check_inputs, plainly_right
from edgetune.bundle.reader import Bundle
from edgetune.errors import BundleError, UsageError
from edgetune.records import TensorSpec

API_VERSION: Final = 1
NO_CHECKSUM: Final = 1
_DTYPES: Final = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
)
"""In the order of ``edgetune_dtype`` in ``c/edgetune.h``."""


class _Error(ctypes.Structure):
    _fields_ = [("status", ctypes.c_int), ("message", ctypes.c_char * 256)]


class _TensorInfo(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_int),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("size_bytes", ctypes.c_size_t),
    ]


class _KernelInfo(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("bytes", ctypes.c_uint64)]


class _Options(ctypes.Structure):
    _fields_ = [
        ("threads", ctypes.c_int32),
        ("spin_us", ctypes.c_int32),
        ("cores", ctypes.POINTER(ctypes.c_int32)),
        ("num_cores", ctypes.c_int32),
    ]


_HOOK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32, ctypes.c_uint64, ctypes.c_uint64)

_POINTER, _INT, _SIZE, _STATUS = ctypes.c_void_p, ctypes.c_int32, ctypes.c_size_t, ctypes.c_int
_FUNCTIONS: Mapping[str, tuple[Any, list[Any]]] = {
    "api_version": (_INT, []),
    "version": (ctypes.c_char_p, []),
    "open": (_STATUS, [ctypes.c_char_p, ctypes.c_uint32, _POINTER, _POINTER]),
    "open_memory": (_STATUS, [_POINTER, _SIZE, ctypes.c_uint32, _POINTER, _POINTER]),
    "close": (None, [_POINTER]),
    "model_target": (ctypes.c_char_p, [_POINTER]),
    "model_arena_bytes": (_SIZE, [_POINTER]),
    "num_inputs": (_INT, [_POINTER]),
    "num_outputs": (_INT, [_POINTER]),
    "num_kernels": (_INT, [_POINTER]),
    "input_info": (ctypes.POINTER(_TensorInfo), [_POINTER, _INT]),
    "output_info": (ctypes.POINTER(_TensorInfo), [_POINTER, _INT]),
    "kernel": (ctypes.POINTER(_KernelInfo), [_POINTER, _INT]),
    "create": (_STATUS, [_POINTER, _POINTER, _POINTER, _POINTER]),
    "free": (None, [_POINTER]),
    "input": (_POINTER, [_POINTER, _INT]),
    "output": (_POINTER, [_POINTER, _INT]),
    "run": (_STATUS, [_POINTER]),
    "last_error": (ctypes.c_char_p, [_POINTER]),
    "set_profile_hook": (None, [_POINTER, _HOOK, _POINTER]),
}


class Library:
    """A standalone ``model.so`` and the functions of its C API, without their prefix.

    Raises:
        OSError: it cannot be loaded.
        AttributeError: it is no standalone model.
    """

    def __init__(self, path: Path) -> None:
        self.loaded = ctypes.CDLL(str(path), mode=ctypes.RTLD_LOCAL)
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(self.loaded, f"edgetune_{name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:
        # For type checkers: __init__ has set all that there is.
        raise AttributeError(f"a standalone library has no function edgetune_{name}")


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
        self._library = _load(bundle)
        self._weights = _map_weights(bundle)
        self._model, self._instance = self._open(cores)
        self.inputs = tuple(self._spec(self._library.input_info, i) for i in range(len(self.manifest.inputs)))
        self.outputs = tuple(
            self._spec(self._library.output_info, i) for i in range(len(self.manifest.outputs))
        )
        self._check_interface()
        self._buffers = {
            spec.name: _view(self._library.input(self._instance, i), spec)
            for i, spec in enumerate(self.inputs)
        }
        self._results = {
            spec.name: _view(self._library.output(self._instance, i), spec)
            for i, spec in enumerate(self.outputs)
        }

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
        right = plainly_right(self._buffers, inputs)
        arrays = inputs if right else check_inputs(self.inputs, inputs, self.name)
        with self._lock:
            for name, buffer in self._buffers.items():
                buffer[...] = arrays[name]
            if self._library.run(self._instance) != 0:
                message = self._library.last_error(self._instance).decode(errors="replace")
                raise BundleError(f"{self._path} failed while running: {message}")
            return {name: result.copy() for name, result in self._results.items()}

    def observe(self, inputs: Mapping[str, Any]) -> list[tuple[str, int, int]]:
        """Run the model once and time its kernels.

        Returns:
            Of each kernel, in the order of the run: its name, its time in nanoseconds, the bytes of all
            tensors that it reads or writes.

        Raises:
            UsageError, BundleError: as :meth:`run`.
        """
        times: list[tuple[int, int]] = []
        hook = _HOOK(lambda _user, index, _start, duration: times.append((index, duration)))
        with self._lock:
            self._library.set_profile_hook(self._instance, hook, None)
            try:
                self.run(inputs)
            finally:
                self._library.set_profile_hook(self._instance, _HOOK(), None)
        found = []
        for index, duration_ns in times:
            info = self._library.kernel(self._model, index).contents
            found.append((info.name.decode(), duration_ns, int(info.bytes)))
        return found

    def _open(self, cores: Sequence[int]) -> tuple[ctypes.c_void_p, ctypes.c_void_p]:
        model, instance, error = ctypes.c_void_p(), ctypes.c_void_p(), _Error()
        weights = self._weights
        pointer = ctypes.c_void_p(weights.ctypes.data if weights.size else None)
        # The reader has compared the file's SHA-256 already, or was told not to.
        opened = self._library.open_memory(
            pointer, weights.size, NO_CHECKSUM, ctypes.byref(model), ctypes.byref(error)
        )
        if opened != 0:
            raise BundleError(f"{self._path} cannot be loaded: {error.message.decode(errors='replace')}")
        numbers = (ctypes.c_int32 * len(cores))(*cores)
        options = _Options(threads=self.threads, cores=numbers, num_cores=len(cores))
        created = self._library.create(
            model, ctypes.byref(options), ctypes.byref(instance), ctypes.byref(error)
        )
        self._library.close(model)  # the instance keeps it
        if created != 0:
            raise UsageError(f"{self._path} cannot be run: {error.message.decode(errors='replace')}")
        weakref.finalize(self, _free, self._library, instance, weights)
        return model, instance

    def _spec(self, getter: Any, index: int) -> TensorSpec:
        found = getter(self._model, index)
        if not found:
            raise self._other_model()
        info = found.contents
        shape = tuple(info.shape[axis] for axis in range(info.rank))
        return TensorSpec(info.name.decode(), _DTYPES[info.dtype], shape)

    def _check_interface(self) -> None:
        told = tuple(item.spec() for item in (*self.manifest.inputs, *self.manifest.outputs))
        if told != (*self.inputs, *self.outputs):
            raise self._other_model()

    def _other_model(self) -> BundleError:
        return BundleError(
            f"{self._path}: {m.LIBRARY} and {m.MANIFEST} belong to different models; build the bundle again"
        )


def _free(library: Library, instance: ctypes.c_void_p, weights: np.ndarray) -> None:
    """``weights`` are held until the instance that reads them is gone."""
    library.free(instance)
    del weights


def _load(bundle: Bundle) -> Library:
    extent = bundle.storage.files[m.LIBRARY]
    try:
        # Under a name of its own, which it needs no more once loaded: glibc gives a library that it has loaded
        # under the same name before, even where the file was replaced by another since.
        with TemporaryDirectory(prefix="edgetune-", ignore_cleanup_errors=True) as folder:
            path = Path(folder, m.LIBRARY)
            if bundle.storage.archive:
                path.write_bytes(extent.read())
            else:
                path.symlink_to(extent.path.resolve())
            library = Library(path)
    except (OSError, AttributeError) as error:
        raise BundleError(
            f"the library of {bundle.path} cannot be loaded ({error}); build the bundle again"
        ) from error
    found = library.api_version()
    if found != API_VERSION:
        raise BundleError(
            f"the library of {bundle.path} has version {found} of the C API, this edgetune knows "
            f"{API_VERSION}; build the bundle again with this edgetune"
        )
    return library


def _map_weights(bundle: Bundle) -> np.ndarray:
    """The bytes of the weights, mapped without a copy; empty where they are inside the library."""
    extent = bundle.storage.files[m.WEIGHTS]
    if extent.size == 0:
        return np.empty(0, np.uint8)
    return np.memmap(extent.path, np.uint8, "r", extent.offset, (extent.size,))


def _view(address: int, spec: TensorSpec) -> np.ndarray:
    """The tensor in the instance's memory as an array, which does not keep that memory."""
    size = m.Tensor.of(spec).size_bytes
    memory = (ctypes.c_uint8 * size).from_address(address)
    return np.ndarray(spec.shape, spec.dtype, memoryview(memory))
