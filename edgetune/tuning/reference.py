"""What a kernel should compute: its unscheduled loops, compiled for this machine and run once.

Runs in a worker process of this machine, whatever the device is: every candidate for every device is
compared with the same values, and no device loses time on unscheduled loops.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from edgetune.targets import detect_local
from edgetune.tuning.arguments import ArgumentSpec, argument_specs, random_arguments
from edgetune.tuning.build import ENTRY, cached_module

if TYPE_CHECKING:
    import tvm


def reference_outputs(
    workload: str, ir: str | None
) -> tuple[tuple[ArgumentSpec, ...], dict[int, np.ndarray]]:
    """Return a kernel's arguments, and its results by position for the workload's random arguments.

    Runs in a worker; ``ir`` as for ``build_candidate``.

    Raises:
        Exception: the kernel cannot be compiled as it stands, or has no static shapes.
    """
    import tvm

    mod = cached_module(workload, ir)
    specs = argument_specs(mod[ENTRY])
    built = tvm.tirx.build(mod, target=_host())
    tensors = [tvm.runtime.tensor(value) for value in random_arguments(specs, workload)]
    built[ENTRY](*tensors)
    return specs, {index: tensors[index].numpy() for index, spec in enumerate(specs) if spec.written}


@functools.cache
def _host() -> tvm.target.Target:
    return detect_local().host.tvm()
