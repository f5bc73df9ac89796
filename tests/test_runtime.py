"""Loading and running bundles."""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgetune.bundle.reader import open_bundle
from edgetune.errors import BundleError, UsageError
from edgetune.machine import usable_cpus
from edgetune.records import TensorSpec
from edgetune.runtime import load
from edgetune.tvm_runtime import engine
from edgetune.vm_program import DeviceProgram, as_tensor, on_device


def assert_right(outputs, stand_in):
    expected = stand_in.prepared.reference_outputs
    assert list(outputs) == list(expected)
    for name, value in expected.items():
        assert outputs[name].dtype == value.dtype
        np.testing.assert_allclose(outputs[name], value, rtol=1e-5, atol=1e-5)


@pytest.fixture
def inputs(stand_in):
    return dict(stand_in.prepared.reference_inputs)


@pytest.mark.parametrize("archive", [False, True])
def test_outputs_are_those_of_onnx_runtime(stand_in, inputs, tmp_path, archive):
    model = load(stand_in.write(tmp_path / "b", archive=archive).path)
    assert model.name == "conv"
    assert model.inputs == (
        TensorSpec("x", "float32", (1, 3, 16, 16)),
        TensorSpec("scale", "float32", (1,)),
    )
    assert model.outputs == stand_in.prepared.outputs
    for _ in range(4):
        assert_right(model.run(inputs), stand_in)


def test_nothing_of_the_compiler_is_loaded(shared_bundle):
    code = (
        "import sys, json, edgetune.runtime as r\n"
        "from edgetune.bundle.reader import open_bundle\n"
        "model = r.load(sys.argv[1])\n"
        "model.run(open_bundle(sys.argv[1]).reference()[0])\n"
        "maps = open('/proc/self/maps').read()\n"
        "print(json.dumps([sorted(sys.modules), 'libtvm_compiler' in maps, 'libtvm_runtime' in maps]))\n"
    )
    said = subprocess.check_output([sys.executable, "-c", code, str(shared_bundle)], text=True)
    modules, compiler, runtime = json.loads(said)
    assert {"tvm", "onnx", "onnxruntime", "xgboost"}.isdisjoint(modules)
    assert not compiler
    assert runtime


@pytest.mark.parametrize("first", ["tvm", "edgetune"])
def test_lives_beside_tvm_itself(shared_bundle, first):
    imports = ["import tvm", "model = load(sys.argv[1])"]
    if first == "edgetune":
        imports.reverse()
    code = "\n".join(
        [
            "import sys",
            "from edgetune.runtime import load",
            "from edgetune.bundle.reader import open_bundle",
            *imports,
            "inputs = open_bundle(sys.argv[1]).reference()[0]",
            "for _ in range(4): print(model.run(inputs)['pooled'].sum())",
            "assert (tvm.runtime.tensor(inputs['x']).numpy() == inputs['x']).all()",
        ]
    )
    said = subprocess.check_output([sys.executable, "-c", code, str(shared_bundle)], text=True)
    assert len(set(said.split())) == 1


def test_weights_are_mapped_not_copied(shared_bundle):
    model = load(shared_bundle)
    size = (shared_bundle / "weights.bin").stat().st_size
    assert any("weights.bin" in line for line in Path("/proc/self/maps").read_text().splitlines())
    assert sum(array.nbytes for array in model._weights) <= size
    assert all(array.ctypes.data % 64 == 0 for array in model._weights)


def test_inputs_are_copied_and_outputs_are_the_callers(shared_bundle, inputs, stand_in):
    model = load(shared_bundle)
    kept = []
    for _ in range(4):
        mine = {name: array.copy() for name, array in inputs.items()}
        kept.append(model.run(mine))
        mine["x"][:] = np.nan
    for outputs in kept:
        assert_right(outputs, stand_in)
        outputs["y"][:] = 7.0  # writable
    assert_right(model.run(inputs), stand_in)
    del model
    gc.collect()
    assert (kept[0]["y"] == 7.0).all()


