"""Hardware-aware tuning of ONNX models for edge devices, on Apache TVM.

The functions are the twins of the commands (``edgetune tune`` is :func:`edgetune.tune`) and return
the objects that ``--json`` prints. Importing this module imports nothing else: each name below is
fetched from its module when it is first used, so that ``edgetune.load`` needs no compiler.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgetune.api import benchmark, check, compare, compile, tune
    from edgetune.benchmarking.results import BenchmarkResult
    from edgetune.checking import CheckResult
    from edgetune.errors import (
        BudgetError,
        BundleError,
        DeviceError,
        EdgetuneError,
        LogsError,
        MismatchError,
        ModelError,
        OutputError,
        TargetError,
        ToolchainError,
        TuningError,
        UnsupportedModelError,
        UsageError,
    )
    from edgetune.records import CompareResult
    from edgetune.results import CompileResult, TuneResult
    from edgetune.runtime import LoadedModel, load
    from edgetune.watcher import Watcher

__version__ = "0.1.0"

# ONNX Runtime from 1.29 on sends usage data and writes an identifier into ~/.cache, unless this says no before it is
# first imported. Child processes inherit it; who sets it to 0 has chosen.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

_HOME = {
    **dict.fromkeys(("benchmark", "check", "compare", "compile", "tune"), "edgetune.api"),
    "BenchmarkResult": "edgetune.benchmarking.results",
    "CheckResult": "edgetune.checking",
    "CompareResult": "edgetune.records",
    **dict.fromkeys(("CompileResult", "TuneResult"), "edgetune.results"),
    **dict.fromkeys(("LoadedModel", "load"), "edgetune.runtime"),
    "Watcher": "edgetune.watcher",
}
"""Where a public name is defined; the others are errors."""

__all__ = [
    "BenchmarkResult",
    "BudgetError",
    "BundleError",
    "CheckResult",
    "CompareResult",
    "CompileResult",
    "DeviceError",
    "EdgetuneError",
    "LoadedModel",
    "LogsError",
    "MismatchError",
    "ModelError",
    "OutputError",
    "TargetError",
    "ToolchainError",
    "TuneResult",
    "TuningError",
    "UnsupportedModelError",
    "UsageError",
    "Watcher",
    "__version__",
    "benchmark",
    "check",
    "compare",
    "compile",
    "load",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'edgetune' has no attribute {name!r}")
    value = getattr(import_module(_HOME.get(name, "edgetune.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
