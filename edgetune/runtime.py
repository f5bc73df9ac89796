"""Loads a bundle and runs it, with nothing of the compiler.

``import tvm`` would bring the compiler (a 260 MB library) and a second of imports. A Relax virtual
machine needs neither: ``libtvm_runtime`` and the ``tvm_ffi`` package are enough, so that only these
are loaded. A process that imports TVM itself, before or after, shares the same library.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from edgetune.bundle.dispatch import Dispatcher
from edgetune.bundle.inputs import check_inputs, plainly_right
from edgetune.bundle.loading import library_file, map_weights
from edgetune.bundle.reader import Bundle, check_loadable, open_bundle
from edgetune.bundle.signing import verify
from edgetune.dtypes import numpy_dtype
from edgetune.errors import BundleError, UsageError, first_line
from edgetune.machine import usable_cpus
from edgetune.records import TensorSpec
from edgetune.standalone.model import StandaloneModel
from edgetune.tvm_runtime import engine, load_gpu_runtime, start_machine
from edgetune.vm_program import DeviceProgram, Program, as_tensor, on_device

log = logging.getLogger(__name__)

_SHARE_ALL_CORES = -3  # AffinityMode::kSpecifyThreadShareAllCore of TVM's thread pool
_ENGINE_ERRORS = (RuntimeError, ValueError, TypeError, AttributeError, IndexError, KeyError)


def load(
    bundle: str | Path,
    *,
    threads: int | None = None,
    check_files: bool = True,
    key: str | Path | None = None,
) -> AnyModel:
    """Load a bundle for running on this machine.

    Args:
        bundle: the bundle's directory or ``.tar``.
        threads: threads to run on, the bundle's own number by default. Never more than the CPUs
            that this process may use.
        check_files: compare every file with its SHA-256 first.
        key: public key of the bundle's signer, or its file: load nothing that it has not signed.

    Raises:
        BundleError: it is no bundle, is damaged, or was made for another machine or other versions.
        UsageError: ``threads`` is no number, or less than one.
    """
    if threads is not None and not (isinstance(threads, int) and threads >= 1):
        raise UsageError(f"threads={threads!r} is not a number of threads; give 1 or more")
    if key is not None:
        verify(Path(bundle), key)
        check_files = True
    try:
        opened = open_bundle(bundle, check_files=check_files)
        check_loadable(opened)
        if opened.manifest.engine == "standalone":
            count = _possible_threads(opened.manifest.threads, threads)
            return StandaloneModel(opened, count, _fastest(sorted(usable_cpus()), count))
        return LoadedModel(opened, threads)
    except MemoryError as error:
        raise BundleError(f"{bundle} cannot be loaded: there is no memory for it; free some") from error


class LoadedModel:
    """A model ready to run; get one from :func:`load`.

    Several models, and several of the same bundle, live side by side in one process. A model may be
    used from several Python threads: calls of :meth:`run` wait for each other. Each Python thread
    that runs models has a pool of worker threads of its own, so one thread that runs them all is best.

    Attributes:
        name: the model's name.
        inputs, outputs: names, dtypes and shapes, in the model's order. Where sizes vary, ``shape`` has the
            largest ones and ``varying`` says which are served; ``str()`` of one reads ``float32[1..8, 3]``.
        threads: how many threads a run uses.
        manifest: all that the bundle says about itself.
    """

    def __init__(self, bundle: Bundle, threads: int | None = None) -> None:
        self.manifest = bundle.manifest
        self.name = bundle.manifest.model.name
        self.inputs: tuple[TensorSpec, ...] = bundle.manifest.input_specs()
        self.outputs: tuple[TensorSpec, ...] = bundle.manifest.output_specs()
        self.threads = _possible_threads(bundle.manifest.threads, threads)
        self._path = bundle.path
        self._lock = threading.Lock()
        self._kind = bundle.manifest.target.kind
        if self._kind == "cuda":
            load_gpu_runtime()
        self._library = _load_library(bundle)
        self._dispatcher = Dispatcher(bundle.manifest)
        try:
            self._weights = _map_weights(bundle)
            self._machine = start_machine(self._library, self._kind)
            weights = [as_tensor(array) for array in self._weights]
            if self._kind == "cuda":
                gpu = engine().device("cuda", 0)
                weights = [on_device(tensor, gpu) for tensor in weights]
                self._programs: list[Program] = [
                    DeviceProgram(self._machine, entry, self._weights, weights, gpu)
                    for entry in bundle.manifest.all_programs()
                ]
            else:
                self._programs = [
                    Program(self._machine, entry, self._weights, weights)
                    for entry in bundle.manifest.all_programs()
                ]
        except _ENGINE_ERRORS as error:
            raise self._failure("cannot be loaded", error) from error

    def __repr__(self) -> str:
        return f"<LoadedModel {self.name!r} from {self._path} on {self.threads} threads>"

    def run(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Run the model once.

        Where sizes vary, the code for exactly these sizes runs, or, in between and only where that is
        exact, the code for the next larger one with the last row repeated and the outputs cropped.

        Args:
            inputs: one array for each input, by name, of exactly its dtype and of a shape that is served.
                They are copied, and free to be changed afterwards.

        Returns:
            Arrays by output name, in the model's order; they are the caller's to keep and to change.

        Raises:
            UsageError: an input is missing, unknown, or has another dtype or shape.
            BundleError: the library failed.
        """
        for program in self._programs:
            if program.exact and plainly_right(program.buffers, inputs):
                with self._lock:
                    for name, buffer in program.buffers.items():
                        buffer[...] = inputs[name]
                    return self._run(program)
        arrays = check_inputs(self.inputs, inputs, self.name)
        dispatch = self._dispatcher.choose({name: array.shape for name, array in arrays.items()})
        program = self._programs[dispatch.program]
        with self._lock:
            for name, buffer in program.buffers.items():
                dispatch.fill(name, buffer, arrays[name])
            return dispatch.crop(self._run(program))

    def instrument(self, observer: Callable[..., Any] | None) -> None:
        """Call ``observer`` before and after each instruction of the Relax virtual machine; None stops.

        It is given the function, its name, whether this is before the call, the result, and the
        arguments. For profiling: it slows the model down.
        """
        function = (lambda *_: 0) if observer is None else observer
        self._machine["set_instrument"](engine().convert(function))

    def _run(self, program: Program) -> dict[str, np.ndarray]:
        """Run a program whose buffers are filled, while the lock is held."""
        _use_threads(self.threads)
        try:
            result = program.main()
        except _ENGINE_ERRORS as error:
            raise self._failure("failed while running", error) from error
        return program.take(result)

    def _failure(self, what: str, error: Exception) -> BundleError:
        return BundleError(
            f"the library of {self._path} {what} ({first_line(error)}); build the bundle again"
        )


