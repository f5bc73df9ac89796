"""The side of ONNX Runtime, as fast as its CPU provider goes by itself."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from edgetune.errors import ModelError, first_line
from edgetune.sides.base import SideSpec

if TYPE_CHECKING:
    from edgetune.narrow import Widened

_NARROW = re.compile(r"tensor\((bfloat16|float8|float4|u?int[24]\))")
_NOISE = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")


class OnnxRuntimeSide:
    """Runs one session with all of ONNX Runtime's own optimisations and its defaults otherwise."""

    def __init__(self, spec: SideSpec) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = spec.threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 4  # fatal only: its errors arrive as exceptions
        self._name = f"ONNX Runtime {onnxruntime.__version__}"
        try:
            self._session, self._wide = _opened(spec.path, options)
        except Exception as error:
            raise ModelError(f"ONNX Runtime cannot load {spec.path}: {_reason(error)}") from error
        values = self._session.get_outputs() if self._wide is None else self._wide.original.graph.output
        self._outputs = [value.name for value in values]
        inputs = self._session.get_inputs() if self._wide is None else self._wide.original.graph.input
        names = {value.name for value in inputs}
        self._inputs = {name: array for name, array in spec.arrays().items() if name in names}
        self._asked = self._outputs
        if self._wide is not None:
            self._inputs = self._wide.feed(self._inputs)
            self._asked = self._wide.names(self._outputs)

    def run(self) -> dict[str, np.ndarray]:
        """Run once.

        Raises:
            ModelError: the model does not take these inputs.
        """
        try:
            values = self._session.run(self._asked, self._inputs)
        except Exception as error:
            raise ModelError(f"ONNX Runtime cannot run the model: {_reason(error)}") from error
        if self._wide is not None:
            return self._wide.result(self._outputs, values)
        return dict(zip(self._outputs, values, strict=True))

    def version(self) -> str:
        """ONNX Runtime's version."""
        return self._name


def _opened(path: str, options: Any) -> tuple[Any, Widened | None]:
    """A session, and what stands between it and NumPy where that lacks the type of an input or output.

    The casts are timed with the model, then. ONNX Runtime may run such a model with them alone.
    """
    import onnxruntime

    providers = ["CPUExecutionProvider"]
    try:
        session = onnxruntime.InferenceSession(path, options, providers=providers)
        if not any(_NARROW.match(v.type) for v in (*session.get_inputs(), *session.get_outputs())):
            return session, None
    except Exception:
        wide = _widened(path)
        if wide.model is wide.original:
            raise
    else:
        wide = _widened(path)
    data = wide.model.SerializeToString()
    return onnxruntime.InferenceSession(data, options, providers=providers), wide


def _widened(path: str) -> Widened:
    import onnx

    from edgetune.narrow import widen

    return widen(onnx.load(path))


def _reason(error: Exception) -> str:
    return _NOISE.sub("", first_line(error)).strip()[:400]


def open_side(spec: SideSpec) -> OnnxRuntimeSide:
    """Load the ONNX file at ``spec.path``."""
    return OnnxRuntimeSide(spec)