def test_inputs_of_any_layout(shared_bundle, inputs, stand_in):
    model = load(shared_bundle)
    x = inputs["x"]
    unaligned = np.frombuffer(b"\0" + x.tobytes(), np.float32, offset=1).reshape(x.shape)
    strided = np.repeat(x, 2, axis=3)[..., ::2]
    readonly = x.copy()
    readonly.flags.writeable = False
    for value in (
        unaligned,
        strided,
        readonly,
        np.asfortranarray(x),
        x.astype(">f4"),
        np.float32(x).tolist(),
    ):
        if isinstance(value, list):
            with pytest.raises(UsageError, match="is float64"):
                model.run({**inputs, "x": value})
            continue
        assert_right(model.run({**inputs, "x": value}), stand_in)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda inputs: inputs.pop("x"), "input 'x' of conv is missing"),
        (lambda inputs: inputs.update(z=inputs["x"]), "has no input 'z'; known: x, scale"),
        (lambda inputs: inputs.update(x=inputs["x"].astype("int32")), "is int32"),
        (lambda inputs: inputs.update(x=inputs["x"][:, :2]), r"float32\[1, 2, 16, 16\]"),
        (lambda inputs: inputs.update(x=None), "is object"),
    ],
)
def test_wrong_inputs(shared_bundle, inputs, stand_in, change, message):
    model = load(shared_bundle)
    wrong = dict(inputs)
    change(wrong)
    with pytest.raises(UsageError, match=message):
        model.run(wrong)
    assert_right(model.run(inputs), stand_in)


def test_a_single_array_is_no_dictionary(shared_bundle, inputs):
    with pytest.raises(UsageError, match="give a dictionary of arrays by name"):
        load(shared_bundle).run(inputs["x"])


def test_several_models_and_several_of_the_same_bundle(stand_in, shared_bundle, inputs, tmp_path):
    other = stand_in.write(tmp_path / "other.tar", archive=True).path
    models = [load(shared_bundle), load(shared_bundle), load(other)]
    for _ in range(3):
        for model in models:
            assert_right(model.run(inputs), stand_in)
    first = models.pop(0)
    del first
    gc.collect()
    for model in models:
        assert_right(model.run(inputs), stand_in)


def test_a_bundle_replaced_meanwhile_is_loaded_anew(stand_in, bundle, inputs):
    old = load(bundle)
    stand_in.write(bundle)
    new = load(bundle)
    assert old._library is not new._library
    assert_right(old.run(inputs), stand_in)
    assert_right(new.run(inputs), stand_in)


