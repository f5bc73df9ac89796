"""Real and small models as standalone libraries against ONNX Runtime, and what cannot be one."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import edgetune
from edgetune.errors import UnsupportedModelError, UsageError
from edgetune.model import registry
from edgetune.standalone.build import ARCHIVE
from edgetune.standalone.model import StandaloneModel
from edgetune.targets import Target
from tests.standalone.conftest import run, system_compiler, target_for
from tests.standalone.contents import check_contents
from tests.standalone.examples import example


@pytest.mark.parametrize("name", ["ppocr-cls", "silero-vad-16k-op15"])
def test_real_models_match_onnx_runtime(name: str, tmp_path: Path) -> None:
    entry = registry.get(name)
    result = edgetune.compile(
        registry.fetch(name),
        shapes=entry.shapes,
        freeze=entry.freeze,
        out=tmp_path / "model",
        standalone=True,
    )
    assert result.verified is not None
    assert result.verified.passed
    assert edgetune.compare(result.bundle).passed
    model = edgetune.load(result.bundle)
    assert isinstance(model, StandaloneModel)
    check_contents(result.bundle / "model.so")
    if name == "ppocr-cls":
        assert (result.bundle / "model.so").stat().st_size < 300_000


def odd_model() -> onnx.ModelProto:
    """Outputs that are an input, a constant, each other, and a reshaped value that is read again."""
    nodes = [
        helper.make_node("Add", ["x", "k"], ["sum"]),
        helper.make_node("Reshape", ["sum", "shape"], ["flat"]),
        helper.make_node("Relu", ["flat"], ["y"]),
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("Identity", ["flat"], ["again"]),
        helper.make_node("Identity", ["k"], ["constant"]),
    ]
    rng = np.random.default_rng(1)
    initializers = [
        onnx.numpy_helper.from_array(rng.standard_normal((3, 4)).astype(np.float32), "k"),
        onnx.numpy_helper.from_array(np.array([12], np.int64), "shape"),
    ]
    shapes = {"flat": [12], "y": [12], "same": [3, 4], "again": [12], "constant": [3, 4]}
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4])]
    graph = helper.make_graph(nodes, "odd", inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def dense_block() -> onnx.ModelProto:
    """Parts joined once, joined again inside another whole, and joined a third time, which takes a copy.

    Their channels fill the vectors of any CPU.
    """
    rng = np.random.default_rng(2)
    edges = {
        "a": ("x", 32),
        "b": ("a", 32),
        "c": ("a", 48),
        "d": ("j1", 16),
        "e": ("j2", 32),
        "y": ("j3", 16),
    }
    joins = {"j1": ("b", "c"), "j2": ("j1", "d"), "j3": ("b", "e")}
    channels, nodes, weights = {"x": 16}, [], []
    for name in ("a", "b", "c", "j1", "d", "j2", "e", "j3", "y"):
        if name in joins:
            channels[name] = sum(channels[part] for part in joins[name])
            nodes.append(helper.make_node("Concat", joins[name], [name], axis=1))
            continue
        source, channels[name] = edges[name]
        weight = rng.standard_normal((channels[name], channels[source], 1, 1)).astype(np.float32)
        weights.append(onnx.numpy_helper.from_array(weight / channels[source] ** 0.5, f"w{name}"))
        nodes.append(helper.make_node("Conv", [source, f"w{name}"], [name]))
    image = functools.partial(helper.make_tensor_value_info, elem_type=TensorProto.FLOAT)
    outputs = [image("y", shape=[1, 16, 6, 8]), image("e", shape=[1, 32, 6, 8])]
    graph = helper.make_graph(nodes, "dense", [image("x", shape=[1, 16, 6, 8])], outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def test_what_is_joined_is_written_where_the_whole_lies(tmp_path: Path) -> None:
    result = edgetune.compile(dense_block(), out=tmp_path / "dense", standalone=True)
    assert result.verified is not None
    assert result.verified.passed
    model = edgetune.load(result.bundle)
    assert isinstance(model, StandaloneModel)
    inputs = {"x": np.ones((1, 16, 6, 8), np.float32)}
    kernels = [name for name, *_ in model.observe(inputs)]
    # "e" is an output and "b" lies in another tensor already: only the last of the three is copied together.
    assert sum("concatenate" in name for name in kernels) == 1


@pytest.mark.parametrize("weights", ["file", "embed"])
def test_every_kind_of_output(weights: str, tmp_path: Path) -> None:
    result = edgetune.compile(odd_model(), out=tmp_path / "odd", standalone=True, weights=weights)
    assert result.verified is not None
    assert result.verified.passed
    assert (result.bundle / "weights.bin").stat().st_size == (0 if weights == "embed" else 48)


def test_the_same_model_gives_the_same_bytes(conv_file: Path, tmp_path: Path) -> None:
    """From the ONNX file on, in processes of their own; with other hash seeds, too."""
    code = "import sys, edgetune; edgetune.compile(sys.argv[1], out=sys.argv[2], archive=True, freeze={'scale': [1.5]})"
    for seed in "12":
        environment = os.environ | {"PYTHONHASHSEED": seed}
        run([sys.executable, "-c", code, conv_file, tmp_path / f"{seed}.tar"], env=environment)
    assert (tmp_path / "1.tar").read_bytes() == (tmp_path / "2.tar").read_bytes()


def test_damaged_bundles_are_refused_in_one_sentence(conv_file: Path, tmp_path: Path) -> None:
    """A small part of what ``benchmarks/fuzz_bundles.py`` does."""
    from benchmarks.fuzz_bundles import fuzz

    for archive in (False, True):
        bundle = edgetune.compile(
            conv_file, out=tmp_path / f"conv{'.tar' * archive}", archive=archive, freeze={"scale": [1.5]}
        ).bundle
        counts, wrong = fuzz(bundle, 60, seed=3)
        assert wrong == []
        assert counts["refused"] > 30


def bare_model() -> onnx.ModelProto:
    """A model without weights."""
    nodes = [helper.make_node("Softmax", ["x"], ["y"])]
    ports = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3])] for name in "xy"]
    graph = helper.make_graph(nodes, "bare", *ports)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


TWO_MODELS = """
#include <stdio.h>
#include "odd/model.h"
#include "bare/model.h"

