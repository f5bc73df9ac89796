"""NVIDIA's GPUs: the compiler for them, nvcc, and what this machine has of them.

TVM writes CUDA C++; nvcc makes machine code (a cubin) of it for exactly the target's ``sm_XX``. That takes a toolkit
of NVIDIA's, but no GPU. Floating-point arithmetic stays IEEE's: TVM's own call of nvcc asks for ``--use_fast_math``,
whose divisions and denormals differ from the reference's.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from edgetune.errors import ToolchainError
from edgetune.toolchain import run_tool

if TYPE_CHECKING:
    import tvm

    from edgetune.targets import Target

_CREATE = "ffi.Module.create.cuda"
_NUMBER = struct.Struct("<Q")
_USUAL = Path("/usr/local/cuda/bin/nvcc")
_VERSION_TIMEOUT_S = 30
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR, of cuda.h


def find_nvcc() -> Path | None:
    """NVIDIA's compiler: on ``PATH``, in ``$CUDA_HOME`` or ``$CUDA_PATH``, or where its packages put it."""
    found = shutil.which("nvcc")
    if found is not None:
        return Path(found)
    homes = [
        Path(os.environ[name], "bin", "nvcc") for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)
    ]
    return next((path for path in (*homes, _USUAL) if os.access(path, os.X_OK)), None)


def check_nvcc(target: Target) -> None:
    """Check that a target can be compiled for here; always so for a CPU.

    Raises:
        ToolchainError: there is no nvcc, or none that knows the target's GPU.
    """
    if target.gpu is None:
        return
    nvcc = find_nvcc()
    if nvcc is None:
        raise ToolchainError(
            f"compiling for {target.name} ({target.gpu.arch}) takes NVIDIA's compiler nvcc, which is neither on PATH "
            "nor in $CUDA_HOME or /usr/local/cuda; install a CUDA toolkit (no GPU is needed), or choose a CPU target "
            "('edgetune targets list')"
        )
    version = nvcc_version(nvcc)
    least, most = target.toolchain.cuda_min, target.toolchain.cuda_max
    if (least and version < _numbers(least)) or (most and version > _numbers(most)):
        wanted = f"{least or 'any'} or newer" if least and version < _numbers(least) else f"{most} or older"
        raise ToolchainError(
            f"compiling for {target.name} ({target.gpu.arch}) takes a CUDA toolkit {wanted}, and {nvcc} is of "
            f"{'.'.join(map(str, version))}; put the bin folder of such a toolkit first on PATH"
        )


