"""The side of ncnn on the CPU, held to float32: by itself it stores weights and activations in 16 bits.

Models are converted by pnnx, a program of its own: of its Python package only that program is used, which needs
nothing of what the package depends on ("pip install --no-deps pnnx").
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import numpy as np

from edgetune.errors import ModelError, UsageError
from edgetune.sides.base import SideSpec
from edgetune.sides.converting import import_peer, run_converter

_INPUT = re.compile(r'ex\.input\("(\w+)", ncnn\.Mat\(\w+\.numpy\(\)(?:, batch_index=(\d+))?\)')
_OUTPUT = re.compile(r'_, (\w+) = ex\.extract\("\w+"\)')
_BATCH = re.compile(r"(out\d+)\.numpy\(batch_index=(\d+)\)")


def convert(spec: SideSpec, folder: Path) -> Path:
    """The model as ncnn's parameters and weights, beside the script that says how tensors are given."""
    import_peer("ncnn", "ncnn")
    found = importlib.util.find_spec("pnnx")
    if found is None or found.origin is None:
        raise UsageError('ncnn needs the converter pnnx; install it with "pip install --no-deps pnnx"')
    program = Path(found.origin).with_name("pnnx")
    model = folder / "model.onnx"
    model.symlink_to(Path(spec.path).resolve())
    arrays = spec.arrays()
    shapes = ",".join(str(list(arrays[name].shape)).replace(" ", "") for name in spec.input_names)
    # A device's name keeps it from looking for graphics cards.
    command: list[str | Path] = [program, model, f"inputshape={shapes}", "fp16=0", "device=cpu"]
    return run_converter(command, "ncnn (pnnx)", folder / "model.ncnn.param")


class NcnnSide:
    """Runs one extractor a run, as ncnn's interface asks."""

    def __init__(self, spec: SideSpec) -> None:
        ncnn = import_peer("ncnn", "ncnn")
        self._ncnn = ncnn
        self._name = f"ncnn {ncnn.__version__}"
        self._net = net = ncnn.Net()
        net.opt.num_threads = spec.threads
        net.opt.use_vulkan_compute = False
        for name in ("use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic", "use_bf16_storage"):
            setattr(net.opt, name, False)
        if net.load_param(spec.path) or net.load_model(str(Path(spec.path).with_suffix(".bin"))):
            raise ModelError("ncnn cannot load the converted model: it has layers that ncnn lacks")
        script = Path(spec.path).with_name("model_ncnn.py").read_text(encoding="utf-8")
        inputs, arrays = _INPUT.findall(script), spec.arrays()
        outputs = _OUTPUT.findall(script)
        if len(inputs) != len(spec.input_names) or len(outputs) != len(spec.output_names):
            raise ModelError(
                f"ncnn (pnnx) made {len(inputs)} inputs and {len(outputs)} outputs of a model with "
                f"{len(spec.input_names)} and {len(spec.output_names)}"
            )
        self._inputs = [
            (name, arrays[own], {"batch_index": int(batch)} if batch else {})
            for own, (name, batch) in zip(spec.input_names, inputs, strict=True)
        ]
        batches = {name: {"batch_index": int(batch)} for name, batch in _BATCH.findall(script)}
        self._outputs = [
            (own, name, batches.get(name, {})) for own, name in zip(spec.output_names, outputs, strict=True)
        ]

    def run(self) -> dict[str, np.ndarray]:
        """Run once."""
        with self._net.create_extractor() as extractor:
            for name, array, options in self._inputs:
                extractor.input(name, self._ncnn.Mat(array, **options))
            results = {}
            for own, name, options in self._outputs:
                failed, value = extractor.extract(name)
                if failed:
                    raise ModelError(f"ncnn cannot compute output {own!r}: code {failed}")
                results[own] = np.array(value.numpy(**options))
            return results

    def version(self) -> str:
        """Name and version."""
        return self._name


def open_side(spec: SideSpec) -> NcnnSide:
    """Load the converted model at ``spec.path``."""
    return NcnnSide(spec)
