"""MetaSchedule's tune context without its slow start, and traces as JSON text.

``tvm.s_tir.meta_schedule.TuneContext(...)`` imports every tensor intrinsic that TVM ships and parses
them from TVMScript: 10 to 40 seconds of a process's life. Only design spaces made by TVM's own rules
for VNNI, dot-product and tensor-core targets need them, and edgetune has none.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tvm
    from tvm.s_tir import Schedule
    from tvm.s_tir.meta_schedule import TuneContext
    from tvm.s_tir.meta_schedule.search_strategy import SearchStrategy
    from tvm.s_tir.meta_schedule.space_generator import SpaceGenerator
    from tvm.s_tir.schedule import Trace

_LOGGER = logging.getLogger("edgetune.metaschedule")


def tune_context(
    mod: tvm.IRModule,
    target: tvm.target.Target,
    space_generator: SpaceGenerator,
    strategy: SearchStrategy | None = None,
    *,
    seed: int = 1,
    threads: int = 1,
) -> TuneContext:
    """Return an initialised ``TuneContext``.

    Args:
        mod: one PrimFunc named ``main``.
        target: must say ``num-cores``.
        space_generator, strategy: MetaSchedule objects; they become bound to this context.
        seed: 1 to 2**31 - 2; the same seed and number of threads give the same search.
        threads: for MetaSchedule's own parallel loops.
    """
    from tvm.s_tir.meta_schedule import _ffi_api
    from tvm.s_tir.meta_schedule.logging import get_logging_func

    context = _ffi_api.TuneContext(
        mod, target, space_generator, strategy, "main", threads, seed, get_logging_func(_LOGGER)
    )
    _ffi_api.TuneContextInitialize(context)
    return context


def trace_text(trace: Trace) -> str:
    """Return a trace, decisions included, as compact JSON: the form that records keep."""
    return json.dumps(_plain(trace.as_json()), separators=(",", ":"))


def apply_trace(trace: str, mod: tvm.IRModule) -> Schedule:
    """Return ``mod`` scheduled by a trace given as JSON text.

    Raises:
        Exception: whatever TVM raises where the trace does not fit the module.
    """
    from tvm.s_tir import Schedule
    from tvm.s_tir.schedule import Trace

    schedule = Schedule(mod, debug_mask=0, error_render_level="none")
    Trace.apply_json_to_schedule(json.loads(trace), schedule)
    return schedule


def _plain(value: Any) -> Any:
    """Turn TVM's containers and constants into what ``json`` knows."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if hasattr(value, "items"):
        return {str(key): _plain(item) for key, item in value.items()}
    if hasattr(value, "value"):  # IntImm, FloatImm
        return _plain(value.value)
    return [_plain(item) for item in value]
