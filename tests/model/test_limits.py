"""Files of a few hundred bytes that ask for all of the memory, or for all time, are refused in one message."""

from __future__ import annotations

import platform
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model

import edgetune
from edgetune.errors import ModelError
from edgetune.model import limits, loading, session
from edgetune.model.loading import load_model
from edgetune.model.passes.fold_constants import fold_constants
from edgetune.model.passes.simplify import simplify
from edgetune.model.prepare import prepare
from edgetune.model.session import Session, StoppedError

HEAD = '<ir_version: 8, opset_import: ["": 17, "f": 1]>'


def calling(bodies: dict[str, str], call: str = "f0") -> onnx.ModelProto:
    functions = "\n".join(
        f'<opset_import: ["": 17, "f": 1], domain: "f"> {name} (x) => (y) {{ {body} }}'
        for name, body in bodies.items()
    )
    return parse_model(f"{HEAD} g (float[2] x) => (float[2] y) {{ y = f.{call}(x) }} {functions}")


def doubling(levels: int) -> onnx.ModelProto:
    """2 ** levels Relus, by ``levels`` + 1 functions."""
    bodies = {f"f{i}": f"t = f.f{i + 1}(x) y = f.f{i + 1}(t)" for i in range(levels)}
    return calling({**bodies, f"f{levels}": "y = Relu(x)"})


@pytest.mark.parametrize(
    ("bodies", "says"),
    [
        ({"f0": "y = f.f0(x)"}, "call themselves"),
        ({"f0": "y = f.f1(x)", "f1": "t = Relu(x) y = f.f0(t)"}, "call themselves"),
    ],
)
def test_recursion(bodies: dict[str, str], says: str) -> None:
    """ONNX forbids it (IR specification, "Functions")."""
    with pytest.raises(ModelError, match=says):
        load_model(calling(bodies))


def test_functions_that_multiply() -> None:
    load_model(doubling(10))
    with pytest.raises(ModelError, match="1048576 nodes"):
        load_model(doubling(20))


def test_two_functions_of_one_name() -> None:
    model = calling({"f0": "y = Relu(x)"})
    model.functions.append(model.functions[0])
    with pytest.raises(ModelError, match="two functions of the name 'f0'"):
        load_model(model)


def test_more_elements_than_can_be_counted() -> None:
    model = parse_model(f"{HEAD} g (float[65536, 65536] x) => (float[65536, 65536] y) {{ y = Relu(x) }}")
    with pytest.raises(ModelError, match="input 'x' is 65536x65536"):
        edgetune.check(model)


def test_a_tensor_that_grows_inside() -> None:
    model = parse_model(
        f"{HEAD} g (float[1, 70000] x) => (float[1, 1] y) {{ t = Transpose(x) p = Mul(t, x) y = ReduceSum(p) }}"
    )
    with pytest.raises(ModelError, match="tensor 'p' is 70000x70000"):
        edgetune.check(model)


def test_more_than_this_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_memory_bytes", lambda: 1 << 30)
    model = parse_model(f"{HEAD} g (float[20000, 10000] x) => (float[20000, 10000] y) {{ y = Relu(x) }}")
    with pytest.raises(ModelError, match="does not fit into this machine's 1 GB of memory"):
        edgetune.check(model)


def test_more_dimensions_than_numpy_has() -> None:
    ones = ", ".join(["1"] * 65)
    model = parse_model(f"{HEAD} g (float[{ones}] x) => (float[{ones}] y) {{ y = Relu(x) }}")
    with pytest.raises(ModelError, match="65 dimensions"):
        edgetune.check(model)


def test_a_loop_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "DEADLINE_S", 0.5)
    model = parse_model(
        f"""{HEAD} g (float[1] x) => (float[1] y) {{
            n = Constant <value_int = 4611686018427387904> ()
            more = Constant <value = bool {{1}}> ()
            y = Loop (n, more, x) <body = b (int64 i, bool go, float[1] a) => (bool on, float[1] c) {{
                on = Identity(go) c = Add(a, a) }}>
        }}"""
    )
    with pytest.raises(StoppedError, match="still running the model after"):
        Session(model).run({"x": np.ones(1, np.float32)})


def test_the_least_integer_by_minus_one() -> None:
    """C++ leaves the result undefined, x86-64 ends the process: ONNX Runtime divides constants while it loads."""
    model = parse_model(f"{HEAD} g (int64[1] x) => (int64[1] y) {{ q = Div(least, one) y = Add(x, q) }}")
    for name, value in (("least", np.iinfo(np.int64).min), ("one", -1)):
        model.graph.initializer.append(numpy_helper.from_array(np.array([value]), name))
    if platform.machine() != "x86_64":
        pytest.skip("only x86-64 ends the process")
    with pytest.raises(ModelError, match="ONNX Runtime"):
        edgetune.check(model)


