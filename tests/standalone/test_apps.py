"""Apps in C and C++ with a model in them: natively, under sanitizers, and on emulated machines."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edgetune.standalone.build import ARCHIVE, build_libraries
from edgetune.standalone.emit import Identity, PackedWeights, emit_program
from edgetune.standalone.program import Program
from edgetune.standalone.weights import checksum, pack
from edgetune.targets import Target, load_target
from tests.standalone.conftest import (
    HERE,
    expected,
    program,
    run,
    runtime_sources,
    stress,
    system_compiler,
    target_for,
)
from tests.standalone.contents import check_contents, needed
from tests.standalone.examples import example


def test_eight_instances_at_once_and_nothing_allocated(written: Callable[..., Path], tmp_path: Path) -> None:
    bundle = written()
    glibc = shutil.which("getconf") is not None and "glibc" in os.confstr("CS_GNU_LIBC_VERSION")
    counted = ["-DCOUNT"] if glibc else []
    app = stress(bundle, system_compiler(), tmp_path / "stress", *counted)
    assert run([app, "500", bundle / "weights.bin"]) == "0\n"


def test_valgrind_finds_nothing(
    written: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library as it ships; threads sleep at once, for valgrind runs one at a time."""
    # Valgrind's CPU lacks some of this one's features, which the hand-written kernels do not use.
    monkeypatch.setattr(Target, "required_features", lambda _: ())
    if shutil.which("valgrind") is None:
        pytest.skip("needs valgrind")
    app = stress(written(embed=True), system_compiler(), tmp_path / "stress", "-DSPIN_US=-1")
    checks = ["--error-exitcode=9", "--leak-check=full", "--show-leak-kinds=all", "--quiet"]
    assert run(["valgrind", *checks, "--errors-for-leak-kinds=all", app, "3"]) == "0\n"


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_sanitizers_find_nothing(handmade: Program, sanitizer: str, tmp_path: Path) -> None:
    """The runtime, compiled anew, with the hand-written kernels."""
    compiler = system_compiler()
    data, offsets = pack(handmade.weights)
    (tmp_path / "weights.bin").write_bytes(data)
    packed = PackedWeights(offsets, len(data), checksum(data), False)
    (tmp_path / "program.c").write_text(emit_program(handmade, Identity("hand made", "", (), 2), packed))
    (tmp_path / "model.h").write_text('#include "edgetune.h"\nextern const edgetune_program PROGRAM;\n')
    sources = [HERE / "stress.c", HERE / "kernels.c", tmp_path / "program.c", *runtime_sources()]
    options = ["-O1", "-g", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-std=gnu11"]
    folders = [f"-I{tmp_path}", f"-I{runtime_sources()[0].parent}"]
    app = tmp_path / "app"
    linked = [*options, "-DPROGRAM=edgetune_program_hand_made", *folders, *sources, "-o", app, "-pthread"]
    probe = tmp_path / "probe.c"
    probe.write_text("int main(void) { return 0; }\n")
    try:
        run([compiler, f"-fsanitize={sanitizer}", probe, "-o", tmp_path / "probe"])
        run([tmp_path / "probe"])
    except AssertionError:
        pytest.skip(f"needs a compiler with -fsanitize={sanitizer}, and a kernel that its programs run on")
    run([compiler, *linked])
    assert run([app, "50", tmp_path / "weights.bin"]) == "0\n"


def test_the_example_in_c(written: Callable[..., Path], x: np.ndarray, tmp_path: Path) -> None:
    bundle = written()
    (tmp_path / "classify.c").write_text(example("c"))
    x.tofile(tmp_path / "input.bin")
    app = tmp_path / "classify"
    strict = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    run(
        [
            *(system_compiler(), *strict, tmp_path / "classify.c", f"-I{bundle}", bundle / "model.so"),
            *(f"-Wl,-rpath,{bundle}", "-o", app),
        ]
    )
    said = run([app, bundle / "weights.bin", tmp_path / "input.bin", tmp_path / "output.bin"])
    assert said.startswith("hand made: y, 6 kernels")
    np.testing.assert_array_equal(np.fromfile(tmp_path / "output.bin", np.float32), expected(x)["y"])


def test_the_example_in_cpp(written: Callable[..., Path], tmp_path: Path) -> None:
    bundle = written()
    (tmp_path / "app.cpp").write_text(example("cpp"))
    app = tmp_path / "app"
    strict = ["-std=c++14", "-Wall", "-Wextra", "-Werror"]
    run(
        [
            *(system_compiler("c++"), *strict, tmp_path / "app.cpp", f"-I{bundle}", "-ldl", "-o", app),
        ]
    )
    assert run([app, bundle]) == "0\n"


def test_the_example_in_python(written: Callable[..., Path], tmp_path: Path) -> None:
    bundle = written("classifier")
    code = example("python")
    assert '"classifier"' in code
    assert "'y': (10, 100)" in run([sys.executable, "-c", code], cwd=bundle.parent)


def test_on_emulated_machines(
    emulated: tuple[str, str, str], local_target: Target, x: np.ndarray, tmp_path: Path
) -> None:
    """The static library in a static app; the shared one has what it may have."""
    arch, compiler, emulator = emulated
    target = target_for(arch, local_target)
    made = program(arch, tmp_path)
    libraries = build_libraries(made, "hand made", target, embed=True)
    for name, data in {**libraries.headers, ARCHIVE: libraries.static, "model.so": libraries.shared}.items():
        (tmp_path / name).write_bytes(data)
    check_contents(tmp_path / "model.so")
    app = stress(tmp_path, compiler, tmp_path / "stress", static=True)
    assert run([emulator, app, "20"]) == "0\n"
    source = example("c").replace("edgetune_open(", "edgetune_open_program(&edgetune_program_hand_made, ")
    (tmp_path / "classify.c").write_text(source.replace('"edgetune.h"', '"model.h"'))
    x.tofile(tmp_path / "input.bin")
    files = [tmp_path / "classify.c", f"-I{tmp_path}", tmp_path / ARCHIVE, "-o", tmp_path / "classify"]
    run([compiler, "-static", *files, "-pthread", "-lm"])
    run([emulator, tmp_path / "classify", "none", tmp_path / "input.bin", tmp_path / "output.bin"])
    np.testing.assert_array_equal(np.fromfile(tmp_path / "output.bin", np.float32), expected(x)["y"])


def test_android(tmp_path: Path) -> None:
    """Nothing here runs it: it is for bionic, and laid out for pages of 16 KB."""
    target = load_target("snapdragon-8-gen-2")
    libraries = build_libraries(program("aarch64", tmp_path), "hand made", target, embed=True)
    (tmp_path / "edgetune.h").write_bytes(libraries.headers["edgetune.h"])
    (tmp_path / "model.so").write_bytes(libraries.shared)
    check_contents(tmp_path / "model.so", page_bytes=16384)
    assert needed(tmp_path / "model.so") == {"libm.so", "libc.so"}


WITHOUT_ZIG = """
import sys
from pathlib import Path
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name == "ziglang":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Hide())
from edgetune.cpu import architecture
from edgetune.standalone.build import build_libraries
from edgetune.standalone.compiler import find_compiler
from edgetune.targets import detect_local
from tests.standalone.conftest import program
out = Path(sys.argv[1])
made = build_libraries(program(architecture(), out), "hand made", detect_local(), embed=True)
for name, data in {**made.headers, "libmodel.a": made.static, "model.so": made.shared}.items():
    (out / name).write_bytes(data)
print(Path(find_compiler(architecture())[0]).name)
"""


def test_a_systems_compiler_serves_where_zig_is_missing(tmp_path: Path) -> None:
    compiler = system_compiler()
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(HERE.parents[1])}
    used = run([sys.executable, "-c", WITHOUT_ZIG, tmp_path], env=environment, cwd=HERE.parents[1])
    assert used.strip().endswith(("gcc", "cc", "clang"))
    check_contents(tmp_path / "model.so")
    assert run([stress(tmp_path, compiler, tmp_path / "stress"), "10"]) == "0\n"
