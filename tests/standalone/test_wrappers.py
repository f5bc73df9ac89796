"""The wrappers for other languages, each with its example, on a bundle."""

from __future__ import annotations

import json
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edgetune.bundle.manifest import with_digest
from edgetune.cpu import architecture
from edgetune.standalone.build import build_libraries
from edgetune.targets import Target
from edgetune.toolchain import _empty_object, link_shared
from tests.standalone.conftest import GNU, HERE, expected, program, run, target_for, tool
from tests.standalone.examples import java_example, rust_example

ROOT = HERE.parents[1]
FIRST = [3 + 2 * index / 8 for index in range(4)]
"""The beginning of the hand-made program's first output for ones: (1 + w) + ((1 + w) + 1), w in eighths."""


def damaged(bundle: Path, folder: Path) -> Path:
    """A copy of a bundle with a changed byte in its weights."""
    copy = folder / "damaged"
    shutil.copytree(bundle, copy)
    data = bytearray((copy / "weights.bin").read_bytes())
    data[100] ^= 1
    (copy / "weights.bin").write_bytes(data)
    return copy


def say_what_is_wrong(load: Callable[[Path], str], bundle: Path, folder: Path) -> None:
    """A library for another machine, and a shortened one, which glibc's loader would die of, are one sentence each."""
    library = folder / "wrong/model.so"
    library.parent.mkdir()
    machine = "riscv64" if architecture() != "riscv64" else "x86_64"
    link_shared([_empty_object(machine)], library, f"{machine}-linux-gnu")
    assert load(library.parent) == (
        f"error: {library} was compiled for {machine} machines, this is another; compile it for this machine\n"
    )
    whole = (bundle / "model.so").read_bytes()
    for size in (40, 1000, len(whole) - 1):
        library.write_bytes(whole[:size])
        assert load(library.parent) == f"error: {library} was cut short, it has {size} bytes; copy it again\n"


def test_java(written: Callable[..., Path], tmp_path: Path) -> None:
    bundle = written()
    example = java_example(bundle, tmp_path)
    lines = run([*example, bundle]).splitlines()
    assert lines[:2] == ["input x FLOAT32[10, 100]", f"output y {FIRST}"]
    assert len(lines) == 4
    assert run([*example, damaged(bundle, tmp_path)]) == (
        "error: the weights of hand made were changed or damaged; copy them again\n"
    )
    assert run([*example, tmp_path / "none"]).startswith("error: ")
    say_what_is_wrong(lambda folder: run([*example, folder]), bundle, tmp_path)


def test_rust(written: Callable[..., Path], tmp_path: Path) -> None:
    bundle, example = written(), rust_example(tmp_path / "target")
    lines = run([example, bundle]).splitlines()
    assert lines[:2] == ["input x [10, 100]", f"output y {FIRST}"]
    assert lines[-2:] == [f"thread {FIRST}", "refused: y holds values of another type"]
    assert run([example, damaged(bundle, tmp_path)]) == (
        "error: the weights of hand made were changed or damaged; copy them again\n"
    )
    assert "No such file or directory; check the path" in run([example, tmp_path / "none"])
    say_what_is_wrong(lambda folder: run([example, folder]), bundle, tmp_path)


TINY = """
import sys, time
sys.path.insert(0, sys.argv[1])
import edgetune_runtime
import numpy as np
try:
    model = edgetune_runtime.load(sys.argv[2], threads=2)
    x = np.load(sys.argv[3])
    print(model.inputs, float(model.run({"x": x})["y"].sum()))
    try:
        model.run({"x": x.astype(np.float64)})
    except ValueError as error:
        print(error)
except edgetune_runtime.BundleError as error:
    print(error)
foreign = {"edgetune", "tvm", "tvm_ffi", "pydantic", "onnx"} & set(sys.modules)
assert not foreign, foreign
"""