AnyModel: TypeAlias = LoadedModel | StandaloneModel
"""What :func:`load` gives: a model for TVM's virtual machine, or one that needs nothing but itself."""


def _load_library(bundle: Bundle) -> Any:
    """The library of a bundle, as a module of TVM.

    A copy of it: of a file that is loaded twice, by this module or by an app's C API, the second module would take
    over the first one's state and leave it dangling.
    """
    load_module = engine().load_module
    with library_file(bundle, copied=True) as path:
        return load_module(str(path))


def _map_weights(bundle: Bundle) -> list[np.ndarray]:
    """The weights, mapped from the file without a copy; pages are read when a kernel needs them.

    The mapping is private: DLPack has no read-only tensors, and the file must stay as it is.
    """
    data = map_weights(bundle, "c")
    if data.size == 0:
        return [np.empty(weight.shape, numpy_dtype(weight.dtype)) for weight in bundle.manifest.weights]
    return [
        np.asarray(data[weight.offset : weight.offset + weight.size_bytes])
        .view(numpy_dtype(weight.dtype))
        .reshape(weight.shape)
        for weight in bundle.manifest.weights
    ]


def _possible_threads(built_for: int, wanted: int | None) -> int:
    cpus = len(usable_cpus())
    threads = wanted or built_for
    if threads > cpus:
        # More threads than CPUs would spin against each other, many times slower.
        log.warning("running on %d threads instead of %d: the process may use no more CPUs", cpus, threads)
    return min(threads, cpus)


_thread_state = threading.local()


def _use_threads(count: int) -> None:
    """Let kernels that this Python thread starts run on ``count`` threads.

    TVM's pool belongs to the calling thread and can never grow, and by default counts half of an
    x86 machine's CPUs: it is made with all CPUs of the process, of which ``count`` are then used.
    The workers, and the calling thread, may run on any of these CPUs, on a machine with cores of
    several speeds on the ``count`` fastest.

    Raises:
        UsageError: this process is the fork of one in which this Python thread ran a model.
    """
    if getattr(_thread_state, "process", os.getpid()) != os.getpid():
        # TVM would wait for threads that only the parent has.
        raise UsageError(
            "this process is the fork of one that ran a model in TVM's virtual machine, without its threads; run "
            "models in a new thread, or only after the fork, as multiprocessing does with the method 'spawn'"
        )
    if getattr(_thread_state, "count", None) == count:
        return
    _thread_state.cpus = getattr(_thread_state, "cpus", None) or sorted(usable_cpus())
    cpus = [str(cpu) for cpu in _fastest(_thread_state.cpus, count)]
    configure = engine().get_global_func("runtime.config_threadpool")
    if not hasattr(_thread_state, "count"):
        configure(_SHARE_ALL_CORES, count, [str(cpu) for cpu in _thread_state.cpus])
    configure(_SHARE_ALL_CORES, count, cpus)
    _thread_state.count, _thread_state.process = count, os.getpid()
    actual = engine().get_global_func("runtime.NumThreads")()
    if actual < count:
        log.warning("TVM was started earlier on %d threads and cannot use %d now", actual, count)


def _fastest(cpus: Sequence[int], count: int) -> list[int]:
    """All ``cpus`` as fast as the ``count``-th fastest: all of them where they are alike."""
    speeds = {cpu: _top_frequency(cpu) for cpu in cpus}
    limit = sorted(speeds.values(), reverse=True)[min(count, len(cpus)) - 1]
    return [cpu for cpu in cpus if speeds[cpu] >= limit]


def _top_frequency(cpu: int) -> int:
    try:
        return int(Path(f"/sys/devices/system/cpu/cpu{cpu}/cpufreq/cpuinfo_max_freq").read_text())
    except (OSError, ValueError):
        return 0
