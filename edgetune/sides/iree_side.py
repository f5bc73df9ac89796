"""The side of IREE, compiled for this machine's CPU at its highest level of optimisation."""

from __future__ import annotations

import importlib.metadata
import sys
import sysconfig
from pathlib import Path

import numpy as np

from edgetune.errors import ModelError
from edgetune.sides.base import SideSpec
from edgetune.sides.converting import import_peer, run_converter

_OPSET = "17"
"""What IREE's importer knows best; it raises older models to it first."""


def convert(spec: SideSpec, folder: Path) -> Path:
    """The model as a module of IREE's virtual machine, with its code for this CPU inside."""
    import_peer("iree.compiler", "IREE")
    imported, made = folder / "model.mlir", folder / "model.vmfb"
    run_converter(
        [
            sys.executable,
            "-m",
            "iree.compiler.tools.import_onnx",
            spec.path,
            "--opset-version",
            _OPSET,
            "-o",
            imported,
        ],
        "IREE",
        imported,
    )
    compiler = Path(sysconfig.get_path("scripts"), "iree-compile")
    options = ["--iree-input-type=onnx", "--iree-hal-target-backends=llvm-cpu"]
    options += ["--iree-llvmcpu-target-cpu=host", "--iree-opt-level=O3"]
    return run_converter([compiler, imported, *options, "-o", made], "IREE", made)


class IreeSide:
    """Calls the module's one function."""

    def __init__(self, spec: SideSpec) -> None:
        runtime = import_peer("iree.runtime", "IREE")
        self._name = f"IREE {importlib.metadata.version('iree-base-runtime')}"
        if spec.threads > 1:
            runtime.flags.parse_flags(f"--task_topology_group_count={spec.threads}")
        context = runtime.SystemContext(
            config=runtime.Config("local-task" if spec.threads > 1 else "local-sync")
        )
        module = runtime.VmModule.mmap(context.instance, spec.path)
        context.add_vm_module(module)
        names = [name for name in module.function_names if name[:2] != "__" and not name.endswith("$async")]
        if len(names) != 1:
            raise ModelError(f"IREE's module has {len(names)} functions in place of one: {', '.join(names)}")
        self._call = context.modules[module.name][names[0]]
        arrays = spec.arrays()
        self._inputs = [arrays[name] for name in spec.input_names]
        self._outputs = spec.output_names

    def run(self) -> dict[str, np.ndarray]:
        """Run once."""
        values = self._call(*self._inputs)
        listed = values if isinstance(values, list | tuple) else (values,)
        return {name: value.to_host() for name, value in zip(self._outputs, listed, strict=True)}

    def version(self) -> str:
        """IREE's version."""
        return self._name


def open_side(spec: SideSpec) -> IreeSide:
    """Load the compiled module at ``spec.path``."""
    return IreeSide(spec)
