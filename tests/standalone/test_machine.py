"""Models that need TVM's virtual machine: the C API and the runtime in their bundles, which need no package."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import edgetune
from edgetune.bundle.reader import open_bundle
from edgetune.cpu import architecture
from edgetune.targets import Target, load_target
from tests.standalone.conftest import GNU, HERE, run, system_compiler, tool
from tests.standalone.examples import java_example, rust_example
from tests.standalone.topk import WEIGHT, compiled, model

pytestmark = pytest.mark.skipif(
    architecture() not in ("x86_64", "aarch64"), reason="TVM has no wheel for this machine"
)
RUNTIME = ("libtvm_ffi.so", "libtvm_runtime.so", "libtvm_runtime_extra.so")


@pytest.fixture(scope="module")
def bundle(local_target: Target, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(local_target, tmp_path_factory.mktemp("machine") / "best")


def values(rows: int) -> np.ndarray:
    """What ``machine.c`` gives as input."""
    return (np.arange(rows * 16) * 7 % 17).astype(np.float32).reshape(rows, 16)


def wanted() -> list[str]:
    """What it says: the largest score, and its index before and after a change of the input."""
    lines = []
    for rows in (1, 4):
        x = values(rows)
        before = int(np.argmax((x @ WEIGHT)[0]))
        x[0, 0] = 1000
        scores = (x @ WEIGHT)[0]
        lines.append(f"{rows}: {scores.max():g} {before} {int(np.argmax(scores))}")
    return lines


def test_what_is_carried(bundle: Path) -> None:
    manifest = open_bundle(bundle).manifest
    assert manifest.engine == "vm"
    assert set(RUNTIME) | {"edgetune.h", "edgetune_library.h", "edgetune.hpp"} <= set(manifest.files)
    licences = (bundle / "tvm-licenses.txt").read_text()
    assert "Apache License" in licences
    assert licences.count("The Apache Software Foundation (http://www.apache.org/)") == 2


def test_an_app_in_c(bundle: Path, tmp_path: Path) -> None:
    app = tmp_path / "app"
    strict = ["-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{bundle}"]
    run([system_compiler(), *strict, HERE / "machine.c", "-o", app, "-ldl", "-pthread"])
    lines = sorted(run([app, bundle], env={"PATH": ""}).splitlines())
    assert lines == wanted()


CPP = """
#include <cstdio>
#include <vector>
#include "edgetune.hpp"
int main(int, char **arguments) {
  const edgetune::Model model = edgetune::Model::load(arguments[1]);
  for (int size = 0; size < model.num_sizes(); size++) {
    edgetune::Model sized = model.size(size);
    edgetune::Instance instance(sized, 1);
    std::vector<float> ones(sized.input(0).size_bytes / sizeof(float), 1.0f);
    instance.set_input(0, ones);
    instance.run();
    std::printf("%d %d\\n", (int)sized.output(1).shape[0], (int)*instance.output<int64_t>(1));
  }
  try {
    model.size(model.num_sizes());
  } catch (const edgetune::Error &error) {
    std::printf("%s\\n", error.what());
  }
}
"""


def test_an_app_in_cpp(bundle: Path, tmp_path: Path) -> None:
    source, app = tmp_path / "app.cpp", tmp_path / "app"
    source.write_text(CPP)
    strict = ["-std=c++14", "-Wall", "-Wextra", "-Werror", f"-I{bundle}"]
    run([system_compiler("c++"), *strict, source, "-o", app, "-ldl"])
    best = int(np.argmax(WEIGHT.sum(axis=0)))
    refused = "there is no such combination of sizes; see edgetune_num_sizes"
    assert run([app, bundle]).splitlines() == [f"4 {best}", f"1 {best}", refused]


def test_java_and_rust(bundle: Path, tmp_path: Path) -> None:
    """Their examples, on ones, at the largest sizes; a JVM keeps its handler of SIGSEGV, or says so."""
    best = np.sort(WEIGHT.sum(axis=0))[::-1][:3]  # of each row; the examples print the first four values
    lines = run([*java_example(bundle, tmp_path), bundle]).splitlines()
    # The JVM's own thread may look while TVM's libraries are being loaded, before the handler is put back: it then
    # prints a table of all handlers.
    lines = [line for line in lines if line.startswith(("input ", "output "))]
    assert lines[0] == "input x FLOAT32[4, 16]"
    assert json.loads(lines[1].removeprefix("output values ")) == pytest.approx([*best, best[0]])
    of_rust = run([rust_example(tmp_path / "target"), bundle]).splitlines()
    assert of_rust[0] == "input x [4, 16]"
    assert json.loads(of_rust[1].removeprefix("output values ")) == pytest.approx([*best, best[0]])
    assert of_rust[2:] == ["error: indices holds values of another type"]


TINY = """
import sys
sys.path.insert(0, sys.argv[1])
import edgetune_runtime
import numpy as np
try:
    model = edgetune_runtime.load(sys.argv[2], threads=1)
    again = edgetune_runtime.load(sys.argv[2])
    for rows in (4, 1, 4, 2):
        x = (np.arange(rows * 16) * 7 % 17).astype(np.float32).reshape(rows, 16)
        found, other = model.run({"x": x}), again.run({"x": x})
        assert all(np.array_equal(found[name], other[name]) for name in found)
        print(found["indices"].tolist())
