"""A program of hand-written kernels, and the tools to build C for this machine and for emulated ones."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgetune.cpu import architecture
from edgetune.records import PreparedModel, TensorSpec
from edgetune.standalone.compiler import SOURCES, compile_object
from edgetune.standalone.program import Place, Program, Space, Step
from edgetune.targets import Target

HERE = Path(__file__).parent
VALUES = 1000
WEIGHT = np.arange(VALUES, dtype=np.float32) / 8
GNU = {"aarch64": "aarch64-linux-gnu", "arm": "arm-linux-gnueabihf", "riscv64": "riscv64-linux-gnu"}

Values = np.ndarray


def expected(x: Values) -> dict[str, Values]:
    """What the program computes, with NumPy."""
    first = x + WEIGHT
    return {"y": first + (first + x), "same": x, "weight": WEIGHT}


def program(arch: str, folder: Path) -> Program:
    """One input; three outputs: sums by way of two intermediate tensors, the input, and a weight."""
    kernels = folder / f"kernels-{arch}.o"
    compile_object(HERE / "kernels.c", kernels, arch)
    size = VALUES * 4
    spec = TensorSpec("x", "float32", (10, 100))
    return Program(
        kernels=kernels.read_bytes(),
        steps=(
            Step("add", "__tvm_ffi_add", (0, 1, 2), 3 * size),
            Step("nested", "__tvm_ffi_nested", (2, 0, 3), 3 * size),
            Step("add", "__tvm_ffi_add", (2, 3, 4), 3 * size),
            Step("fail", "__tvm_ffi_fail", (0,), size),
            Step("copy", "", (0, 5), size),
            Step("copy", "", (1, 6), size),
        ),
        places=(
            Place(Space.INPUT, 0),
            Place(Space.WEIGHTS, 1),
            Place(Space.ARENA, 0),
            Place(Space.ARENA, 4032),
            *(Place(Space.OUTPUT, index) for index in range(3)),
        ),
        arena_bytes=2 * 4032,
        workspace_bytes=size,
        inputs=(spec,),
        outputs=tuple(TensorSpec(name, "float32", (10, 100)) for name in ("y", "same", "weight")),
        weights=(np.zeros(3, np.int8), WEIGHT),
    )


def prepared(of: Program, x: Values) -> PreparedModel:
    """The model that the program might have come from, with a reference run."""
    outputs = {name: value.reshape(10, 100) for name, value in expected(x.reshape(-1)).items()}
    return PreparedModel(
        "hand made", "0" * 64, b"", of.inputs, of.outputs, (), {"x": x.reshape(10, 100)}, outputs
    )


def write_handmade(folder: Path, target: Target) -> Path:
    """The program as a bundle for this machine; its path."""
    from edgetune.bundle.assemble import write_bundle
    from edgetune.standalone.build import build_standalone

    of = program(architecture(), folder)
    compiled, model = build_standalone(of, "hand made", target), prepared(of, np.zeros(VALUES, np.float32))
    return write_bundle(folder / "bundle", compiled, model, target, [], check=None).path


def target_for(arch: str, local: Target) -> Target:
    """A target for an architecture: hand-written kernels ask nothing else of it."""
    if arch == architecture():
        return local
    from edgetune.targets import load_target

    return load_target({"aarch64": "armv8-a", "arm": "armv7-a", "riscv64": "riscv64"}[arch])


def run(command: Sequence[str | Path], **options: object) -> str:
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def tool(*names: str) -> list[str]:
    """The paths of tools; the test is skipped where one is missing."""
    found = [shutil.which(name) for name in names]
    if None in found:
        pytest.skip(f"needs {' and '.join(names)}")
    return [str(path) for path in found]


def system_compiler(language: str = "c") -> str:
    """This machine's C or C++ compiler; the test is skipped where there is none."""
    names = ("cc", "gcc", "clang") if language == "c" else ("c++", "g++", "clang++")
    found = next((path for path in map(shutil.which, names) if path), None)
    if found is None:
        pytest.skip(f"needs a system compiler: one of {', '.join(names)} on PATH")
    return found


@pytest.fixture(params=sorted(GNU))
def emulated(request: pytest.FixtureRequest) -> tuple[str, str, str]:
    """An architecture, its compiler and its emulator; skipped where one of them is missing."""
    arch = request.param
    compiler, emulator = f"{GNU[arch]}-gcc", f"qemu-{arch}-static"
    missing = [tool for tool in (compiler, emulator) if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"needs {' and '.join(missing)} (packages gcc-{GNU[arch]} and qemu-user-static)")
    return arch, compiler, emulator


@pytest.fixture(scope="session")
def x() -> Values:
    return np.random.default_rng(3).random(VALUES, np.float32)


@pytest.fixture(scope="session")
def handmade(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return program(architecture(), tmp_path_factory.mktemp("handmade"))


@pytest.fixture
def written(handmade: Program, x: Values, local_target: Target, tmp_path: Path) -> Callable[..., Path]:
    """Writes the hand-made program as a bundle and returns its path."""
    from edgetune.bundle.assemble import write_bundle
    from edgetune.standalone.build import build_standalone

    def write(name: str = "bundle", *, embed: bool = False, **options: Any) -> Path:
        compiled = build_standalone(handmade, "hand made", local_target, embed=embed)
        model = prepared(handmade, x)
        options.setdefault("check", None)
        return write_bundle(tmp_path / name, compiled, model, local_target, [], **options).path

    return write


def stress(bundle: Path, compiler: str, output: Path, *options: str, static: bool = False) -> Path:
    """``stress.c`` linked with a bundle's static library."""
    defines = ["-DPROGRAM=edgetune_program_hand_made", *options]
    files = [HERE / "stress.c", f"-I{bundle}", bundle / "libmodel.a", "-o", output]
    run([compiler, "-O1", *defines, *(["-static"] if static else []), *files, "-pthread", "-lm"])
    return output


def runtime_sources() -> list[Path]:
    return [SOURCES / name for name in ("error.c", "cpu.c", "pool.c", "runtime.c")]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the wheel of edgetune-runtime unpacks to."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--quiet",
        "--wheel-dir",
        folder,
        HERE.parents[1] / "runtime",
    ]
    run(command)
    (path,) = folder.glob("edgetune_runtime-*-py3-none-any.whl")
    assert path.stat().st_size < 30_000
    zipfile.ZipFile(path).extractall(folder / "unpacked")
    return folder / "unpacked"
