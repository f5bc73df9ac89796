"""Compiles single nodes and compares them with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import NodeProto, helper, numpy_helper

from edgetune.records import PreparedModel, TensorSpec


class Checker:
    """Runs graphs of a few nodes through lowering and compilation, and through ONNX Runtime."""

    def __init__(self, target: Any, folder: Path) -> None:
        self.target = target
        self.folder = folder
        self.count = 0

    def model(
        self,
        nodes: Sequence[NodeProto],
        inputs: Mapping[str, np.ndarray],
        weights: Mapping[str, np.ndarray],
        opset: int,
    ) -> onnx.ModelProto:
        produced = [name for node in nodes for name in node.output if name]
        read = {name for node in nodes for name in node.input}
        kind = onnx.helper.np_dtype_to_tensor_dtype
        graph = helper.make_graph(
            nodes,
            "nodes",
            [helper.make_tensor_value_info(n, kind(a.dtype), a.shape) for n, a in inputs.items()],
            [onnx.ValueInfoProto(name=name) for name in produced if name not in read],
            [numpy_helper.from_array(a, n) for n, a in weights.items()],
        )
        imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=10)

    def expected(
        self, model: onnx.ModelProto, inputs: Mapping[str, np.ndarray], precise: bool = False
    ) -> dict[str, np.ndarray]:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        if precise:
            # Processors without dot-product instructions else sum products of uint8 and int8 in saturating int16.
            options.add_session_config_entry("session.x64quantprecision", "1")
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        names = [item.name for item in session.get_outputs()]
        return dict(zip(names, session.run(names, dict(inputs)), strict=True))

    def prepared(self, model: onnx.ModelProto, outputs: Mapping[str, np.ndarray]) -> PreparedModel:
        """The model as it is, without the passes that prepare one."""
        inputs = tuple(
            TensorSpec(
                value.name,
                helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).name,
                tuple(d.dim_value for d in value.type.tensor_type.shape.dim),
            )
            for value in model.graph.input
        )
        specs = tuple(TensorSpec(name, array.dtype.name, array.shape) for name, array in outputs.items())
        return PreparedModel("nodes", "0" * 64, model.SerializeToString(), inputs, specs)

    def compiled(
        self, model: onnx.ModelProto, outputs: Mapping[str, np.ndarray]
    ) -> Callable[..., list[np.ndarray]]:
        import tvm
        from tvm import relax

        from edgetune.graph.compile import compile_model
        from edgetune.graph.lower import lower

        prepared = self.prepared(model, outputs)
        compiled = compile_model(lower(prepared, self.target), (), self.target)
        # The loader keeps libraries by path: each needs its own.
        self.count += 1
        path = self.folder / f"model{self.count}.so"
        path.write_bytes(compiled.library)
        machine = relax.VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cpu())
        weights = [tvm.runtime.tensor(array) for array in compiled.weights]

        def run(given: Mapping[str, np.ndarray]) -> list[np.ndarray]:
            arrays = [
                tvm.runtime.tensor(np.ascontiguousarray(given[spec.name]).reshape(spec.shape))
                for spec in prepared.inputs
            ]
            result = machine["main"](*arrays, *weights)
            return [result.numpy()] if hasattr(result, "numpy") else [item.numpy() for item in result]

        return run

    def __call__(
        self,
        nodes: NodeProto | Sequence[NodeProto],
        inputs: Mapping[str, np.ndarray],
        weights: Mapping[str, np.ndarray] | None = None,
        opset: int = 17,
        rtol: float = 1e-4,
        atol: float = 1e-5,
        steps: int = 0,
        precise: bool = False,
    ) -> None:
        """Fail where a value differs by more than the tolerance; integers by more than ``steps``.

        ``precise``: the model multiplies uint8 by int8.
        """
        nodes = [nodes] if isinstance(nodes, NodeProto) else list(nodes)
        model = self.model(nodes, inputs, weights or {}, opset)
        expected = self.expected(model, inputs, precise)
        results = self.compiled(model, expected)(inputs)
        for (name, want), got in zip(expected.items(), results, strict=True):
            assert got.shape == want.shape, name
            assert got.dtype == want.dtype, name
            if want.dtype.kind in "biu":
                apart = np.abs(want.astype(np.int64) - got.astype(np.int64))
                assert apart.max(initial=0) <= steps, f"{name}: {want}\n{got}"
            else:
                np.testing.assert_allclose(got, want, rtol, atol, err_msg=name)


@pytest.fixture(scope="session")
def matches_onnxruntime(tmp_path_factory: pytest.TempPathFactory) -> Checker:
    """Asserts that nodes give what ONNX Runtime gives."""
    from edgetune.targets import detect_local

    return Checker(detect_local(threads=1), tmp_path_factory.mktemp("nodes"))