except (edgetune_runtime.BundleError, ValueError) as error:
    print(error)
foreign = {"edgetune", "tvm", "tvm_ffi", "pydantic", "onnx"} & set(sys.modules)
assert not foreign, foreign
"""


def test_the_small_package_for_python(bundle: Path, wheel: Path, tmp_path: Path) -> None:
    def say(path: Path) -> list[str]:
        return run([sys.executable, "-I", "-c", TINY, wheel, path]).splitlines()

    *found, refused = say(bundle)
    best = [np.argsort(-(values(rows) @ WEIGHT), axis=1, kind="stable")[:, :3] for rows in (4, 1, 4)]
    assert found == [str(indices.tolist()) for indices in best]
    assert refused == "best has no code for inputs of the shapes {'x': (2, 16)}, but for: x[4, 16]; x[1, 16]"
    copy = tmp_path / "copy"
    shutil.copytree(bundle, copy)
    (copy / RUNTIME[0]).unlink()
    assert "cannot be read" in say(copy)[0]
    whole = (bundle / RUNTIME[0]).read_bytes()
    (copy / RUNTIME[0]).write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    assert say(copy) == [f"{copy / RUNTIME[0]} was changed or damaged; copy the bundle again"]


BOTH = """
import gc, os, signal, sys
sys.path.insert(0, sys.argv[1])
import edgetune, edgetune_runtime
import numpy as np
x = (np.arange(16) * 7 % 17).astype(np.float32).reshape(1, 16)
loaders = {"edgetune": edgetune.load, "small": edgetune_runtime.load}
models = {}
try:
    for name in sys.argv[3:]:
        models[name] = loaders[name](sys.argv[2])
        models[name].run({"x": x})
    del models[name]
    gc.collect()
    (rest,) = models.values()
    print(rest.run({"x": x})["indices"].tolist(), flush=True)
except edgetune.EdgetuneError as error:
    print(error)
if os.fork():
    sys.exit(os.wait()[1])
signal.alarm(30)
try:
    models.popitem()[1].run({"x": x})
except (edgetune.EdgetuneError, edgetune_runtime.BundleError) as error:
    print(error)
os._exit(0)
"""


@pytest.mark.parametrize("first", ["edgetune", "small"])
def test_both_loaders_in_one_process_and_its_fork(bundle: Path, wheel: Path, first: str) -> None:
    """The packages' TVM serves both; a bundle's own cannot stand beside it."""
    second = {"edgetune": "small", "small": "edgetune"}[first]
    said, forked = run([sys.executable, "-c", BOTH, wheel, bundle, first, second]).splitlines()
    best = np.argsort(-(values(1) @ WEIGHT), axis=1, kind="stable")[:, :3]
    refused = f"this process runs a bundle with the copy of TVM in {bundle / RUNTIME[0]}, and cannot load"
    assert said.startswith(str(best.tolist()) if first == "edgetune" else refused)
    assert "the fork of one that ran a model" in forked


def test_on_an_emulated_machine(tmp_path: Path) -> None:
    """TVM's runtime for 64-bit ARM in the bundle, TVM's kernels, and nothing but the C API."""
    compiler, emulator = tool(f"{GNU['aarch64']}-gcc", "qemu-aarch64-static")
    path = compiled(load_target("armv8-a"), tmp_path / "best")
    app = tmp_path / "app"
    run([compiler, f"-I{path}", HERE / "machine.c", "-o", app, "-ldl", "-pthread"])
    assert sorted(run([emulator, "-L", f"/usr/{GNU['aarch64']}", app, path]).splitlines()) == wanted()


def test_several_targets_in_one(
    bundle: Path, wheel: Path, tmp_path: Path, run_cli: Callable[..., tuple[int, str, str]]
) -> None:
    """The runtime is stored once, and found by apps and by the small package."""
    if architecture() != "x86_64":
        pytest.skip("needs a second target for this machine")
    older, merged = tmp_path / "older", tmp_path / "merged"
    compiled(load_target("x86-64-v3"), older)
    code, _, said = run_cli("bundle", "merge", str(older), str(bundle), "--out", str(merged))
    assert code == 0, said
    assert sorted(path.name for path in merged.glob("libtvm*")) == sorted(RUNTIME)
    assert len((merged / "variants").read_text().splitlines()) == 2
    assert len(run([sys.executable, "-I", "-c", TINY, wheel, merged]).splitlines()) == 4
    app = tmp_path / "app"
    run([system_compiler(), f"-I{merged}", HERE / "machine.c", "-o", app, "-ldl", "-pthread"])
    assert len(run([app, merged]).splitlines()) == 2


def test_a_target_without_wheels_says_so(tmp_path: Path) -> None:
    result = edgetune.compile(model(), "armv7-a", shapes={"x": (1, 16)}, out=tmp_path / "arm")
    assert any("must be on the device: there is no package of TVM's runtime" in note for note in result.notes)
    assert not list((tmp_path / "arm").glob("libtvm*"))
