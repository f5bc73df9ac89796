"""A standalone library and its C API through ctypes, with NumPy arrays in and out.

Imports nothing of edgetune: the package ``edgetune-runtime`` (``runtime/``) is made of this module too.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

API_VERSION: Final = 1
NO_CHECKSUM: Final = 1
ERROR_ARGUMENT: Final = 1
ERROR_THREADS: Final = 6
"""Of ``edgetune_status``."""
DTYPES: Final = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
)
"""In the order of ``edgetune_dtype`` in ``c/edgetune.h``."""


class Error(ctypes.Structure):
    """``edgetune_error``."""

    _fields_ = [("status", ctypes.c_int), ("message", ctypes.c_char * 256)]


class TensorInfo(ctypes.Structure):
    """``edgetune_tensor_info``."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_int),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("size_bytes", ctypes.c_size_t),
    ]


class KernelInfo(ctypes.Structure):
    """``edgetune_kernel_info``."""

    _fields_ = [("name", ctypes.c_char_p), ("bytes", ctypes.c_uint64)]


class Options(ctypes.Structure):
    """``edgetune_options``."""

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
    "input_info": (ctypes.POINTER(TensorInfo), [_POINTER, _INT]),
    "output_info": (ctypes.POINTER(TensorInfo), [_POINTER, _INT]),
    "num_sizes": (_INT, [_POINTER]),
    "open_size": (_STATUS, [_POINTER, _INT, _POINTER, _POINTER]),
    "kernel": (ctypes.POINTER(KernelInfo), [_POINTER, _INT]),
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
        AttributeError: it is no model with the C API.
    """

    def __init__(self, path: str | Path) -> None:
        self.loaded = ctypes.CDLL(str(path), mode=ctypes.RTLD_LOCAL)
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(self.loaded, f"edgetune_{name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:
        # For type checkers: __init__ has set all that there is.
        raise AttributeError(f"a standalone library has no function edgetune_{name}")


class CallError(Exception):
    """A function of the C API failed; ``status`` is its ``edgetune_status``."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Tensor(NamedTuple):
    """An input or output: its name, NumPy dtype and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Session:
    """An instance of a library's model. Not for several threads.

    Attributes:
        inputs, outputs: in the model's order.
        sizes: how many combinations of sizes the model has code for.
        buffers, results: the memory of the inputs and outputs by name; it goes with the session.
    """

    def __init__(
        self,
        library: Library,
        weights: np.ndarray,
        threads: int,
        cores: Sequence[int] = (),
        *,
        checksum: bool = False,
        size: int = 0,
    ) -> None:
        """Open the model and create an instance.

        Args:
            library: the library.
            weights: its bytes, at a multiple of 64; empty where they are inside the library.
            threads: how many to run on; 0 for the model's own number.
            cores: numbers of those that additional threads run on; any by default.
            checksum: compare that of the weights, which takes a millisecond for 10 MB.
            size: which combination of sizes the instance is for, 0 being the largest.

        Raises:
            CallError: the machine or the weights do not fit, or the system gives no memory or threads.
        """
        self._library = library
        flags = 0 if checksum else NO_CHECKSUM
        self._model, self._instance = self._open(weights, threads, cores, flags, size)
        self.sizes = int(library.num_sizes(self._model))
        self.inputs = self._tensors(library.num_inputs, library.input_info)
        self.outputs = self._tensors(library.num_outputs, library.output_info)
        self.buffers = self._views(self.inputs, library.input)
        self.results = self._views(self.outputs, library.output)

    def run(self) -> None:
        """Run once, from ``buffers`` to ``results``.

        Raises:
            CallError: a kernel failed.
        """
        status = self._library.run(self._instance)
        if status != 0:
            raise CallError(status, self._library.last_error(self._instance).decode(errors="replace"))

    def observe(self) -> list[tuple[str, int, int]]:
        """Run once and time the kernels: of each its name, nanoseconds, and bytes read and written."""
        times: list[tuple[int, int]] = []
        hook = _HOOK(lambda _user, index, _start, duration: times.append((index, duration)))
        self._library.set_profile_hook(self._instance, hook, None)
        try:
            self.run()
        finally:
            self._library.set_profile_hook(self._instance, _HOOK(), None)
        found = []
        for index, duration_ns in times:
            info = self._library.kernel(self._model, index).contents
            found.append((info.name.decode(), duration_ns, int(info.bytes)))
        return found

    def _open(
        self, weights: np.ndarray, threads: int, cores: Sequence[int], flags: int, size: int
    ) -> tuple[ctypes.c_void_p, ctypes.c_void_p]:
        library, whole, model = self._library, ctypes.c_void_p(), ctypes.c_void_p()
        instance, error = ctypes.c_void_p(), Error()
        pointer = ctypes.c_void_p(weights.ctypes.data if weights.size else None)
        status = library.open_memory(pointer, weights.size, flags, ctypes.byref(whole), ctypes.byref(error))
        if status == 0:
            status = library.open_size(whole, size, ctypes.byref(model), ctypes.byref(error))
            library.close(whole)
        if status != 0:
            raise CallError(status, error.message.decode(errors="replace"))
        numbers = (ctypes.c_int32 * len(cores))(*cores)
        options = Options(threads=threads, cores=numbers, num_cores=len(cores))
        status = library.create(model, ctypes.byref(options), ctypes.byref(instance), ctypes.byref(error))
        library.close(model)  # the instance keeps it
        if status != 0:
            raise CallError(status, error.message.decode(errors="replace"))
        weakref.finalize(self, _free, library, instance, weights)
        return model, instance

    def _tensors(self, count: Any, getter: Any) -> tuple[Tensor, ...]:
        infos = [getter(self._model, index).contents for index in range(count(self._model))]
        return tuple(
            Tensor(
                info.name.decode(), DTYPES[info.dtype], tuple(info.shape[axis] for axis in range(info.rank))
            )
            for info in infos
        )

    def _views(self, tensors: Sequence[Tensor], getter: Any) -> dict[str, np.ndarray]:
        views = {}
        for index, tensor in enumerate(tensors):
            size = int(np.prod(tensor.shape, dtype=np.int64)) * np.dtype(tensor.dtype).itemsize
            memory = (ctypes.c_uint8 * size).from_address(getter(self._instance, index))
            views[tensor.name] = np.ndarray(tensor.shape, tensor.dtype, memoryview(memory))
        return views


def _free(library: Library, instance: ctypes.c_void_p, weights: np.ndarray) -> None:
    """``weights`` are held until the instance that reads them is gone."""
    library.free(instance)
    del weights
