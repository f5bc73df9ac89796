"""Standalone libraries through their C API, from Python, and what is and is not in them."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgetune
from edgetune.benchmarking.profile import profile
from edgetune.bundle.storage import write_tar
from edgetune.cpu import architecture, checkable_features, machine_features, missing_features
from edgetune.errors import BundleError, UsageError
from edgetune.standalone.build import build_libraries
from edgetune.standalone.capi import Error as _Error
from edgetune.standalone.capi import Library
from edgetune.standalone.capi import Options as _Options
from edgetune.standalone.compiler import SOURCES
from edgetune.standalone.model import StandaloneModel
from edgetune.standalone.program import Program
from edgetune.targets import Target
from edgetune.verify import compare
from tests.standalone.conftest import VALUES, expected, run, system_compiler
from tests.standalone.contents import check_contents


def loaded(path: Path, threads: int | None = None) -> StandaloneModel:
    model = edgetune.load(path, threads=threads)
    assert isinstance(model, StandaloneModel)
    return model


@pytest.mark.parametrize(
    "options", [{}, {"embed": True}, {"archive": True}, {"archive": True, "embed": True}]
)
def test_outputs_are_right_however_it_is_packed(
    written: Callable[..., Path], options: dict[str, bool], x: np.ndarray
) -> None:
    model = loaded(written(check=compare, **options))
    for scale in (1, 0, 3):
        outputs = model.run({"x": (scale * x).reshape(10, 100)})
        for name, value in expected(scale * x).items():
            np.testing.assert_array_equal(outputs[name].reshape(-1), value)
    assert [spec.name for spec in model.outputs] == ["y", "same", "weight"]


def test_outputs_are_the_callers(written: Callable[..., Path], x: np.ndarray) -> None:
    model = loaded(written())
    first = model.run({"x": x.reshape(10, 100)})
    kept = first["y"].copy()
    model.run({"x": np.zeros((10, 100), np.float32)})
    np.testing.assert_array_equal(first["y"], kept)
    first["weight"][...] = 7
    np.testing.assert_array_equal(
        model.run({"x": x.reshape(10, 100)})["weight"].reshape(-1)[:3], [0, 1 / 8, 2 / 8]
    )


def test_kernels_that_fail_say_which_and_why(written: Callable[..., Path]) -> None:
    model = loaded(written())
    negative = np.full((10, 100), -0.5, np.float32)
    with pytest.raises(BundleError, match="kernel fail failed: the first value is negative"):
        model.run({"x": negative})
    with pytest.raises(BundleError, match="kernel fail failed;"):
        model.run({"x": 4 * negative})
    model.run({"x": -negative})


def test_it_is_loaded_without_tvm(written: Callable[..., Path]) -> None:
    code = (
        "import sys, numpy, edgetune\n"
        f"model = edgetune.load({str(written())!r})\n"
        "model.run({'x': numpy.zeros((10, 100), numpy.float32)})\n"
        "assert not {'tvm', 'tvm_ffi'} & set(sys.modules)\n"
        "assert 'libtvm' not in open('/proc/self/maps').read()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


FORK = """
import os, signal, sys
import edgetune
import numpy as np
signal.alarm(30)  # of the child, too: a wait for threads that are not there has no end
model = edgetune.load(sys.argv[1], threads=2)
x = np.load(sys.argv[2])
before = model.run({"x": x})
if child := os.fork():
    wrong = os.waitpid(child, 0)[1]
    sys.exit(wrong or not all(np.array_equal(before[name], value) for name, value in model.run({"x": x}).items()))
signal.alarm(10)
try:
    for _ in range(3):
        assert all(np.array_equal(before[name], value) for name, value in model.run({"x": x}).items())
    print("the same")
except edgetune.EdgetuneError as error:
    print(error)
del model
"""


def test_the_child_of_a_fork_runs_on_threads_of_its_own(
    written: Callable[..., Path], x: np.ndarray, tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", x.reshape(10, 100))
    assert run([sys.executable, "-c", FORK, written(), tmp_path / "x.npy"]) == "the same\n"


WITHOUT_MEMORY = """
import os, resource, signal, sys
import edgetune
import numpy as np
from edgetune.bundle import reader
reader._MANY_BYTES = 0  # files are read by several threads, however small
model = edgetune.load(sys.argv[1], threads=4)
x = np.load(sys.argv[2])
before = model.run({"x": x})
if child := os.fork():
    sys.exit(os.waitpid(child, 0)[1])
signal.alarm(30)
resource.setrlimit(resource.RLIMIT_AS, (0, 0))
for _ in range(3):
    assert all(np.array_equal(before[name], value) for name, value in model.run({"x": x}).items())
try:
    edgetune.load(sys.argv[1], threads=4)
except edgetune.EdgetuneError as error:
    print(error)
