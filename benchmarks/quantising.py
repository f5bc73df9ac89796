"""Quantises a model to 8 bits with ONNX Runtime's own tools, on random data that is the same in every run."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import edgetune  # noqa: F401  # before onnxruntime, whose telemetry it switches off

# isort: split
import numpy as np
import onnx
from onnx import version_converter
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from edgetune.model.prepare import prepare
from edgetune.model.registry import RegisteredModel

BATCHES = 4
"""Calibration runs: enough for the ranges of random inputs."""
_OPSET = 13
"""The first one in which weights may have a scale for each output channel."""


class _Random(CalibrationDataReader):
    """Standard normal inputs."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._batches = self._draw(model)

    def get_next(self) -> dict[str, np.ndarray] | None:
        """The next batch; None after the last."""
        return next(self._batches, None)

    @staticmethod
    def _draw(model: onnx.ModelProto) -> Iterator[dict[str, np.ndarray]]:
        generator = np.random.default_rng(0)
        for _ in range(BATCHES):
            yield {
                value.name: generator.standard_normal(
                    [d.dim_value for d in value.type.tensor_type.shape.dim], np.float32
                )
                for value in model.graph.input
            }


def quantise(entry: RegisteredModel, source: Path, folder: Path, form: str) -> Path:
    """Write the model quantised: uint8 activations, int8 weights with a scale for each output channel.

    Args:
        entry: the model's shapes and settings.
        source: its float ONNX file.
        folder: where the result and what comes before it are put.
        form: ``QDQ`` or ``QOperator``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    logging.getLogger().setLevel(logging.ERROR)  # the tools warn of what they leave as it is
    fixed = onnx.load_from_string(
        prepare(source, shapes=entry.shapes or None, freeze=entry.freeze or None).onnx
    )
    if max(item.version for item in fixed.opset_import if not item.domain) < _OPSET:
        fixed = version_converter.convert_version(fixed, _OPSET)
    first, ready = folder / f"{entry.name}-fixed.onnx", folder / f"{entry.name}-ready.onnx"
    out = folder / f"{entry.name}-{form}.onnx"
    onnx.save(fixed, first)
    quant_pre_process(str(first), str(ready))
    quantize_static(
        str(ready), str(out), _Random(fixed), quant_format=QuantFormat[form], per_channel=True,
        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
    )  # fmt: skip
    return out
