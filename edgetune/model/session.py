"""ONNX Runtime on the CPU: what a model's values should be."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto

from edgetune import narrow
from edgetune.errors import ModelError, first_line
from edgetune.model.graphs import walk_nodes

Arrays = dict[str, np.ndarray[Any, Any]]

DEADLINE_S = 60
"""Of one run of a model with a Loop, which may have no end. ONNX Runtime looks between two nodes whether to stop."""

_SIGNATURE = r"[\w:<>,&*~ ]*::[\w~]+(?:\[abi:\w+\])?\((?:[^()]|\([^()]*\))*\)(?: const)?(?: \[with [^\]]*\])?"
_NOISE = re.compile(
    rf"\[ONNXRuntimeError\] : \d+ : \w+ : |\S*\b\w[\w.]*\.(?:cc|h|cpp):\d+ (?:{_SIGNATURE}|\w+) "
)
"""Codes; where in ONNX Runtime's sources an error was made, with the function's signature or its bare name."""

_INPUTS_READ = {("com.microsoft", "QLinearSigmoid"): 5, ("com.microsoft", "QLinearLeakyRelu"): 5}
"""Operators of which ONNX Runtime 1.32 reads so many inputs, and ends the process where a node has fewer."""


class StoppedError(ModelError):
    """ONNX Runtime did not come to an end."""


def stopped() -> StoppedError:
    """The error of a run that was ended at its deadline."""
    return StoppedError(
        f"ONNX Runtime, the reference, was still running the model after {DEADLINE_S} s, and was stopped; "
        "look for a Loop that never ends, or choose smaller shapes (--shape)"
    )


class Session:
    """One model loaded into ONNX Runtime.

    Optimisation stops at the level that keeps the standard's semantics exactly (constant folding,
    removal of redundant nodes): fused kernels may round otherwise. Not for use from several threads.
    """

    def __init__(self, model: ModelProto | bytes, *, optimize: bool = True) -> None:
        """Load ``model``.

        Raises:
            ModelError: ONNX Runtime refuses it, or would end the process.
        """
        import onnxruntime as ort

        level = ort.GraphOptimizationLevel
        options = ort.SessionOptions()
        options.log_severity_level = 4  # fatal only: its errors arrive as exceptions
        options.intra_op_num_threads = 2
        options.inter_op_num_threads = 1
        options.graph_optimization_level = level.ORT_ENABLE_BASIC if optimize else level.ORT_DISABLE_ALL
        # Threads of an idle session must not spin while TVM is measuring.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        proto = ModelProto.FromString(model) if isinstance(model, bytes) else model
        _check_inputs(proto)
        self.output_names: tuple[str, ...] = tuple(value.name for value in proto.graph.output)
        self._wide = narrow.widen(proto)
        self._may_loop = any(node.op_type == "Loop" for node in walk_nodes(proto.graph)) or bool(
            proto.functions
        )
        try:
            data = self._wide.model.SerializeToString()
            self._session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise ModelError(
                f"ONNX Runtime, the reference, cannot load the model: {reason(error)}"
            ) from error

    def run(self, inputs: Mapping[str, np.ndarray[Any, Any]], outputs: Sequence[str] | None = None) -> Arrays:
        """Outputs by name.

        Raises:
            ModelError: the model does not run on these inputs.
            StoppedError: it has a Loop, and ran for longer than ``DEADLINE_S``.
        """
        import onnxruntime as ort

        names = list(self.output_names if outputs is None else outputs)
        ended = ort.RunOptions()
        watch = threading.Timer(DEADLINE_S, setattr, (ended, "terminate", True))
        watch.daemon = True
        if self._may_loop:
            watch.start()
        try:
            values = self._session.run(self._wide.names(names), self._wide.feed(inputs), ended)
        except Exception as error:
            if ended.terminate:
                raise stopped() from error
            raise ModelError(
                f"ONNX Runtime, the reference, cannot run the model on these inputs: {reason(error)}; "
                "check the shapes (--shape) and the fixed values (--freeze)"
            ) from error
        finally:
            watch.cancel()
        return self._wide.result(names, [np.asarray(value) for value in values])

    def declared_outputs(self) -> dict[str, tuple[str, tuple[int | str | None, ...]]]:
        """Type name (``tensor(float)``) and dimensions that ONNX Runtime infers for each output."""
        declared = zip(self.output_names, self._session.get_outputs(), strict=True)
        return {name: (value.type, tuple(value.shape)) for name, value in declared}


def _check_inputs(model: ModelProto) -> None:
    for node in walk_nodes(model.graph):
        needed = _INPUTS_READ.get((node.domain, node.op_type), 0)
        if len(node.input) < needed:
            name = node.name or node.output[0]
            raise ModelError(
                f"ONNX Runtime, the reference, cannot load the model: {node.op_type} {name!r} has {len(node.input)} "
                f"inputs and needs {needed}; write its last zero point out"
            )


def reason(error: Exception) -> str:
    """The first line of an ONNX Runtime error, without its codes and places in its sources."""
    return _NOISE.sub("", first_line(error)).strip().rstrip(".")[:400]