@functools.cache
def nvcc_version(nvcc: Path) -> tuple[int, ...]:
    """Major and minor version of a toolkit.

    Raises:
        ToolchainError: it cannot be started, or does not say.
    """
    said = ""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        said = subprocess.run(
            [str(nvcc), "--version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, check=False
        ).stdout
    match = re.search(r"release (\d+\.\d+)", said)
    if match is None:
        raise ToolchainError(f"{nvcc} does not tell its version; install the CUDA toolkit again")
    return _numbers(match[1])


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def pack_imports(target: Target) -> Callable[..., str] | None:
    """What packs a module's imports for ``export_library``: machine code for a GPU; None for TVM's own way, of a CPU.

    TVM's wheel leaves CUDA's sources in the library, to be compiled where they are loaded, which takes Python and a
    toolkit there. Here nvcc compiles them first.

    Raises:
        ToolchainError: (from the function returned) nvcc is missing, or refused the code.
    """
    if target.gpu is None:
        return None
    arch = target.gpu.arch

    def pack(module: tvm.runtime.Module, is_system_lib: bool, prefix: str, folder: str) -> str:
        import json

        import tvm_ffi

        packed = tvm_ffi.get_global_func("runtime.ModulePackImportsToTensor")(module).numpy().tobytes()
        compiled = with_machine_code(packed, lambda source: compile_cuda(source, arch))
        host = json.dumps({"kind": "llvm", "mtriple": target.mtriple})
        blob = tvm_ffi.get_global_func("codegen.codegen_blob")
        path = Path(folder, f"{prefix}devc.o")
        blob(compiled, is_system_lib, host, prefix).write_to_file(str(path))
        return str(path)

    return pack


def leave_sources(target: Target) -> None:
    """Let TVM, in this process, generate sources for a GPU and go no further, as it does where it finds none.

    Where it finds one it would compile them at once, by other means than :func:`compile_cuda`. Imports TVM.
    """
    if target.gpu is not None:
        _leave_sources()


@functools.cache
def _leave_sources() -> None:
    import tvm
    import tvm_ffi

    assert tvm.target is not None  # imported first: it may register what is taken away here
    if tvm_ffi.get_global_func(_CREATE, allow_missing=True) is not None:
        tvm_ffi.registry.remove_global_func(_CREATE)


def with_machine_code(packed: bytes, compile_source: Callable[[str], bytes]) -> bytes:
    """A library's packed imports with the sources of its CUDA modules compiled.

    Layout, from tvm-ffi's ``library_module.cc``: the number of bytes that follow; the tree of imports, as two vectors
    of numbers; then for each module its kind and, but for the library itself (``_lib``), its bytes. Those of a CUDA
    module: the format, the kernels' names and arguments, and the code. Numbers have 64 bits, little-endian; texts and
    vectors have their length first.

    Args:
        packed: as TVM packs them. compile_source: from CUDA C++ to a cubin.
    """
    reader = _Reader(packed)
    reader.number()
    start = reader.at
    indices = reader.number()
    reader.skip(8 * indices)
    reader.skip(8 * reader.number())
    content = bytearray(packed[start : reader.at])
    for _ in range(indices - 1):
        kind = reader.text()
        content += _text(kind)
        if kind == b"_lib":
            continue
        module = reader.text()
        content += _text(_compiled(module, compile_source) if kind == b"cuda" else module)
    return _NUMBER.pack(len(content)) + bytes(content)


def _compiled(module: bytes, compile_source: Callable[[str], bytes]) -> bytes:
    """The bytes of a CUDA module with machine code in place of its source."""
    reader = _Reader(module)
    if reader.text() != b"cuda":
        return module
    start = reader.at
    for _ in range(reader.number()):
        reader.text()  # a kernel's name
        reader.text()  # and again, in what is told of it
        reader.skip(4 * reader.number())  # types of its arguments
        for _ in range(reader.number()):
            reader.text()  # how it is launched
        reader.skip(4 * reader.number())
    kernels = module[start : reader.at]
    source = reader.text()
    return _text(b"cubin") + kernels + _text(compile_source(source.decode())) + module[reader.at :]


class _Reader:
    """Takes numbers and texts one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def number(self) -> int:
        self.at += _NUMBER.size
        return int(_NUMBER.unpack_from(self._data, self.at - _NUMBER.size)[0])

    def text(self) -> bytes:
        size = self.number()
        self.skip(size)
        return self._data[self.at - size : self.at]

    def skip(self, size: int) -> None:
        self.at += size
        if self.at > len(self._data):
            raise ToolchainError(
                "TVM packed a CUDA module otherwise than its version here does; install the pinned apache-tvm again"
            )


def _text(value: bytes) -> bytes:
    return _NUMBER.pack(len(value)) + value


def compile_cuda(code: str, arch: str) -> bytes:
    """Compile CUDA C++ into machine code.

    Args:
        code: the source. arch: ``sm_87`` and the like.

    Returns:
        A cubin: ELF of machine 190 (EM_CUDA) for this architecture.

    Raises:
        ToolchainError: there is no nvcc, or it refused the code.
    """
    nvcc = find_nvcc()
    if nvcc is None:
        raise ToolchainError("nvcc has gone since compiling began; install the CUDA toolkit again")
    with tempfile.TemporaryDirectory(prefix="edgetune-cuda-") as folder:
        source, output = Path(folder, "kernels.cu"), Path(folder, "kernels.cubin")
        source.write_text(code, encoding="utf-8")
        command = [str(nvcc), "-cubin", "-O3", f"-arch={arch}", "-o", str(output), str(source)]
        run_tool(command, "compiling", output, "check that nvcc finds its host compiler (g++)")
        return output.read_bytes()


@functools.cache
def local_gpu() -> str:
    """``sm_XX`` of this machine's first NVIDIA GPU; empty where there is none, or its driver does not answer.

    Asked of the driver's library, so that neither TVM nor a toolkit is needed.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ""
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    steps = (
        lambda: driver.cuInit(0),
        lambda: driver.cuDeviceGet(ctypes.byref(device), 0),
        lambda: driver.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, device),
        lambda: driver.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, device),
    )
    return "" if any(step() != 0 for step in steps) else f"sm_{major.value}{minor.value}"


def runs_cubins(wanted: str, present: str) -> bool:
    """Whether a GPU (``sm_XX``) runs machine code for another: of the same major version, and no later minor one.

    Code for ``sm_90a`` and the like runs on that GPU alone. Source: NVIDIA's CUDA C++ programming guide, "Binary
    compatibility".
    """
    code, gpu = re.fullmatch(r"sm_(\d+)([af]?)", wanted), re.fullmatch(r"sm_(\d+)", present)
    if code is None or gpu is None:
        return False
    if code[2]:
        return code[1] == gpu[1]
    return int(code[1]) // 10 == int(gpu[1]) // 10 and int(code[1]) <= int(gpu[1])