def test_called_from_several_threads_at_once(shared_bundle, inputs, stand_in):
    model = load(shared_bundle)
    wrong = []

    def work(factor: float) -> None:
        try:
            for _ in range(30):
                outputs = model.run({**inputs, "scale": inputs["scale"] * np.float32(factor)})
                expected = stand_in.prepared.reference_outputs["y"] * np.float32(factor)
                np.testing.assert_allclose(outputs["y"], expected, rtol=1e-4, atol=1e-4)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(factor,)) for factor in (1.0, 2.0, 3.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def threads_used(
    bundle: Path, *args: int | None, environment: dict[str, str] | None = None
) -> list[list[int]]:
    """In a fresh process: for each thread count, what TVM says it uses, and the CPUs of the process after."""
    code = (
        "import sys, json, os, edgetune.runtime as r\n"
        "from edgetune.bundle.reader import open_bundle\n"
        "inputs = open_bundle(sys.argv[1]).reference()[0]\n"
        "used = []\n"
        "for count in json.loads(sys.argv[2]):\n"
        "    model = r.load(sys.argv[1], threads=count)\n"
        "    model.run(inputs)\n"
        "    used.append([model.threads, r.engine().get_global_func('runtime.NumThreads')(),\n"
        "                 len(os.sched_getaffinity(0))])\n"
        "print(json.dumps(used))\n"
    )
    env = {**os.environ, **(environment or {})}
    command = [sys.executable, "-c", code, str(bundle), json.dumps(args)]
    return json.loads(subprocess.check_output(command, text=True, env=env))


def test_the_thread_count_holds_whatever_the_environment_says(shared_bundle, stand_in):
    cpus = len(usable_cpus())
    own = min(stand_in.target.threads, cpus)
    for environment in ({}, {"TVM_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": "1"}):
        used = threads_used(shared_bundle, None, 1, cpus, 1, environment=environment)
        assert used == [[count, count, cpus] for count in (own, 1, cpus, 1)]


def test_never_more_threads_than_cpus(shared_bundle):
    cpus = len(usable_cpus())
    assert threads_used(shared_bundle, cpus + 3) == [[cpus, cpus, cpus]]


@pytest.mark.parametrize("threads", [0, -1])
def test_senseless_thread_count(shared_bundle, threads):
    with pytest.raises(UsageError, match="give 1 or more"):
        load(shared_bundle, threads=threads)


def test_library_that_is_none(stand_in, tmp_path):
    for data in (b"", b"not a library"):
        compiled = dataclasses.replace(stand_in.compiled, library=data)
        for archive in (False, True):
            path = (
                dataclasses.replace(stand_in, compiled=compiled).write(tmp_path / "b", archive=archive).path
            )
            with pytest.raises(BundleError, match=r"the library of .* cannot be loaded"):
                load(path)


def test_library_and_manifest_that_disagree(stand_in, inputs, tmp_path):
    compiled = dataclasses.replace(stand_in.compiled, weights=stand_in.compiled.weights[:1])
    path = dataclasses.replace(stand_in, compiled=compiled).write(tmp_path / "b").path
    with pytest.raises(BundleError, match=r"the library of .*build the bundle again"):
        load(path).run(inputs)


def test_changed_files_are_noticed_unless_told_not_to_look(bundle, inputs):
    data = bytearray((bundle / "weights.bin").read_bytes())
    data[0] ^= 1
    (bundle / "weights.bin").write_bytes(data)
    with pytest.raises(BundleError, match=r"weights\.bin was changed"):
        load(bundle)
    load(bundle, check_files=False).run(inputs)


def passing_through_model() -> onnx.ModelProto:
    """Returns an input as it is, a constant, and one result twice."""
    nodes = [
        helper.make_node("Add", ["x", "x"], ["doubled"]),
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("Identity", ["c"], ["constant"]),
        helper.make_node("Identity", ["doubled"], ["again"]),
    ]
    names = ("doubled", "same", "constant", "again")
    graph = helper.make_graph(
        nodes,
        "passing",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in names],
        [numpy_helper.from_array(np.arange(4, dtype=np.float32), "c")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def test_outputs_that_are_inputs_or_constants_are_the_callers_too(compile_model, tmp_path):
    stand_in = compile_model(passing_through_model())
    model = load(stand_in.write(tmp_path / "b").path)
    x = np.array([1, 2, 3, 4], np.float32)
    for _ in range(5):
        outputs = model.run({"x": x})
        np.testing.assert_array_equal(outputs["doubled"], 2 * x)
        np.testing.assert_array_equal(outputs["same"], x)
        np.testing.assert_array_equal(outputs["constant"], np.arange(4))
        outputs["doubled"][:] = -1
        np.testing.assert_array_equal(outputs["again"], 2 * x)
        for array in outputs.values():
            array[:] = np.nan


def test_all_dtypes_pass_through(compile_model, tmp_path):
    names = ("BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "FLOAT16", "FLOAT", "DOUBLE")
    graph = helper.make_graph(
        [helper.make_node("Transpose", [f"x_{name}"], [f"y_{name}"]) for name in names],
        "dtypes",
        [helper.make_tensor_value_info(f"x_{name}", getattr(TensorProto, name), [3, 5]) for name in names],
        [helper.make_tensor_value_info(f"y_{name}", getattr(TensorProto, name), [5, 3]) for name in names],
    )
    onnx_model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    stand_in = compile_model(onnx_model)
    path = stand_in.write(tmp_path / "b").path
    model = load(path)
    inputs = open_bundle(path).reference()[0]
    for _ in range(3):
        for name, array in model.run(inputs).items():
            np.testing.assert_array_equal(array, inputs[name.replace("y_", "x_")].T)
            assert array.dtype == inputs[name.replace("y_", "x_")].dtype


def test_inputs_and_outputs_are_copied_for_a_device_with_memory_of_its_own(stand_in, inputs, tmp_path):
    """What a GPU's bundle does, on the CPU."""
    model = load(stand_in.write(tmp_path / "b").path)
    cpu = engine().device("cpu", 0)
    weights = [on_device(as_tensor(array), cpu) for array in model._weights]
    (entry,) = model.manifest.all_programs()
    model._programs = [DeviceProgram(model._machine, entry, model._weights, weights, cpu)]
    outputs = [model.run(inputs) for _ in range(3)]
    other = model.run({name: value * 2 for name, value in inputs.items()})
    for output in outputs:
        assert_right(output, stand_in)
    assert any(not np.allclose(other[name], outputs[0][name]) for name in other)
