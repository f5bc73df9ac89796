"""Compiling for NVIDIA's GPUs, which takes nvcc and no GPU: machine code, links, and what default schedules compute."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
import tvm
import tvm_ffi
from onnx import TensorProto, helper
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import ScheduleError

import edgetune
from edgetune import cuda, tvm_runtime
from edgetune.benchmarking.profile import profile
from edgetune.bundle import reader
from edgetune.bundle.reader import check_loadable, open_bundle
from edgetune.elf import read_elf
from edgetune.errors import BundleError, DeviceError, ToolchainError
from edgetune.graph.lower import Lowered, lower
from edgetune.kernels import gpu
from edgetune.kernels.registry import default_schedule, design_spaces
from edgetune.kernels.schedules import block_names
from edgetune.metaschedule import apply_trace, trace_text
from edgetune.model.prepare import prepare
from edgetune.model.registry import fetch
from edgetune.placement import place, runs_here
from edgetune.records import Task
from edgetune.standalone.compiler import SOURCES
from edgetune.targets import load_target
from edgetune.tuning.arguments import argument_specs, disagreement, random_arguments
from edgetune.tuning.build import build_candidate
from edgetune.tuning.cost_model import CostModel
from edgetune.tuning.reference_kernel import build_reference_kernel
from edgetune.tuning.search import EvolutionarySearch, SearchSettings
from edgetune.watcher import Watcher
from tests.standalone.conftest import run, system_compiler

needs_nvcc = pytest.mark.skipif(cuda.find_nvcc() is None, reason="there is no nvcc")
EM_CUDA = 190
SHAPE = {"x": (1, 3, 48, 192)}


def cubins(library: bytes) -> list[tuple[str, bytes]]:
    """``sm_XX`` and the bytes from its start of each cubin within a library.

    The second byte of ``e_flags`` is the GPU's number, from version 8 of the ABI on (CUDA 13); the first one before.
    """
    found = []
    for match in re.finditer(b"\x7fELF", library):
        code = library[match.start() :]
        if struct.unpack_from("<H", code, 18)[0] == EM_CUDA:
            (flags,) = struct.unpack_from("<I", code, 48)
            found.append((f"sm_{(flags >> 8 if code[8] >= 8 else flags) & 0xFF}", code))
    return found


@pytest.fixture(scope="module")
def classifier() -> Lowered:
    return lower(prepare(fetch("ppocr-cls"), SHAPE), load_target("jetson-orin-cuda"))


def small(nodes: list[onnx.NodeProto], inputs: dict[str, list[int]], output: tuple[int, list[int]]) -> bytes:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    result = helper.make_tensor_value_info("y", *output)
    graph = helper.make_graph(nodes, "small", values, [result])
    return onnx.helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString()


FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64
SMALL = {
    "softmax": small([helper.make_node("Softmax", ["x"], ["y"])], {"x": [3, 70]}, (FLOAT, [3, 70])),
    "scalar": small([helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)], {"x": [5, 7]}, (FLOAT, [])),
    "product": small(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": [9, 33], "w": [33, 5]}, (FLOAT, [9, 5])
    ),
    "argmax": small(
        [helper.make_node("ArgMax", ["x"], ["y"], axis=1, keepdims=0)], {"x": [4, 9]}, (INT, [4])
    ),
    "transposed": small(
        [helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2])],
        {"x": [1, 2, 5, 4], "w": [2, 3, 3, 3]},
        (FLOAT, [1, 3, 11, 9]),
    ),
    "pool": small(
        [helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=[3, 3], pads=[1, 1, 1, 1])],
        {"x": [1, 3, 8, 8]},
        (FLOAT, [1, 3, 8, 8]),
    ),
}


THREE = helper.make_node("Constant", [], ["k"], value_ints=[3])
AXIS = helper.make_node("Constant", [], ["axis"], value_int=1)
SORTING = {
    "topk": small(
        [THREE, helper.make_node("TopK", ["x", "k"], ["y", "at"])], {"x": [4, 50]}, (FLOAT, [4, 3])
    ),
    "cumsum": small(
        [AXIS, helper.make_node("CumSum", ["x", "axis"], ["y"])], {"x": [4, 50]}, (FLOAT, [4, 50])
    ),
}


def on_the_cpu(mod: tvm.IRModule) -> tvm.IRModule:
    """A scheduled kernel whose threads are loops, without pipelines: what the schedule computes, one by one."""

    def serial(loop: tvm.tirx.For) -> tvm.tirx.For:
        kind = tvm.tirx.ForKind.SERIAL if loop.kind == tvm.tirx.ForKind.THREAD_BINDING else loop.kind
        return tvm.tirx.For(loop.loop_var, loop.min, loop.extent, kind, loop.body)

    looped = tvm_ffi.structural_map(mod["main"], (tvm.tirx.For, serial), order="post")
    serialised = tvm.IRModule({"main": looped})
    if "scope=" not in serialised.script():
        return serialised
    schedule = Schedule(serialised, enable_check=False)
    for name in block_names(schedule):
        block = schedule.get_sblock(name)
        with contextlib.suppress(ScheduleError):  # an argument of the kernel
            schedule.set_scope(block, 0, "global")
    return schedule.mod


def check_values(task: Task, schedules: Sequence[Schedule]) -> None:
    """What scheduled kernels compute is what the unscheduled loops do."""
    kernel = tvm.ir.load_json(task.ir)
    specs = argument_specs(kernel["main"])
    values = random_arguments(specs, task.workload)
    host = load_target("local").tvm()
    results = []
    for mod in (kernel, *(on_the_cpu(schedule.mod) for schedule in schedules)):
        tensors = [tvm.runtime.tensor(value) for value in values]
        tvm.tirx.build(mod, target=host)["main"](*tensors)
        results.append([tensor.numpy() for tensor in tensors])
    for found in results[1:]:
        for expected, got in zip(results[0], found, strict=True):
            assert not disagreement(expected, got), task.name


def check_defaults(tasks: tuple[Task, ...]) -> None:
    """Every kernel is bound to threads by default, by a schedule that a record can hold, and computes the same."""
    for task in tasks:
        kernel = tvm.ir.load_json(task.ir)
        schedule = default_schedule(kernel, load_target("jetson-orin-cuda"))
        assert gpu.is_bound(schedule), task.name
        again = apply_trace(trace_text(schedule.trace), kernel)
        assert tvm_ffi.structural_equal(again.mod, schedule.mod), task.name
        check_values(task, [schedule])


@pytest.mark.slow
def test_default_schedules_of_a_real_model(classifier: Lowered) -> None:
    check_defaults(classifier.tasks)


@pytest.mark.parametrize("name", SMALL)
def test_default_schedules_of_small_models(name: str) -> None:
    check_defaults(lower(prepare(SMALL[name]), load_target("jetson-orin-cuda")).tasks)


@needs_nvcc
@pytest.mark.slow
def test_a_bundle_for_a_jetson(tmp_path: Path) -> None:
    result = edgetune.compile(fetch("ppocr-cls"), "jetson-orin-cuda", shapes=SHAPE, out=tmp_path / "bundle")
    library = (result.bundle / "model.so").read_bytes()
    assert read_elf(library).arch == "aarch64"
    ((arch, code),) = cubins(library)
    assert arch == "sm_87"
    assert all(f"{kernel.name}_kernel".encode() in code for kernel in result.kernels)
    assert b"__global__" not in library  # no sources, which would have to be compiled on the device
    assert any(
        "TVM's virtual machine, for jetson-orin-cuda is a cuda device" in note for note in result.notes
    )


APP = """
#include <stdio.h>
#include "edgetune_library.h"
int main(int argc, char **argv) {
  edgetune_library library;
  edgetune_model *model;
  edgetune_error error;
  if (argc == 2 && edgetune_library_open_best(argv[1], 0, &library, &model, &error) != 0) puts(error.message);
}
"""


@needs_nvcc
def test_a_bundle_brings_the_runtime_of_its_gpu(tmp_path: Path) -> None:
    result = edgetune.compile(SMALL["softmax"], "h100-cuda", out=tmp_path / "bundle")
    assert [arch for arch, _ in cubins((result.bundle / "model.so").read_bytes())] == ["sm_90"]
    for name in (tvm_runtime.FFI, tvm_runtime.RUNTIME, tvm_runtime.CUDA):
        assert read_elf((result.bundle / name).read_bytes()).arch == "x86_64"
    assert not (result.bundle / "edgetune.h").exists()
    app = tmp_path / "app"
    (tmp_path / "app.c").write_text(APP)
    run([system_compiler(), tmp_path / "app.c", f"-I{SOURCES}", "-ldl", "-o", app])
    assert run([app, result.bundle]) == (
        f"{result.bundle}/model.so has no C API, since it is for a GPU or for a TVM of your own; load it with Python's "
        "edgetune.load, or compile it for a CPU\n"
    )


@needs_nvcc
@pytest.mark.parametrize("name", SORTING)
def test_kernels_that_start_their_threads_themselves(name: str, tmp_path: Path) -> None:
    library = (
        edgetune.compile(SORTING[name], "h100-cuda", out=tmp_path / "bundle").bundle / "model.so"
    ).read_bytes()
    assert [arch for arch, _ in cubins(library)] == ["sm_90"]


def test_without_nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setenv("CUDA_PATH", str(tmp_path))
    monkeypatch.setattr(cuda, "_USUAL", tmp_path / "nvcc")
    with pytest.raises(ToolchainError, match=r"takes NVIDIA's compiler nvcc.*install a CUDA toolkit"):
        edgetune.compile(SMALL["softmax"], "jetson-orin-cuda", out=tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize(
    ("release", "target", "said"),
    [
        ("13.0", "jetson-nano-cuda", r"sm_53\) takes a CUDA toolkit 12.9 or older, and .* is of 13.0"),
        ("10.2", "jetson-orin-cuda", r"sm_87\) takes a CUDA toolkit 11.4 or newer, and .* is of 10.2"),
        ("11.4", "jetson-orin-cuda", ""),
        ("12.9", "jetson-xavier-cuda", ""),
        ("", "jetson-orin-cuda", "does not tell its version"),
    ],
)
def test_toolkits_that_do_not_know_a_gpu(
    release: str, target: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvcc = tmp_path / "nvcc"
    nvcc.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.1'\n")
    nvcc.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    if said:
        with pytest.raises(ToolchainError, match=said):
            cuda.check_nvcc(load_target(target))
    else:
        cuda.check_nvcc(load_target(target))


@pytest.mark.parametrize(
    ("wanted", "present", "runs"),
    [
        ("sm_87", "sm_87", True),
        ("sm_86", "sm_87", True),
        ("sm_87", "sm_86", False),
        ("sm_80", "sm_90", False),
        ("sm_90", "sm_100", False),
        ("sm_90a", "sm_90", True),
        ("sm_120a", "sm_121", False),
        ("sm_87", "", False),
    ],
)
def test_which_machine_code_a_gpu_runs(wanted: str, present: str, runs: bool) -> None:
    assert cuda.runs_cubins(wanted, present) is runs


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize(("name", "arch"), [("jetson-orin-cuda", "sm_87"), ("h100-cuda", "sm_90")])
@pytest.mark.parametrize("kind", ["conv2d", "matmul"])
def test_candidates_of_metaschedule(name: str, arch: str, kind: str, classifier: Lowered) -> None:
    target = load_target(name)
    task = next(task for task in classifier.tasks if kind in task.name)
    spaces = design_spaces(task, target)
    assert len(spaces) > 1
    search = EvolutionarySearch(SearchSettings(target, design_spaces, 7, 1), CostModel(1, 1), task, [])
    candidates = search.propose(6)
    assert len(candidates) == 6
    for candidate in candidates:
        library = build_candidate(task.workload, task.ir, target, candidate.trace)
        assert read_elf(library).arch == target.arch
        assert [found for found, _ in cubins(library)] == [arch]
    kernel = tvm.ir.load_json(task.ir)
    check_values(task, [apply_trace(candidate.trace, kernel) for candidate in candidates])
    # MetaSchedule's own: they share what they read among the threads of a block.
    tiled = [candidate for candidate in candidates if '"shared"' in candidate.trace]
    assert tiled


@needs_nvcc
def test_the_reference_kernel_of_a_gpu() -> None:
    library = build_reference_kernel(load_target("h100-cuda"))
    assert [arch for arch, _ in cubins(library)] == ["sm_90"]


READ = """
import sys
from edgetune.tvm_runtime import engine, load_gpu_runtime
load_gpu_runtime()
(library,) = engine().load_module(sys.argv[1]).imports
(gpu,) = library.imports
print(gpu.kind, *(gpu.implements_function(name) for name in sys.argv[2:]))
"""


@needs_nvcc
@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc")
def test_the_runtime_of_a_gpu_reads_a_library(tmp_path: Path) -> None:
    """TVM's own CUDA runtime, with a driver in name only, reads what was packed."""
    nvcc = cuda.find_nvcc()
    assert nvcc is not None
    root = Path(
        subprocess.check_output(
            ["sh", "-c", f"{nvcc} -dryrun x.cu 2>&1 | sed -n 's/.*TOP=//p'"], text=True
        ).strip()
    )
    folder = next((path.parent for path in root.resolve().glob("lib*/" + tvm_runtime.CUDART)), None)
    if folder is None:
        pytest.skip(f"the toolkit has no {tvm_runtime.CUDART}")
    runtime = tvm_runtime.package_libraries("apache-tvm") / tvm_runtime.CUDA
    names = sorted(set(re.findall(rb"\0(cu[A-Z]\w+)(?=\0)", runtime.read_bytes())))
    source = tmp_path / "driver.c"
    source.write_text("".join(f"int {name.decode()}(void) {{ return 100; }}\n" for name in names))
    driver = ["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(tmp_path / "libcuda.so.1")]
    subprocess.run([*driver, str(source)], check=True)
    made = edgetune.compile(SMALL["softmax"], "h100-cuda", out=tmp_path / "bundle")
    kernels = [f"{made.kernels[0].name}_kernel", "not_there_kernel"]
    said = subprocess.check_output(
        [sys.executable, "-c", READ, str(made.bundle / "model.so"), *kernels],
        env={**os.environ, "LD_LIBRARY_PATH": f"{tmp_path}:{folder}"},
        text=True,
    )
    assert said.split() == ["cuda", "True", "False"]


@pytest.mark.skipif(bool(cuda.local_gpu()), reason="there is a GPU")
def test_what_is_said_where_there_is_no_gpu(tmp_path: Path) -> None:
    check = Path(__file__).parent.parent / "benchmarks" / "cuda_check.py"
    done = subprocess.run(
        [sys.executable, str(check)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 4
    assert done.stderr.startswith("error: there is no NVIDIA GPU")
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
    target = load_target("h100-cuda")
    assert not runs_here(target)
    if runs_here(target.host):
        with pytest.raises(DeviceError, match=r"cannot run code for h100-cuda \(sm_90\)"):
            place("h100-cuda", None, None, Watcher())


def test_a_bundle_of_a_gpu_is_refused_elsewhere(
    stand_in: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu_target = load_target("h100-cuda")
    target = stand_in.target.model_copy(update={"kind": "cuda", "gpu": gpu_target.gpu})
    bundle = replace(stand_in, target=target).write(tmp_path / "bundle").path
    for found, said in (("", "none that NVIDIA's driver shows"), ("sm_87", "one of sm_87")):
        monkeypatch.setattr(reader, "local_gpu", lambda found=found: found)
        with pytest.raises(BundleError, match=rf"a cuda device \(.*, sm_90\), and this machine has {said}"):
            check_loadable(open_bundle(bundle))
    monkeypatch.setattr(reader, "local_gpu", lambda: "sm_90")
    check_loadable(open_bundle(bundle))
    with pytest.raises(BundleError, match="was made for a GPU, whose kernels"):
        profile(bundle)