static float first_output(const edgetune_program *program) {
  edgetune_error error;
  edgetune_model *model;
  edgetune_instance *instance;
  if (edgetune_open_program(program, NULL, 0, &model, &error) != EDGETUNE_OK) return puts(error.message), -1;
  if (edgetune_create(model, NULL, &instance, &error) != EDGETUNE_OK) return puts(error.message), -1;
  if (edgetune_run(instance) != EDGETUNE_OK) return puts(edgetune_last_error(instance)), -1;
  float value = *(const float *)edgetune_output(instance, 0);
  edgetune_free(instance);
  edgetune_close(model);
  return value;
}

int main(void) {
  printf("%.6f %.6f\\n", first_output(&edgetune_program_odd), first_output(&edgetune_program_bare));
  return 0;
}
"""


def test_two_models_in_one_static_app(tmp_path: Path) -> None:
    for model in (odd_model(), bare_model()):
        result = edgetune.compile(model, out=tmp_path / model.graph.name, standalone=True, weights="embed")
        assert result.verified is not None
        assert result.verified.passed
    (tmp_path / "app.c").write_text(TWO_MODELS)
    archives = [tmp_path / name / ARCHIVE for name in ("odd", "bare")]
    app = tmp_path / "app"
    run([system_compiler(), tmp_path / "app.c", f"-I{tmp_path}", *archives, "-o", app, "-pthread", "-lm"])
    # Inputs are zero: the softmax of three zeros is a third.
    constant = onnx.numpy_helper.to_array(odd_model().graph.initializer[0])
    assert run([app]) == f"{constant[0, 0]:.6f} {1 / 3:.6f}\n"


def test_a_model_on_an_emulated_machine(
    emulated: tuple[str, str, str], conv_file: Path, local_target: Target, tmp_path: Path
) -> None:
    """TVM's kernels for the architecture, in a static app, against ONNX Runtime on this machine."""
    arch, compiler, emulator = emulated
    target = target_for(arch, local_target)
    bundle = edgetune.compile(
        conv_file, target=target.name, freeze={"scale": [1.5]}, out=tmp_path / "conv", standalone=True
    ).bundle
    check_contents(bundle / "model.so")
    source = example("c").replace("edgetune_open(", "edgetune_open_program(&edgetune_program_conv, ")
    (tmp_path / "app.c").write_text(source.replace('"edgetune.h"', '"model.h"'))
    files = [tmp_path / "app.c", f"-I{bundle}", bundle / ARCHIVE, "-o", tmp_path / "app"]
    run([compiler, "-static", *files, "-pthread", "-lm"])
    recorded = np.load(bundle / "reference.npz")
    recorded["input:x"].tofile(tmp_path / "input.bin")
    run([emulator, tmp_path / "app", bundle / "weights.bin", tmp_path / "input.bin", tmp_path / "output.bin"])
    wanted = recorded["output:y"]
    got = np.fromfile(tmp_path / "output.bin", np.float32).reshape(wanted.shape)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_what_needs_the_virtual_machine_is_refused_with_the_reason(tmp_path: Path) -> None:
    nodes = [helper.make_node("TopK", ["x", "k"], ["values", "indices"])]
    graph = helper.make_graph(
        nodes,
        "sorting",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [40])],
        [
            helper.make_tensor_value_info("values", TensorProto.FLOAT, [3]),
            helper.make_tensor_value_info("indices", TensorProto.INT64, [3]),
        ],
        [onnx.numpy_helper.from_array(np.array([3], np.int64), "k")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    with pytest.raises(UnsupportedModelError, match="cannot be a standalone library"):
        edgetune.compile(model, out=tmp_path / "bundle", standalone=True)
    assert not (tmp_path / "bundle").exists()
    # Without the option it is made for the virtual machine, and says why.
    result = edgetune.compile(model, out=tmp_path / "bundle")
    assert isinstance(edgetune.load(result.bundle), edgetune.LoadedModel)
    assert any("needs TVM's virtual machine, for a kernel calls" in note for note in result.notes)


def test_sizes_that_vary_are_refused(tmp_path: Path) -> None:
    ports = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3])] for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "varying", *ports)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    with pytest.raises(UnsupportedModelError, match="its sizes vary from call to call"):
        edgetune.compile(model, shapes={"x": ("1/2", 3)}, out=tmp_path / "bundle", standalone=True)


def test_embedded_weights_want_a_standalone_library(conv_file: Path) -> None:
    with pytest.raises(UsageError, match="only a standalone library"):
        edgetune.compile(conv_file, standalone=False, weights="embed")
    with pytest.raises(UsageError, match="neither 'file' nor 'embed'"):
        edgetune.compile(conv_file, standalone=True, weights="elsewhere")
