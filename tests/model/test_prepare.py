"""Real and hand-built models: prepared, they compute what ONNX Runtime computes on the original."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model

from edgetune.errors import ModelError, UnsupportedModelError, UsageError
from edgetune.model import registry
from edgetune.model.prepare import parse, prepare
from edgetune.model.reference import random_inputs
from edgetune.records import PreparedModel, TensorSpec

REAL = ["ppocr-cls", "silero-vad", "silero-vad-op18-ifless", "silero-vad-half", "magika", "squeezenet"]


def run(model: bytes, inputs: dict, names: list[str]) -> dict:
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    return dict(zip(names, session.run(names, inputs), strict=True))


@pytest.mark.parametrize("name", REAL)
class TestRealModels:
    def test_values_are_those_of_the_original(
        self, prepared_model: Callable[[str], PreparedModel], name: str
    ) -> None:
        prepared = prepared_model(name)
        assert prepared.notes == ()
        original = registry.fetch(name, random_weights=True).read_bytes()
        entry = registry.get(name)
        names = [spec.name for spec in prepared.outputs]
        for seed in (5, 6):
            inputs = random_inputs(prepared.inputs, seed)
            fixed = {key: np.array(value, np.int64) for key, value in entry.freeze.items()}
            want = run(original, {**inputs, **fixed}, names)
            got = run(prepared.onnx, inputs, names)
            for spec in prepared.outputs:
                assert got[spec.name].shape == spec.shape
                assert got[spec.name].dtype.name == spec.dtype
                np.testing.assert_allclose(got[spec.name], want[spec.name], rtol=1e-3, atol=1e-4)

    def test_signature_and_reference(self, prepared_model: Callable[[str], PreparedModel], name: str) -> None:
        prepared = prepared_model(name)
        original = onnx.load(registry.fetch(name))
        filled = {tensor.name for tensor in original.graph.initializer} | set(registry.get(name).freeze)
        assert [s.name for s in prepared.inputs] == [
            value.name for value in original.graph.input if value.name not in filled
        ]
        assert [s.name for s in prepared.outputs] == [value.name for value in original.graph.output]
        assert set(prepared.reference_inputs) == {s.name for s in prepared.inputs}
        again = run(prepared.onnx, dict(prepared.reference_inputs), list(prepared.reference_outputs))
        for key, value in prepared.reference_outputs.items():
            np.testing.assert_allclose(again[key], value, rtol=1e-3, atol=1e-4)

    def test_preparing_twice_is_preparing_once(
        self, prepared_model: Callable[[str], PreparedModel], name: str
    ) -> None:
        prepared = prepared_model(name)
        assert prepare(prepared.onnx).onnx == prepared.onnx

    def test_every_size_is_known(self, prepared_model: Callable[[str], PreparedModel], name: str) -> None:
        model = parse(prepared_model(name))
        onnx.checker.check_model(model, full_check=True)
        for value in [*model.graph.value_info, *model.graph.output]:
            assert all(dim.HasField("dim_value") for dim in value.type.tensor_type.shape.dim), value.name


def model_of(text: str) -> onnx.ModelProto:
    return parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {text}')


def test_the_same_model_gives_the_same_result() -> None:
    model = model_of("(float[n, 3] x) => (float[n, 3] y) { a = Relu(x) y = Neg(a) }")
    one, two = prepare(model, {"x": (2, 3)}), prepare(model, {"x": (2, 3)})
    assert one.onnx == two.onnx
    assert one.sha256 == two.sha256
    np.testing.assert_array_equal(one.reference_outputs["y"], two.reference_outputs["y"])


@pytest.mark.parametrize("dtype", ["float16", "double", "int8", "uint8", "int32", "int64", "bool"])
def test_every_type_passes_through(dtype: str) -> None:
    operator = "Not(x)" if dtype == "bool" else "Add(x, x)"
    prepared = prepare(model_of(f"({dtype}[2, 3] x) => ({dtype}[2, 3] y) {{ y = {operator} }}"))
    numpy_name = {"double": "float64"}.get(dtype, dtype)
    assert prepared.inputs == (TensorSpec("x", numpy_name, (2, 3)),)
    assert prepared.outputs == (TensorSpec("y", numpy_name, (2, 3)),)
    x = prepared.reference_inputs["x"]
    np.testing.assert_array_equal(prepared.reference_outputs["y"], ~x if dtype == "bool" else x + x)


def test_an_output_without_a_size_is_measured_and_noted() -> None:
    prepared = prepare(model_of("(float[6] x) => (int64[1, n] y) { y = NonZero(x) }"))
    assert prepared.outputs[0].shape[0] == 1
    assert "the shape of output 'y' was taken from a run" in prepared.notes[0]


def test_outputs_that_nothing_computes() -> None:
    """An input, and a weight: their sizes do not depend on values."""
    prepared = prepare(
        model_of("(float[2, 3] x) => (x, w, float[2, 3] y) <float[2] w = {1, 2}> { y = Relu(x) }")
    )
    assert [spec.shape for spec in prepared.outputs] == [(2, 3), (2,), (2, 3)]
    assert prepared.notes == ()


def test_a_wrong_declared_output_shape_does_not_matter() -> None:
    model = model_of("(float[2, 3] x) => (float[2, 3] y) { y = Transpose<perm = [1, 0]>(x) }")
    assert prepare(model).outputs == (TensorSpec("y", "float32", (3, 2)),)


def test_old_files_with_initializers_as_inputs() -> None:
    model = parse_model(
        """<ir_version: 3, opset_import: ["": 9]>
        g (float[1, 3] x, float[3] w) => (float[1, 3] y) { y = Mul(x, w) }"""
    )
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, 2, 3], np.float32), "w"))
    prepared = prepare(model)
    assert [spec.name for spec in prepared.inputs] == ["x"]
    np.testing.assert_allclose(
        prepared.reference_outputs["y"], prepared.reference_inputs["x"] * [[1, 2, 3]], rtol=1e-6
    )


def test_operator_sets_that_onnx_runtime_does_not_run() -> None:
    model = parse_model(
        '<ir_version: 3, opset_import: ["": 5]> g (float[2] x) => (float[2] y) { y = Mul(x, x) }'
    )
    with pytest.raises(ModelError, match="operator set is 5, and ONNX Runtime supports 7 and later"):
        prepare(model)


@pytest.mark.parametrize(
    ("text", "shapes", "error", "says"),
    [
        ("(float[n] x) => (float[n] y) { y = Relu(x) }", {}, ModelError, "--shape x:1"),
        ("(float[n] x) => (float[n] y) { y = Relu(x) }", {"z": (1,)}, UsageError, "no input"),
        (
            "(float[n, m] x) => (float[3] y) { s = Constant<value_ints=[3]>() y = Reshape(x, s) }",
            {"x": (2, 2)},
            ModelError,
            "check the shapes",
        ),
        ("(string[2] x) => (string[2] y) { y = Identity(x) }", {}, UnsupportedModelError, "string"),
        (
            "(float[2] x) => (seq(float[2]) y) { y = SequenceConstruct(x) }",
            {},
            UnsupportedModelError,
            "output 'y' is a sequence",
        ),
        ("(float[2] x) => (float[2] y) { y = NoSuchOperator(x) }", {}, ModelError, "cannot load the model"),
    ],
)
def test_what_cannot_be_prepared(text: str, shapes: dict, error: type, says: str) -> None:
    with pytest.raises(error, match=says):
        prepare(model_of(text), shapes)
