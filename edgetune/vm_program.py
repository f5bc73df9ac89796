"""A function of a bundle's library in TVM's virtual machine: its inputs' memory, its weights, its outputs as arrays.

On the CPU, inputs, weights and outputs are NumPy's memory; a GPU has memory of its own, so that they are copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from edgetune.bundle import manifest as m
from edgetune.dtypes import BFLOAT16, EXTENDED, SMALL_INTEGERS, held, numpy_dtype, unheld
from edgetune.records import TensorSpec
from edgetune.tvm_runtime import engine

_SETTLED_RUNS = 2


class Program:
    """A function of the library for one combination of sizes, bound to its inputs' memory and its weights.

    Args:
        machine: a virtual machine over the library.
        entry: the function's inputs, outputs and weights.
        weights: all of the bundle's. tensors: the same where the function reads them.

    Attributes:
        buffers: the memory of each input, by name.
        exact: arrays may be copied into them without a look at their types.
        main: runs the function on the buffers; its result is for :meth:`take`.
    """

    def __init__(
        self, machine: Any, entry: m.ProgramEntry, weights: Sequence[np.ndarray], tensors: Sequence[Any]
    ) -> None:
        self.buffers = {item.name: _aligned_empty(item.spec()) for item in entry.inputs}
        self._arguments = [*self.buffers.values(), *(weights[index] for index in entry.weights)]
        # Small integers are widened in their buffers: of what type an array is has to be looked at.
        self.exact = not any(item.dtype in SMALL_INTEGERS for item in entry.inputs)
        inputs = self._inputs([as_tensor(buffer) for buffer in self.buffers.values()])
        # Bound once: handing over hundreds of weights at each call costs more than a small model.
        bound = f"edgetune_{entry.function}"
        machine["save_function"](
            entry.function, bound, 1, *inputs, *(tensors[index] for index in entry.weights)
        )
        self.main: Callable[[], Any] = machine[bound]
        self._runs = 0
        self._borrowed: set[int] = set()
        self._item = engine().get_global_func("ffi.ArrayGetItem")
        self._output_names = [item.name for item in entry.outputs]
        self._odd = {i: item.dtype for i, item in enumerate(entry.outputs) if item.dtype in EXTENDED}
        self._output_range = range(len(entry.outputs))
        self._earlier: Sequence[Any] = ()

    def _inputs(self, buffers: list[Any]) -> list[Any]:
        """What the function is given for the inputs: the buffers themselves."""
        return buffers

    def take(self, result: Any) -> dict[str, np.ndarray]:
        """The outputs as arrays, copied only where they are not fresh memory of this run.

        A model may return an input or a constant as it is. Constants show in the first two runs:
        the same memory is returned again while the first result is still held.
        """
        if self._odd:
            tensors = [result] if hasattr(result, "__dlpack__") else list(result)
            arrays = [_array(tensor, self._odd.get(index)) for index, tensor in enumerate(tensors)]
        elif hasattr(result, "__dlpack__"):
            arrays = [np.from_dlpack(result)]
        else:
            # Iterating over the result costs several times as much: microseconds, as small models do.
            item = self._item
            arrays = [np.from_dlpack(item(result, index)) for index in self._output_range]
        if self._runs < _SETTLED_RUNS:
            self._settle(arrays)
            return {name: array.copy() for name, array in zip(self._output_names, arrays, strict=True)}
        for index in self._borrowed:
            arrays[index] = arrays[index].copy()
        return dict(zip(self._output_names, arrays, strict=True))

    def _settle(self, arrays: Sequence[np.ndarray]) -> None:
        for index, array in enumerate(arrays):
            others = (*self._arguments, *self._earlier, *arrays[:index])
            if any(np.may_share_memory(array, other) for other in others):
                self._borrowed.add(index)
        self._runs += 1
        self._earlier = arrays if self._runs < _SETTLED_RUNS else ()


class DeviceProgram(Program):
    """The same on a device with memory of its own: inputs are copied there, and outputs from there.

    Args:
        machine, entry, weights: see :class:`Program`. tensors: the weights on the device.
        device: the device, as tvm-ffi has it.
    """

    def __init__(
        self,
        machine: Any,
        entry: m.ProgramEntry,
        weights: Sequence[np.ndarray],
        tensors: Sequence[Any],
        device: Any,
    ) -> None:
        self._device = device
        super().__init__(machine, entry, weights, tensors)
        run, self._copy = self.main, engine().get_global_func("runtime.TVMTensorCopyFromTo")

        def main() -> Any:
            for source, there in self._pairs:
                self._copy(source, there)
            return run()

        self.main = main

    def _inputs(self, buffers: list[Any]) -> list[Any]:
        self._pairs = [(buffer, on_device(buffer, self._device)) for buffer in buffers]
        return [there for _, there in self._pairs]

    def take(self, result: Any) -> dict[str, np.ndarray]:
        """The outputs as arrays of their own."""
        tensors = [result] if hasattr(result, "__dlpack__") else list(result)
        host = engine().device("cpu", 0)
        here = [on_device(tensor, host) for tensor in tensors]
        engine().get_global_func("runtime.Device_StreamSync")(self._device, 0)
        return {
            name: _array(tensor, self._odd.get(index))
            for index, (name, tensor) in enumerate(zip(self._output_names, here, strict=True))
        }


def as_tensor(array: np.ndarray) -> Any:
    """An array as the library takes it, in the same memory. NumPy's DLPack knows no bfloat16."""
    if array.dtype.name == BFLOAT16:
        return _viewed(engine().from_dlpack(array.view(np.uint16)), BFLOAT16)
    return engine().from_dlpack(held(array))


def on_device(tensor: Any, device: Any) -> Any:
    """A copy of a tensor in a device's memory."""
    allocate = engine().get_global_func("runtime.TVMTensorAllocWithScope")
    there = allocate(tensor.shape, tensor.dtype, device, None)
    engine().get_global_func("runtime.TVMTensorCopyFromTo")(tensor, there)
    return there


def _array(tensor: Any, dtype: str | None) -> np.ndarray:
    """A tensor of the library as an array of ``dtype``, its own one where that is None."""
    if dtype is None:
        return np.from_dlpack(tensor)
    return unheld(np.from_dlpack(_viewed(tensor, "uint16") if dtype == BFLOAT16 else tensor), dtype)


def _viewed(tensor: Any, dtype: str) -> Any:
    """The memory of a tensor as another type of the same size."""
    view = engine().get_global_func("runtime.TVMTensorCreateView")
    return view(tensor, engine().convert(tuple(tensor.shape)), dtype, 0)


def _aligned_empty(spec: TensorSpec) -> np.ndarray:
    """A zeroed array for an input, aligned as kernels expect (NumPy aligns to 16 bytes only).

    Small integers are widened when they are copied into it.
    """
    spec = replace(spec, dtype=SMALL_INTEGERS.get(spec.dtype, spec.dtype))
    size = m.Tensor.of(spec).size_bytes
    memory = np.zeros(size + m.ALIGNMENT_BYTES, np.uint8)
    start = -memory.ctypes.data % m.ALIGNMENT_BYTES
    return memory[start : start + size].view(numpy_dtype(spec.dtype)).reshape(spec.shape)
