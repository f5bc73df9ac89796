"""What runs a bundle's library on a device: TVM's virtual machine, or the library itself by way of an adapter."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from edgetune.bundle import manifest as m
from edgetune.bundle.reader import Bundle
from edgetune.devices.session import Session
from edgetune.dtypes import numpy_dtype
from edgetune.standalone.build import build_adapter, build_observer
from edgetune.tvm_runtime import start_machine

_ADAPTER = "adapter.so"
_OBSERVER = "observer.so"
_FACTORY = "edgetune.observer"
"""What ``c/observer.c`` calls the function that makes an observer."""


class VirtualMachineEngine:
    """A bundle's program for TVM's virtual machine, uploaded to a device's session, and loaded there."""

    def __init__(self, bundle: Bundle, program: m.ProgramEntry, session: Session) -> None:
        started = time.perf_counter()
        kind = bundle.manifest.target.kind
        self._mtriple, self._session = bundle.manifest.target.mtriple, session
        self._machine = start_machine(session.load(m.LIBRARY), kind)
        self.load_s = time.perf_counter() - started
        self._function = program.function
        self._device = session.tvm_device("cuda" if kind == "cuda" else "cpu")
        self._weights = _send(_weights(bundle, program.weights), self._device)

    def set_inputs(self, arrays: Sequence[np.ndarray]) -> None:
        """Send the inputs of the runs that follow, in the program's order."""
        self._machine["set_input"](self._function, *_send(arrays, self._device), *self._weights)

    def timed(self, count: int) -> list[float]:
        """Seconds of single runs."""
        evaluate = self._machine.time_evaluator("invoke_stateful", self._device, number=1, repeat=count)
        return [float(time_s) for time_s in evaluate(self._function).results]

    def observe(self, runs: int) -> list[list[tuple[str, int, int]]]:
        """Of every run and instruction the name of its function, nanoseconds, and bytes.

        The machine stays observed afterwards.

        Raises:
            ToolchainError: what observes it cannot be compiled.
        """
        self._session.upload(_OBSERVER, build_observer(self._mtriple))
        library = self._session.load(_OBSERVER)
        self._session.remove(_OBSERVER)
        library["edgetune_observer"]()
        self._machine["set_instrument"](_FACTORY)
        begin, notes, run = (
            library["edgetune_begin"],
            library["edgetune_notes"],
            self._machine["invoke_stateful"],
        )
        found = []
        for _ in range(runs):
            begin()
            run(self._function)
            text = _send([np.zeros(int(notes(None)), np.uint8)], self._device)[0]
            notes(text)
            lines = [line.split(" ", 2) for line in text.numpy().tobytes().decode().splitlines()]
            found.append([(name, int(time_ns), int(moved)) for time_ns, moved, name in lines])
        return found

    def outputs(self) -> list[np.ndarray]:
        """Those of one run."""
        self._machine["invoke_stateful"](self._function)
        arity = int(self._machine["get_output_arity"](self._function))
        get = self._machine["get_output"]
        tensors = [get(self._function)] if arity < 0 else [get(self._function, i) for i in range(arity)]
        return [tensor.numpy() for tensor in tensors]


class StandaloneEngine:
    """A standalone library, uploaded to a device's session, called by an adapter that is loaded beside it."""

    def __init__(self, bundle: Bundle, program: m.ProgramEntry, session: Session) -> None:
        self._program = program
        self._device = session.tvm_device("cpu")
        data = bundle.storage.files[m.WEIGHTS].read()
        # Held: the library reads the weights where they lie.
        self._weights = _send([np.frombuffer(data, np.uint8)], self._device)[0] if data else None
        session.upload(_ADAPTER, build_adapter(bundle.manifest.target.mtriple, m.LIBRARY))
        started = time.perf_counter()
        self._library = session.load(_ADAPTER)
        self._library["edgetune_open"](self._weights, session.device.threads)
        self.load_s = time.perf_counter() - started
        session.remove(_ADAPTER)

    def set_inputs(self, arrays: Sequence[np.ndarray]) -> None:
        """Send the inputs of the runs that follow, in the program's order."""
        for index, tensor in enumerate(_send(arrays, self._device)):
            self._library["edgetune_set"](index, tensor)

    def timed(self, count: int) -> list[float]:
        """Seconds of single runs."""
        evaluate = self._library.time_evaluator("edgetune_run", self._device, number=1, repeat=count)
        return [float(time_s) for time_s in evaluate().results]

    def observe(self, runs: int) -> list[list[tuple[str, int, int]]]:
        """Of every run and kernel its name, nanoseconds, and bytes."""
        size = int(self._library["edgetune_kernels"](None))
        text = _send([np.zeros(size, np.uint8)], self._device)[0]
        self._library["edgetune_kernels"](text)
        kernels = [line.split(" ", 1) for line in text.numpy().tobytes().decode().splitlines()]
        times = _send([np.zeros(len(kernels), np.int64)], self._device)[0]
        found = []
        for _ in range(runs):
            self._library["edgetune_observe"](times)
            pairs = zip(kernels, times.numpy().tolist(), strict=True)
            found.append([(name, int(time_ns), int(moved)) for (moved, name), time_ns in pairs])
        return found

    def outputs(self) -> list[np.ndarray]:
        """Those of one run."""
        self._library["edgetune_run"]()
        arrays = [np.empty(item.shape, item.dtype) for item in self._program.outputs]
        tensors = _send(arrays, self._device)
        for index, tensor in enumerate(tensors):
            self._library["edgetune_get"](index, tensor)
        return [tensor.numpy() for tensor in tensors]


def _send(arrays: Sequence[np.ndarray], device: Any) -> list[Any]:
    import tvm

    return [tvm.runtime.tensor(np.ascontiguousarray(array), device=device) for array in arrays]


def _weights(bundle: Bundle, chosen: Sequence[int]) -> list[np.ndarray]:
    """The weights at these positions, in this order."""
    data = bundle.storage.files[m.WEIGHTS].read() if bundle.manifest.weights else b""
    weights = [bundle.manifest.weights[index] for index in chosen]
    return [
        np.frombuffer(data, np.uint8, weight.size_bytes, weight.offset)
        .view(numpy_dtype(weight.dtype))
        .reshape(weight.shape)
        for weight in weights
    ]
