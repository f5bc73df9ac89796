"""Models whose sizes vary from call to call: one bundle, checked at every size against ONNX Runtime."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.parser import parse_model

import edgetune
from edgetune.bundle.reader import open_bundle
from edgetune.cli.main import main
from edgetune.model.registry import fetch
from edgetune.records import Source

RNG = np.random.default_rng(11)


def weight(name: str, *shape: int) -> TensorProto:
    return numpy_helper.from_array(0.3 * RNG.standard_normal(shape).astype(np.float32), name)


def network() -> onnx.ModelProto:
    """A small classifier as exporters write it: the batch size is read and written back."""
    made = parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        net (float[batch, 3, 8, 8] x, float[16] bias) => (float[batch, 5] y, float[16] b)
        {
            c = Conv <pads = [1, 1, 1, 1]> (x, k)
            r = Relu(c)
            p = MaxPool <kernel_shape = [4, 4], strides = [4, 4]> (r)
            s = Shape(p)
            n = Gather(s, zero)
            to = Concat <axis = 0> (n, minus)
            f = Reshape(p, to)
            h = MatMul(f, w)
            i = Add(h, bias)
            j = MatMul(i, v)
            y = Softmax <axis = 1> (j)
            b = Exp(bias)
        }"""
    )
    made.graph.initializer.extend(
        [
            weight("k", 16, 3, 3, 3),
            weight("w", 64, 16),
            weight("v", 16, 5),
            numpy_helper.from_array(np.array([0], np.int64), "zero"),
            numpy_helper.from_array(np.array([-1], np.int64), "minus"),
        ]
    )
    return made


def inputs(rows: int) -> dict[str, np.ndarray]:
    return {
        "x": RNG.standard_normal((rows, 3, 8, 8)).astype(np.float32),
        "bias": RNG.standard_normal(16).astype(np.float32),
    }