def test_the_small_package_for_python(
    written: Callable[..., Path], wheel: Path, x: np.ndarray, tmp_path: Path
) -> None:
    bundle = written()
    np.save(tmp_path / "x.npy", x.reshape(10, 100))

    def say(path: Path) -> list[str]:
        return run([sys.executable, "-I", "-c", TINY, wheel, path, tmp_path / "x.npy"]).splitlines()

    lines = say(bundle)
    assert lines[0].startswith("(Tensor(name='x', dtype='float32', shape=(10, 100)),)")
    assert float(lines[0].split()[-1]) == pytest.approx(float(expected(x)["y"].sum()))
    assert lines[1].startswith("input x of hand made is float64[10, 100], it takes float32[10, 100]")
    for name in ("model.so", "weights.bin", "manifest.json"):
        whole = (bundle / name).read_bytes()
        (bundle / name).write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
        (line,) = say(bundle)
        assert name in line
        assert "damaged" in line
        (bundle / name).write_bytes(whole)
    content = json.loads((bundle / "manifest.json").read_text())
    content.pop("digest")
    content["target"]["kind"] = "cuda"
    (tmp_path / "gpu").mkdir()
    (tmp_path / "gpu/manifest.json").write_bytes(with_digest(content))
    assert (
        "runs code for CPUs alone with this package, and for cuda with edgetune.load"
        in say(tmp_path / "gpu")[0]
    )
    (bundle / "model.so").unlink()
    assert "cannot be read" in say(bundle)[0]
    assert "is not a bundle" in say(tmp_path)[0]


def test_the_native_part_of_the_android_app(local_target: Target, x: np.ndarray, tmp_path: Path) -> None:
    """Built for 64-bit ARM by its usual compiler, and run by qemu."""
    compiler, emulator = tool(f"{GNU['aarch64']}-g++", "qemu-aarch64-static")
    target = target_for("aarch64", local_target)
    libraries = build_libraries(program("aarch64", tmp_path), "hand made", target, embed=True)
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / "weights.bin").touch()
    for name, data in {**libraries.headers, "model.so": libraries.shared}.items():
        (bundle / name).write_bytes(data)
    main = tmp_path / "main"
    shutil.copytree(ROOT / "examples/android/app/src/main/cpp", main / "cpp")
    runpy.run_path(str(ROOT / "examples/android/bring.py"))["bring"](bundle, main)
    (tmp_path / "main.cpp").write_text(
        '#include <cstdio>\n#include <vector>\n#include "classifier.hpp"\n'
        "int main() {\n"
        '  Classifier classifier("libclassifier.so", 2);\n'
        "  std::vector<float> image(classifier.values(), 0.5f);\n"
        '  std::printf("%g\\n", classifier.turned(image.data()));\n'
        "}\n"
    )
    strict = ["-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{main}/cpp/include", f"-I{main}/cpp"]
    app = tmp_path / "app"
    run([compiler, *strict, tmp_path / "main.cpp", main / "cpp/classifier.cpp", "-ldl", "-o", app])
    libraries_of = f"LD_LIBRARY_PATH={main}/jniLibs/arm64-v8a"
    said = run([emulator, "-L", f"/usr/{GNU['aarch64']}", "-E", libraries_of, app])
    # (0.5 + 1/8) + ((0.5 + 1/8) + 0.5), the weight at 1 being 1/8.
    assert said == "1.75\n"
    javac = shutil.which("javac")
    if javac is not None:
        home = Path(javac).resolve().parents[1]
        java = [f"-I{home}/include", f"-I{home}/include/linux"]
        files = [main / "cpp/jni.cpp", main / "cpp/classifier.cpp"]
        run([compiler, *strict, *java, "-shared", "-fPIC", *files, "-o", tmp_path / "libclassifier_jni.so"])
        shown = subprocess.run(
            ["nm", "-D", tmp_path / "libclassifier_jni.so"], capture_output=True, text=True
        ).stdout
        assert "Java_org_edgetune_example_Classifier_turned" in shown
