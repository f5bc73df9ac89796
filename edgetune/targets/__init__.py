"""Targets: what kernels are compiled for.

==============  ============================================================================
``target.py``   the description: a CPU, or a GPU with the CPU that drives it
``files.py``    the shipped ``targets/*.toml`` and the user's own
``llvm.py``     which CPUs and features LLVM knows
``detect.py``   this machine as a target
``remote.py``   another machine as a target, from what it says of itself
==============  ============================================================================

Importing this package imports pydantic, but not TVM.
"""

from edgetune.targets.files import LOCAL, detect_local, list_targets, load_target, to_toml, write_target
from edgetune.targets.target import DeviceFacts, Gpu, Target, Toolchain

__all__ = [
    "LOCAL",
    "DeviceFacts",
    "Gpu",
    "Target",
    "Toolchain",
    "detect_local",
    "list_targets",
    "load_target",
    "to_toml",
    "write_target",
]
