"""Fixtures that several parts share: a small model compiled with stock TVM, and bundles of it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edgetune.records import Choice, CompareResult, CompiledModel, PreparedModel, Source, Task, TensorSpec

if TYPE_CHECKING:
    import onnx

    from edgetune.bundle.assemble import WrittenBundle
    from edgetune.targets import Target

os.environ.setdefault("TVM_NUM_THREADS", "2")


@dataclass(frozen=True)
class StandIn:
    """A model compiled without edgetune's own lowering, and all that a bundle of it needs."""

    onnx_model: onnx.ModelProto
    compiled: CompiledModel
    prepared: PreparedModel
    target: Target
    choices: tuple[Choice, ...]

    def write(self, out: Path, **options: Any) -> WrittenBundle:
        """Write the bundle without a check, or with the options given."""
        from edgetune.bundle.assemble import write_bundle

        options.setdefault("check", None)
        return write_bundle(out, self.compiled, self.prepared, self.target, self.choices, **options)


@pytest.fixture(scope="session", autouse=True)
def _settings_of_nobody(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Neither the settings nor the tuning logs of whoever runs the tests are read or written."""
    kept = {name: value for name, value in os.environ.items() if name.startswith(("EDGETUNE_", "XDG_"))}
    for name in kept:
        if name not in ("XDG_CACHE_HOME", "EDGETUNE_MODELS_CACHE"):
            del os.environ[name]
    home = tmp_path_factory.mktemp("home")
    os.environ |= {"XDG_CONFIG_HOME": str(home / "config"), "XDG_DATA_HOME": str(home / "data")}
    yield
    os.environ.pop("XDG_CONFIG_HOME")
    os.environ.pop("XDG_DATA_HOME")
    os.environ |= kept


def passed(_: Path) -> CompareResult:
    return CompareResult(True, (), "nothing")


def conv_model() -> onnx.ModelProto:
    """Two inputs, two outputs, three weights of 216, 8 and 1 values."""
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(7)
    kernel = rng.standard_normal((8, 3, 3, 3)).astype(np.float32)
    bias = rng.standard_normal(8).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "kernel", "bias"], ["conv"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["conv"], ["relu"]),
        helper.make_node("Mul", ["relu", "scale"], ["y"]),
        helper.make_node("GlobalAveragePool", ["y"], ["mean"]),
        helper.make_node("Add", ["mean", "offset"], ["pooled"]),
    ]
    graph = helper.make_graph(
        nodes,
        "conv",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 16, 16]),
            helper.make_tensor_value_info("scale", TensorProto.FLOAT, [1]),
        ],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 16, 16]),
            helper.make_tensor_value_info("pooled", TensorProto.FLOAT, [1, 8, 1, 1]),
        ],
        [
            numpy_helper.from_array(kernel, "kernel"),
            numpy_helper.from_array(bias, "bias"),
            numpy_helper.from_array(np.array([0.5], np.float32), "offset"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def compile_stand_in(model: onnx.ModelProto, target: Target, work: Path) -> StandIn:
    """Compile with TVM's importer and default pipeline: slow code, the right calling convention."""
    import onnxruntime
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx  # noqa: TID251  # a test must not lean on the stage

    from edgetune.toolchain import link_shared_fcompile

    module = from_onnx(model, keep_params_in_input=True)
    module, params = relax.frontend.detach_params(module)
    executable = tvm.compile(module, target.tvm())
    library = work / "stand_in.so"
    executable.export_library(str(library), fcompile=link_shared_fcompile(target))

    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    inputs = {
        item.name: rng.standard_normal(item.shape).astype(_dtype(item.type)) for item in session.get_inputs()
    }
    names = [item.name for item in session.get_outputs()]
    outputs = dict(zip(names, session.run(names, inputs), strict=True))
    specs_in = tuple(TensorSpec(name, array.dtype.name, array.shape) for name, array in inputs.items())
    specs_out = tuple(TensorSpec(name, array.dtype.name, array.shape) for name, array in outputs.items())
    data = model.SerializeToString()
    prepared = PreparedModel(
        name=model.graph.name,
        sha256=hashlib.sha256(data).hexdigest(),
        onnx=data,
        inputs=specs_in,
        outputs=specs_out,
        reference_inputs=inputs,
        reference_outputs=outputs,
    )
    weights = tuple(item.numpy() for item in params.get("main", ()))
    compiled = CompiledModel(library.read_bytes(), weights, specs_in, specs_out)
    task = Task("conv2d", "0123456789abcdef", "{}", flops=8 * 16 * 16 * 27 * 2)
    return StandIn(model, compiled, prepared, target, (Choice(task, Source.RECORD, trace="[]", best_s=1e-5),))


def _dtype(onnx_type: str) -> str:
    name = onnx_type.removeprefix("tensor(").removesuffix(")")
    return {"float": "float32", "double": "float64"}.get(name, name)


@pytest.fixture(scope="session")
def local_target() -> Target:
    from edgetune.targets import detect_local

    return detect_local()


@pytest.fixture(scope="session")
def conv_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small convolution network as an ONNX file."""
    import onnx

    path = tmp_path_factory.mktemp("model") / "conv.onnx"
    onnx.save(conv_model(), path)
    return path


@pytest.fixture(scope="session")
def stand_in(local_target: Target, tmp_path_factory: pytest.TempPathFactory) -> StandIn:
    """The small convolution network, compiled for this machine."""
    return compile_stand_in(conv_model(), local_target, tmp_path_factory.mktemp("stand_in"))


@pytest.fixture(scope="session")
def compile_model(
    local_target: Target, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[onnx.ModelProto], StandIn]:
    """Compiles another small model in the same way."""
    return lambda model: compile_stand_in(model, local_target, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def shared_bundle(stand_in: StandIn, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of ``stand_in`` for tests that only read it."""
    return stand_in.write(tmp_path_factory.mktemp("bundle") / "conv", check=passed).path


@pytest.fixture
def bundle(stand_in: StandIn, tmp_path: Path) -> Path:
    """A bundle of ``stand_in`` of the test's own, to damage at will."""
    return stand_in.write(tmp_path / "conv", check=passed).path


@pytest.fixture
def run_cli(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs the command line in this process: exit code, stdout, stderr."""

    def run(*args: str) -> tuple[int, str, str]:
        from edgetune.cli.main import main

        capfd.readouterr()
        code = main(args)
        return code, *capfd.readouterr()

    return run