"""


def test_a_child_without_memory_for_threads_goes_on(
    written: Callable[..., Path], x: np.ndarray, tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", x.reshape(10, 100))
    said = run([sys.executable, "-c", WITHOUT_MEMORY, written(), tmp_path / "x.npy"])
    assert "memory" in said


def test_it_can_be_profiled(written: Callable[..., Path]) -> None:
    result = profile(written(), runs=2)
    rows = {row.name: row for row in result.kernels}
    assert rows.keys() == {"add", "nested", "fail", "copy"}
    assert rows["add"].calls == rows["copy"].calls == 2
    assert rows["add"].bytes == 2 * 3 * 4 * VALUES
    assert all(row.time_us > 0 for row in result.kernels)


class Api:
    """The C API, and its errors as text."""

    def __init__(self, path: Path) -> None:
        self.functions = Library(path)

    def open(self, weights: Path | None, flags: int = 0) -> tuple[int, str]:
        model, error = ctypes.c_void_p(), _Error()
        path = None if weights is None else str(weights).encode()
        status = self.functions.open(path, flags, ctypes.byref(model), ctypes.byref(error))
        self.functions.close(model)
        return status, error.message.decode()


def test_damaged_weights_are_refused_in_one_sentence(written: Callable[..., Path]) -> None:
    bundle = written()
    api, weights = Api(bundle / "model.so"), bundle / "weights.bin"
    assert api.open(weights) == (0, "")
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1])
    assert api.open(weights) == (
        4,
        f"the weights of hand made have {len(whole) - 1} bytes in place of {len(whole)}; copy them again",
    )
    weights.write_bytes(b"")
    assert "have 0 bytes" in api.open(weights)[1]
    weights.write_bytes(whole[:100] + bytes([whole[100] ^ 4]) + whole[101:])
    assert api.open(weights) == (4, "the weights of hand made were changed or damaged; copy them again")
    assert api.open(weights, flags=1) == (0, "")
    weights.unlink()
    status, message = api.open(weights)
    assert status == 3
    assert message.startswith(f"cannot open {weights}"[:200])
    assert api.open(None)[0] == 1
    with pytest.raises(BundleError, match=r"weights.bin is missing"):
        edgetune.load(bundle)


def test_a_damaged_library_is_refused_before_it_is_loaded(written: Callable[..., Path]) -> None:
    library = written() / "model.so"
    data = bytearray(library.read_bytes())
    data[len(data) // 2] ^= 1
    library.write_bytes(data)
    with pytest.raises(BundleError, match=r"model.so was changed or damaged"):
        edgetune.load(library.parent)


def test_what_a_process_lacks_is_said(
    written: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = written()
    write_tar(bundle, tmp_path / "bundle.tar")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    with pytest.raises(BundleError, match=r"without a place for temporary files .*; set TMPDIR"):
        edgetune.load(tmp_path / "bundle.tar")
    edgetune.load(bundle)
    for threads in ("2", 1.5, 0):
        with pytest.raises(UsageError, match="is not a number of threads"):
            edgetune.load(bundle, threads=threads)  # type: ignore[arg-type]


def test_a_cpu_without_a_feature_is_refused(
    handmade: Program, local_target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rare = {"x86_64": ("xop", "fma4", "avx512vpopcntdq"), "aarch64": ("sve2",), "arm": (), "riscv64": ("v",)}
    missing = missing_features(rare[architecture()])
    if not missing:
        pytest.skip("this CPU has all the features that the test knows")
    monkeypatch.setattr(Target, "required_features", lambda _: ("avx", *missing))
    libraries = build_libraries(handmade, "rare", local_target, embed=True)
    path = tmp_path / "rare.so"
    path.write_bytes(libraries.shared)
    status, message = Api(path).open(None)
    assert status == 5
    assert f"uses the CPU feature {missing[0]}, which this machine lacks" in message


FEATURES = """
#include <stdio.h>
#include "internal.h"
int main(int argc, char **argv) {
  for (int i = 1; i < argc; i++) {
    const char *wanted[] = {argv[i], NULL};
    if (et_missing_feature(wanted) != NULL) puts(argv[i]);
  }
}
"""


def test_every_feature_that_python_knows_is_looked_for(tmp_path: Path) -> None:
    """The CPU's own word in C against the kernel's in Python."""
    (tmp_path / "app.c").write_text(FEATURES)
    files = [tmp_path / "app.c", SOURCES / "cpu.c", f"-I{SOURCES}", "-o", tmp_path / "app"]
    run([system_compiler(), *files])
    # Of RISC-V's, the auxiliary vector shows those of one letter.
    known = {name for name in checkable_features() if architecture() != "riscv64" or len(name) == 1}
    assert set(run([tmp_path / "app", *sorted(known)]).split()) == known - machine_features()


@pytest.fixture
def api(written: Callable[..., Path]) -> Any:
    """The functions of a library that has its weights inside, those among them that Python does not use."""
    functions: Any = Library(written(embed=True) / "model.so")
    signature = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_size_t]
    for name in ("set_input", "bind_input", "bind_output", "get_output"):
        function = getattr(functions.loaded, f"edgetune_{name}")
        function.argtypes = signature
        setattr(functions, name, function)
    return functions


def create(api: Any, **options: Any) -> tuple[int, ctypes.c_void_p, str]:
    model, instance, error = ctypes.c_void_p(), ctypes.c_void_p(), _Error()
    assert api.open(None, 0, ctypes.byref(model), None) == 0
    cores = options.pop("cores", [])
    wanted = _Options(cores=(ctypes.c_int32 * len(cores))(*cores), num_cores=len(cores), **options)
    status = api.create(model, ctypes.byref(wanted), ctypes.byref(instance), ctypes.byref(error))
    api.close(model)
    return status, instance, error.message.decode()


def test_wrong_calls_are_errors_not_crashes(api: Any) -> None:
    status, instance, _ = create(api)
    assert status == 0
    size = 4 * VALUES
    assert api.set_input(instance, 0, b"1234", 4) == 1
    assert api.last_error(instance) == (
        b"input x of hand made has 4000 bytes, not 4; give all of it in its own type"
    )
    assert api.set_input(instance, 1, bytes(size), size) == 1
    assert b"has no input of this index" in api.last_error(instance)
    assert api.set_input(instance, 0, None, size) == 1
    assert api.get_output(instance, -1, bytes(size), size) == 1
    assert api.bind_input(instance, 0, 12, size) == 1
    assert b"multiple of 64 bytes" in api.last_error(instance)
    assert not api.input(instance, -1)
    assert not api.output(instance, 3)
    assert api.run(instance) == 0
    api.free(instance)
    assert api.create(None, None, ctypes.byref(instance), None) == 1


def test_threads_and_cores_are_the_apps_to_choose(api: Any, x: np.ndarray) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    for options in ({"threads": 5, "cores": allowed[:1]}, {"threads": 3, "spin_us": -1}, {"threads": 1}):
        others = {int(name) for name in os.listdir("/proc/self/task")}
        status, instance, message = create(api, **options)
        assert status == 0, message
        before = os.sched_getaffinity(0)
        # Threads are sent to another core at first, and are free again when create returns.
        threads = {int(name) for name in os.listdir("/proc/self/task")} - others
        wanted = set(options.get("cores", allowed))
        assert [os.sched_getaffinity(thread) for thread in threads] == [wanted] * (options["threads"] - 1)
        ctypes.memmove(api.input(instance, 0), x.ctypes.data, x.nbytes)
        for _ in range(20):
            assert api.run(instance) == 0
        result = np.ctypeslib.as_array((ctypes.c_float * VALUES).from_address(api.output(instance, 0)))
        np.testing.assert_array_equal(result, expected(x)["y"])
        assert os.sched_getaffinity(0) == before
        api.free(instance)
    assert create(api, threads=1000)[::2] == (
        1,
        "the number of threads is not between 1 and 256; correct options.threads",
    )
    assert "a core is not between" in create(api, cores=[-1])[2]


def test_inputs_and_outputs_in_memory_of_the_app(api: Any, x: np.ndarray) -> None:
    _, instance, _ = create(api)
    memory = np.zeros(3 * VALUES + 64, np.float32)
    start = -memory.ctypes.data % 64 // 4
    given, result = memory[start : start + VALUES], memory[start + 1024 : start + 1024 + VALUES]
    given[...] = x
    size = 4 * VALUES
    assert api.bind_input(instance, 0, given.ctypes.data, size) == 0
    assert api.bind_output(instance, 0, result.ctypes.data, size) == 0
    assert api.run(instance) == 0
    np.testing.assert_array_equal(result, expected(x)["y"])
    assert api.output(instance, 0) == result.ctypes.data
    # Back to its own memory: of the input by setting it, of the output by binding nothing.
    twice = 2 * x
    assert api.set_input(instance, 0, twice.ctypes.data, size) == 0
    assert api.bind_output(instance, 0, None, size) == 0
    assert api.run(instance) == 0
    np.testing.assert_array_equal(result, expected(x)["y"])
    own = np.empty(VALUES, np.float32)
    assert api.get_output(instance, 0, own.ctypes.data, size) == 0
    np.testing.assert_array_equal(own, expected(twice)["y"])
    api.free(instance)


def test_contents(written: Callable[..., Path]) -> None:
    library = written() / "model.so"
    check_contents(library)
    # The runtime with next to no kernels: what it adds to a model.
    assert library.stat().st_size < 60_000


def test_the_same_input_gives_the_same_bytes(written: Callable[..., Path]) -> None:
    one, two = written("one"), written("two")
    for file in one.iterdir():
        assert file.read_bytes() == (two / file.name).read_bytes(), file.name