@pytest.mark.parametrize("location", ["a\0b", "n" * 300], ids=["NUL", "too long"])
def test_external_data_of_an_impossible_name(location: str, tmp_path: Path) -> None:
    model = parse_model(f"{HEAD} g (float[2] x) => (float[2] y) {{ y = Add(x, w) }}")
    weight = model.graph.initializer.add(name="w", data_type=onnx.TensorProto.FLOAT, dims=[2])
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value=location)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="cannot be the name of a file"):
        load_model(path)


def test_a_device_that_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "LIMIT_BYTES", 1000)
    with pytest.raises(ModelError, match="over 2 GB"):
        load_model("/dev/zero")


def growing(steps: int, times: int) -> onnx.ModelProto:
    """A Loop that joins a tensor with itself: four elements become 4 * times ** steps."""
    return parse_model(
        f"""{HEAD} g (float[4] x) => (float[n] y) {{
            n = Constant <value_int = {steps}> ()
            more = Constant <value = bool {{1}}> ()
            y = Loop (n, more, x) <body = b (int64 i, bool go, float[k] a) => (bool on, float[l] c) {{
                on = Identity(go) c = Concat <axis = 0> ({", ".join(["a"] * times)}) }}>
        }}"""
    )


@pytest.mark.parametrize(("steps", "times"), [(60, 2), (20, 4)])
def test_a_loop_whose_tensors_grow(steps: int, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No declaration tells the size. ONNX Runtime takes what there is, and may end the process."""
    monkeypatch.setattr(limits, "available_bytes", lambda: 1 << 30)
    with pytest.raises(ModelError, match=r"needs more than 1\.0 GB|does not survive"):
        prepare(growing(steps, times))


def test_a_sum_that_the_reference_leaves_undefined() -> None:
    model = parse_model(f"{HEAD} g (uint8[2, 0] x) => (int32[n, m] y) {{ y = MatMulInteger(x, k) }}")
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((0, 3), np.uint8), "k"))
    with pytest.raises(ModelError, match="MatMulInteger 'y' sums up the tensor 'x' of no elements"):
        prepare(model)


def test_a_loop_that_grows_a_little() -> None:
    prepared = prepare(growing(16, 2))
    assert prepared.outputs[0].shape == (4 << 16,)
    x = prepared.reference_inputs["x"]
    np.testing.assert_array_equal(prepared.reference_outputs["y"], np.tile(x, 1 << 16))


@pytest.mark.parametrize("step", [-(2**63), 2**63 - 1, -(2**31), 2**31])
def test_a_step_past_every_end(step: int) -> None:
    """Following a list's values, onnx adds the step in 32 bits: it ran out of memory, or off the list."""
    ends = (0, 2**62) if step > 0 else (-1, -(2**62))
    model = parse_model(f"{HEAD} g (float[10] x) => (float[n] y) {{ y = Slice(x, start, end, axes, step) }}")
    for name, value in (("start", ends[0]), ("end", ends[1]), ("axes", 0), ("step", step)):
        model.graph.initializer.append(numpy_helper.from_array(np.array([value]), name))
    prepared = prepare(model)
    np.testing.assert_array_equal(
        prepared.reference_outputs["y"], prepared.reference_inputs["x"][:: 99 if step > 0 else -99]
    )


@pytest.mark.parametrize("levels", [29, 40])
def test_constants_that_grow(levels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing evaluates them before their sizes are known; 2 ** 40 elements are refused as such."""
    monkeypatch.setattr(limits, "available_bytes", lambda: 1 << 30)
    doubled = " ".join(f"w{i + 1} = Concat <axis = 0> (w{i}, w{i})" for i in range(levels))
    model = parse_model(
        f"{HEAD} g (float[2] x) => (float[2] y) {{ {doubled} s = ReduceSum <keepdims = 0> (w{levels}) y = Add(x, s) }}"
    )
    model.graph.initializer.append(numpy_helper.from_array(np.ones(2, np.float32), "w0"))
    with pytest.raises(ModelError, match=r"needs more than 1\.0 GB|edgetune takes no tensors of more than"):
        prepare(model)


def test_folding_stops_at_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_FOLDED_BYTES", 1000)
    model = parse_model(
        f"{HEAD} g (float[1] x) => (float[1] y) {{"
        "a = Neg(w) b = Concat <axis = 0> (a, a) s = ReduceSum <keepdims = 0> (b) y = Add(x, s) }"
    )
    model.graph.initializer.append(numpy_helper.from_array(np.ones(200, np.float32), "w"))
    folded = fold_constants(model).model
    assert [node.op_type for node in folded.graph.node] == ["Concat", "ReduceSum", "Add"]


def test_joins_that_double_are_not_merged() -> None:
    """onnxslim writes a Concat of Concats as one, here of 2 ** 24 inputs."""
    doubled = " ".join(f"t{i + 1} = Concat <axis = 0> (t{i}, t{i})" for i in range(24))
    model = parse_model(f"{HEAD} g (float[1] t0) => (float[1] y) {{ {doubled} y = ReduceMax(t24) }}")
    assert len(simplify(model).model.graph.node) == 25