def assert_right(bundle: Path, model: bytes, arrays: dict[str, np.ndarray]) -> None:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    expected = dict(zip([o.name for o in session.get_outputs()], session.run(None, arrays), strict=True))
    loaded = edgetune.load(bundle)
    # Outputs that need no copy are handed out as they are from the third run on.
    for _ in range(4):
        outputs = loaded.run(arrays)
        assert outputs.keys() == expected.keys()
        for name, value in expected.items():
            assert outputs[name].shape == value.shape
            np.testing.assert_allclose(outputs[name], value, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def net() -> bytes:
    return network().SerializeToString()


@pytest.fixture(scope="module")
def compiled(net: bytes, tmp_path_factory: pytest.TempPathFactory) -> edgetune.CompileResult:
    return edgetune.compile(net, shapes={"x": ("1..4", 3, 8, 8)}, out=tmp_path_factory.mktemp("net") / "net")


def test_every_size_of_the_range_is_right(compiled: edgetune.CompileResult, net: bytes) -> None:
    for rows in (1, 2, 3, 4):
        assert_right(compiled.bundle, net, inputs(rows))


def test_what_is_served_is_shown(compiled: edgetune.CompileResult) -> None:
    model = edgetune.load(compiled.bundle)
    assert [str(spec) for spec in model.inputs] == ["float32[1..4, 3, 8, 8]", "float32[16]"]
    assert [str(spec) for spec in model.outputs] == ["float32[1..4, 5]", "float32[16]"]
    assert model.inputs[0].shape == (4, 3, 8, 8)


@pytest.mark.parametrize("shape", [(5, 3, 8, 8), (0, 3, 8, 8), (2, 3, 8, 9), (3, 8, 8)])
def test_other_sizes_are_refused_with_those_served(compiled: edgetune.CompileResult, shape: Any) -> None:
    with pytest.raises(edgetune.UsageError, match=r"it takes float32\[1\.\.4, 3, 8, 8\]"):
        edgetune.load(compiled.bundle).run(inputs(1) | {"x": np.zeros(shape, np.float32)})


def test_verified_at_every_size_and_at_one_in_between(compiled: edgetune.CompileResult, net: bytes) -> None:
    sizes = ["batch=4", "batch=2", "batch=1", "batch=3 (padded to 4)"]
    assert compiled.verified is not None
    assert [output.sizes for output in compiled.verified.outputs if output.name == "y"] == sizes
    entry = open_bundle(compiled.bundle).manifest.verification
    assert entry is not None
    assert [output.sizes for output in entry.outputs if output.name == "y"] == sizes
    again = edgetune.compare(compiled.bundle, net)
    assert again.passed
    assert [output.sizes for output in again.outputs if output.name == "y"] == sizes


def test_a_lean_bundle_is_compared_at_every_size_too(net: bytes, tmp_path: Path) -> None:
    lean = edgetune.compile(
        net, shapes={"x": ("1/3", 3, 8, 8)}, out=tmp_path / "net.tar", archive=True, lean=True
    )
    found = edgetune.compare(lean.bundle, net)
    assert found.passed
    expected = ["batch=3", "batch=1", "batch=2 (padded to 3)"]
    assert [output.sizes for output in found.outputs if output.name == "y"] == expected


def test_weights_are_stored_once_and_a_fixed_shape_is_as_it_was(
    compiled: edgetune.CompileResult, net: bytes, tmp_path: Path
) -> None:
    fixed = edgetune.compile(net, shapes={"x": (4, 3, 8, 8)}, out=tmp_path / "fixed", standalone=False)
    assert (fixed.bundle / "weights.bin").read_bytes() == (compiled.bundle / "weights.bin").read_bytes()
    manifest = json.loads((compiled.bundle / "manifest.json").read_text())
    assert manifest["schema_version"] == 2
    assert [(d["name"], d["sizes"], d["padded"]) for d in manifest["dimensions"]] == [
        ("batch", [1, 2, 4], True)
    ]
    assert [p["function"] for p in manifest["programs"]] == ["main", "main1", "main2"]
    plain = json.loads((fixed.bundle / "manifest.json").read_text())
    assert plain["schema_version"] == 1
    assert not {"dimensions", "programs"} & plain.keys()
    assert "sizes" not in plain["verification"]["outputs"][0]
    names = [kernel["name"] for kernel in manifest["kernels"]]
    assert len(set(names)) == len(names) == len({kernel["workload"] for kernel in manifest["kernels"]})


def test_the_largest_size_stands_for_the_bundle(compiled: edgetune.CompileResult) -> None:
    opened = open_bundle(compiled.bundle)
    assert [item.shape for item in opened.manifest.inputs] == [(4, 3, 8, 8), (16,)]
    reference = opened.reference()
    assert reference is not None
    assert reference[0]["x"].shape == (4, 3, 8, 8)


def test_tuning_shares_one_budget_and_one_log(net: bytes, tmp_path: Path) -> None:
    both = edgetune.tune(
        net, trials=8, shapes={"x": ("1/2", 3, 8, 8)}, out=tmp_path / "both", logs=tmp_path / "logs", seed=1,
        measure_latency=False,
    )  # fmt: skip
    assert both.trials_spent == 8
    assert_right(both.bundle, net, inputs(2))
    alone = edgetune.compile(net, shapes={"x": (2, 3, 8, 8)}, out=tmp_path / "two", logs=tmp_path / "logs")
    assert Source.RECORD in {kernel.source for kernel in alone.kernels}


def test_check_counts_and_shows_all_sizes(net: bytes) -> None:
    one, two = (edgetune.check(net, {"x": (sizes, 3, 8, 8)}) for sizes in (4, "2/4"))
    assert one.tasks is not None
    assert two.tasks is not None
    assert one.tasks < two.tasks <= 2 * one.tasks
    assert two.to_json()["inputs"][0]["shape"] == ["2..4", 3, 8, 8]
    assert two.to_json()["outputs"][0]["shape"] == ["2..4", 5]


def test_two_dimensions_and_one_that_cannot_be_padded(tmp_path: Path) -> None:
    """Rows may be padded, columns not: a convolution reaches over them."""
    made = parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        net (float[n, 1, 4, w] x, float[n, 1, 1, w] z) => (float[n, 2, 4, w] y)
        { c = Conv <pads = [1, 1, 1, 1]> (x, k) y = Mul(c, z) }"""
    )
    made.graph.initializer.append(weight("k", 2, 1, 3, 3))
    data = made.SerializeToString()
    result = edgetune.compile(data, shapes={"x": ("1/4", 1, 4, "6/9")}, out=tmp_path / "net")
    assert any("'w' only the sizes 6/9 are served" in note and "Conv" in note for note in result.notes)
    for rows, width in ((1, 6), (4, 9), (3, 6), (2, 9)):
        arrays = {
            "x": RNG.standard_normal((rows, 1, 4, width)).astype(np.float32),
            "z": RNG.standard_normal((rows, 1, 1, width)).astype(np.float32),
        }
        assert_right(result.bundle, data, arrays)
    model = edgetune.load(result.bundle)
    with pytest.raises(edgetune.UsageError, match=r"it takes float32\[1\.\.4, 1, 4, 6/9\]"):
        model.run({"x": np.zeros((4, 1, 4, 8), np.float32), "z": np.zeros((4, 1, 1, 8), np.float32)})
    with pytest.raises(edgetune.UsageError, match="'n' is 3 in input 'x' and 4 in input 'z'"):
        model.run({"x": np.zeros((3, 1, 4, 6), np.float32), "z": np.zeros((4, 1, 1, 6), np.float32)})


def test_integers_are_padded_with_rows_that_are_valid(tmp_path: Path) -> None:
    """A row of zeros would be divided by, which ends the process."""
    made = helper.make_model(
        helper.make_graph(
            [helper.make_node("Div", ["hundred", "x"], ["y"])],
            "divide",
            [helper.make_tensor_value_info("x", TensorProto.INT32, ["n", 3])],
            [helper.make_tensor_value_info("y", TensorProto.INT32, None)],
            [numpy_helper.from_array(np.array([100], np.int32), "hundred")],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    data = made.SerializeToString()
    result = edgetune.compile(data, shapes={"x": ("1/8", 3)}, out=tmp_path / "divide")
    x = np.array([[1, 2, 3], [4, 5, 6]], np.int32)
    np.testing.assert_array_equal(edgetune.load(result.bundle).run({"x": x})["y"], 100 // x)


def test_the_command_line_at_a_size(
    compiled: edgetune.CompileResult, capfd: pytest.CaptureFixture[str]
) -> None:
    bundle = str(compiled.bundle)
    assert main(["run", bundle, "--shape", "x:3x3x8x8", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["outputs"][0]["shape"] == [3, 5]
    assert main(["run", bundle, "--shape", "x:7x3x8x8"]) == 2
    assert "1..4" in capfd.readouterr().err
    assert main(["profile", bundle, "--shape", "x:1x3x8x8", "--runs", "2", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["kernels"]
    assert main(["benchmark", bundle, "--shape", "x:1..4x3x8x8"]) == 2
    assert "one number" in capfd.readouterr().err
    arguments = ["--shape", "x:2x3x8x8", "--rounds", "1", "--runs", "5", "--json"]
    assert main(["benchmark", bundle, *arguments]) == 0
    assert json.loads(capfd.readouterr().out)["speedup"] > 0


def test_the_classifier_for_batches(tmp_path: Path) -> None:
    path = fetch("ppocr-cls")
    result = edgetune.compile(path, shapes={"x": ("1/4", 3, 48, 192)}, out=tmp_path / "cls")
    assert result.verified is not None
    assert result.verified.passed
    for rows in (1, 2, 3, 4):
        x = RNG.standard_normal((rows, 3, 48, 192)).astype(np.float32)
        assert_right(result.bundle, path.read_bytes(), {"x": x})
