"""A compiled model as a function of arrays, in this process: for tests and benchmarks, that need no bundle."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import tvm

from edgetune.records import CompiledModel
from edgetune.tvm_runtime import start_machine


def loaded(compiled: CompiledModel) -> Callable[[Sequence[np.ndarray]], list[np.ndarray]]:
    """The model as a function of arrays, in the order of its inputs and outputs."""
    # The loader keeps libraries by path: each needs its own.
    with tempfile.TemporaryDirectory(prefix="edgetune-") as folder:
        path = Path(folder, "model.so")
        path.write_bytes(compiled.library)
        main = start_machine(tvm.runtime.load_module(str(path)))["main"]
    weights = [tvm.runtime.tensor(array) for array in compiled.weights]

    def run(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        # Not ascontiguousarray, which makes a vector of a scalar.
        given = [tvm.runtime.tensor(np.asarray(array, order="C")) for array in arrays]
        result = main(*given, *weights)
        return [result.numpy()] if hasattr(result, "numpy") else [item.numpy() for item in result]

    return run
