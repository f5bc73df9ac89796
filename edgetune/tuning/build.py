"""Compiles a candidate: trace -> scheduled kernel -> object -> shared library for the target.

What is here runs in worker processes (:mod:`edgetune.tuning.workers`), because TVM and LLVM abort the
process on some schedules and compile for ever on others. :mod:`edgetune.tuning.builder` is the caller.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from edgetune.cuda import leave_sources, pack_imports
from edgetune.metaschedule import apply_trace
from edgetune.targets import Target
from edgetune.toolchain import link_shared_fcompile

if TYPE_CHECKING:
    import tvm

ENTRY = "main"
"""The kernel's function in a built library."""

_modules: dict[str, tvm.IRModule] = {}
_targets: dict[str, tvm.target.Target] = {}


def build_candidate(workload: str, ir: str | None, target: Target, trace: str) -> bytes:
    """Compile one candidate and return the shared library.

    Args:
        workload: names the kernel in this worker's cache.
        ir: the kernel as TVM JSON; None when this worker has had it before.
        target: what to compile for.
        trace: the schedule as JSON; empty for the kernel as it is.

    Raises:
        Exception: whatever TVM raises where the schedule does not apply or does not compile.
    """
    import tvm
    from tvm.s_tir import Schedule

    leave_sources(target)
    mod = cached_module(workload, ir)
    schedule = apply_trace(trace, mod) if trace else Schedule(mod)
    return library_of(tvm.tirx.build(schedule.mod, target=_tvm_target(target)), target)


def cached_module(workload: str, ir: str | None) -> tvm.IRModule:
    """Parse a kernel, once for each worker."""
    import tvm

    if workload not in _modules:
        if ir is None:
            raise ValueError(f"kernel {workload} was not sent to this worker")
        _modules[workload] = entry_module(tvm.ir.load_json(ir))
    return _modules[workload]


def entry_module(mod: tvm.IRModule) -> tvm.IRModule:
    """Name the kernel's function ``main`` for the outside, whatever the graph called it."""
    import tvm

    return tvm.IRModule({ENTRY: mod[ENTRY].with_attr("global_symbol", ENTRY).with_attr("tirx.noalias", True)})


def library_of(built: tvm.runtime.Module, target: Target) -> bytes:
    """Link a built module into a shared library for its target."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.so"
        built.export_library(
            str(path), fcompile=link_shared_fcompile(target), fpack_imports=pack_imports(target)
        )
        return path.read_bytes()


def _tvm_target(target: Target) -> tvm.target.Target:
    if target.fingerprint not in _targets:
        _targets[target.fingerprint] = target.tvm()
    return _targets[target.fingerprint]
