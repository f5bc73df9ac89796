"""Linking without a compiler, for every architecture, and the pinned packages."""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from edgetune import toolchain
from edgetune.errors import OutputError, ToolchainError
from edgetune.targets import detect_local, load_target
from edgetune.tvm_runtime import start_machine

# One target of each architecture, and a phone: its machine number in ELF, what it must load.
TARGETS = {
    "x86-64-v3": (62, ["libm.so.6"]),
    "raspberry-pi-4": (183, ["libm.so.6"]),
    "raspberry-pi-3-armv7": (40, ["libm.so.6", "libgcc_s.so.1"]),
    "riscv64": (243, ["libm.so.6"]),
    "snapdragon-865": (183, ["libm.so"]),
}


@functools.cache
def kernel(target_name: str) -> bytes:
    """An object file whose kernel calls libm's expf."""
    import tempfile

    import tvm
    from tvm import te

    a = te.placeholder((16,), name="a")
    b = te.compute((16,), lambda i: te.exp(a[i]), name="b")
    module = tvm.IRModule({"main": te.create_prim_func([a, b]).with_attr("global_symbol", "main")})
    target = detect_local() if target_name == "local" else load_target(target_name)
    with tempfile.NamedTemporaryFile(suffix=".o") as file:
        tvm.tirx.build(module, target=target.tvm()).write_to_file(file.name)
        return Path(file.name).read_bytes()


class Elf:
    """As much of a shared library as these tests look at (System V ABI, chapters 4 and 5)."""

    def __init__(self, data: bytes) -> None:
        assert data[:4] == b"\x7fELF"
        self.bits = {1: 32, 2: 64}[data[4]]
        wide = self.bits == 64
        self.type, self.machine = struct.unpack_from("<HH", data, 16)
        phoff = struct.unpack_from("<Q" if wide else "<I", data, 32 if wide else 28)[0]
        size, count = struct.unpack_from("<HH", data, 54 if wide else 42)
        self.segments = []
        for index in range(count):
            at = phoff + index * size
            if wide:
                kind, flags, offset, vaddr, _, filesz, _, align = struct.unpack_from("<IIQQQQQQ", data, at)
            else:
                kind, offset, vaddr, _, filesz, _, flags, align = struct.unpack_from("<IIIIIIII", data, at)
            self.segments.append((kind, flags, offset, vaddr, filesz, align))
        entry = struct.Struct("<qQ" if wide else "<iI")
        offset, length = next((s[2], s[4]) for s in self.segments if s[0] == 2)
        tags = list(entry.iter_unpack(data[offset : offset + length]))
        strings = self._file_offset(next(value for tag, value in tags if tag == 5))
        self.tags = {tag for tag, _ in tags}
        self.flags_1 = next((value for tag, value in tags if tag == 0x6FFFFFFB), 0)
        self.needed = [_string(data, strings + value) for tag, value in tags if tag == 1]

    def _file_offset(self, address: int) -> int:
        for kind, _, offset, vaddr, filesz, _ in self.segments:
            if kind == 1 and vaddr <= address < vaddr + filesz:
                return offset + address - vaddr
        raise AssertionError(f"address {address:#x} is in no segment")


def _string(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()


@pytest.mark.parametrize("name", TARGETS)
def test_links_for_every_architecture(name, tmp_path):
    output = tmp_path / "kernel.so"
    toolchain.link_shared([kernel(name)], output, load_target(name).mtriple)
    elf = Elf(output.read_bytes())
    machine, needed = TARGETS[name]
    assert elf.type == 3  # ET_DYN
    assert elf.machine == machine
    assert elf.needed == needed
    assert elf.flags_1 & 1  # DF_1_NOW
    assert 0x6FFFFEF5 in elf.tags  # DT_GNU_HASH
    stack_flags = [flags for kind, flags, *_ in elf.segments if kind == 0x6474E551]
    assert stack_flags == [6]  # readable, writable, not executable
    assert [path.name for path in tmp_path.iterdir()] == ["kernel.so"]


def test_page_size(tmp_path):
    output = tmp_path / "kernel.so"
    toolchain.link_shared([kernel("raspberry-pi-4")], output, "aarch64-linux-gnu", page_size_bytes=16384)
    assert {align for kind, *_, align in Elf(output.read_bytes()).segments if kind == 1} == {16384}


def test_the_linked_kernel_computes(tmp_path):
    import numpy as np
    import tvm_ffi

    output = tmp_path / "kernel.so"
    toolchain.link_shared([kernel("local")], output, detect_local().mtriple)
    a = np.linspace(-2, 2, 16, dtype=np.float32)
    b = np.zeros(16, np.float32)
    tvm_ffi.load_module(str(output))["main"](tvm_ffi.from_dlpack(a), tvm_ffi.from_dlpack(b))
    np.testing.assert_allclose(b, np.exp(a), rtol=1e-6)


def test_objects_as_paths_and_as_bytes(tmp_path):
    path = tmp_path / "kernel.o"
    path.write_bytes(kernel("local"))
    for name, item in (("a.so", path), ("b.so", path.read_bytes())):
        toolchain.link_shared([item], tmp_path / name, detect_local().mtriple)
    assert (tmp_path / "a.so").stat().st_size == (tmp_path / "b.so").stat().st_size


def test_a_failed_link_keeps_the_old_library(tmp_path):
    output = tmp_path / "kernel.so"
    output.write_bytes(b"old")
    with pytest.raises(ToolchainError, match=r"linking kernel.so with .* failed"):
        toolchain.link_shared([b"no object"], output, "x86_64-linux-gnu")
    assert output.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [output]


def test_objects_of_another_architecture(tmp_path):
    with pytest.raises(ToolchainError, match="target's architecture"):
        toolchain.link_shared([kernel("raspberry-pi-4")], tmp_path / "k.so", "x86_64-linux-gnu")


def test_unknown_architecture(tmp_path):
    with pytest.raises(ToolchainError, match="cannot link for mips-linux-gnu"):
        toolchain.link_shared([b""], tmp_path / "k.so", "mips-linux-gnu")


def test_missing_folder(tmp_path):
    with pytest.raises(OutputError, match="cannot write"):
        toolchain.link_shared([kernel("local")], tmp_path / "none" / "k.so", detect_local().mtriple)


def test_full_disk(tmp_path):
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("may not mount a small file system")
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=20k", "none", str(small)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("may not mount a small file system")
    try:
        objects = tmp_path / "kernel.o"
        objects.write_bytes(kernel("local"))
        # Whole pages count: leave one, where the library takes three.
        (small / "ballast").write_bytes(bytes(12 << 10))
        with pytest.raises(OutputError, match="No space left on device"):
            toolchain.link_shared([objects], small / "k.so", detect_local().mtriple)
        assert [path.name for path in small.iterdir()] == ["ballast"]
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_export_library_without_a_compiler(tmp_path, monkeypatch):
    import numpy as np
    import tvm
    from tvm import relax
    from tvm.script import relax as R

    builder = relax.BlockBuilder()
    x = relax.Var("x", R.Tensor((4,), "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.add(x, x)))
    local = detect_local()
    executable = tvm.compile(builder.get(), local.tvm())
    monkeypatch.setenv("PATH", "")
    executable.export_library(str(tmp_path / "m.so"), fcompile=toolchain.link_shared_fcompile(local))
    machine = start_machine(tvm.runtime.load_module(str(tmp_path / "m.so")))
    result = machine["main"](tvm.runtime.tensor(np.arange(4, dtype=np.float32)))
    np.testing.assert_array_equal(result.numpy(), [0, 2, 4, 6])


def test_c_sources_need_a_compiler(tmp_path):
    link = toolchain.link_shared_fcompile(detect_local())
    with pytest.raises(ToolchainError, match=r"cannot link code\.c"):
        link(str(tmp_path / "m.so"), ["code.c"])


WITHOUT_ZIG = """
import sys
from pathlib import Path
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name == "ziglang":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Hide())
from edgetune import toolchain
linker = toolchain.find_linker("x86_64")
toolchain.link_shared([Path(sys.argv[1])], Path(sys.argv[2]), "x86_64-linux-gnu")
print(Path(linker.command[0]).name)
"""


@pytest.mark.parametrize("program", ["ld.lld", "ld", "gcc"])
def test_a_systems_linker_serves_where_zig_is_missing(program, tmp_path):
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"no {program} here")
    (tmp_path / "bin").mkdir()
    if program == "gcc":
        # gcc starts the real ld: it is found through gcc's own search path, not through PATH.
        (tmp_path / "bin" / program).write_text(f'#!/bin/sh\nPATH={os.environ["PATH"]} exec {found} "$@"\n')
        (tmp_path / "bin" / program).chmod(0o755)
    else:
        (tmp_path / "bin" / program).symlink_to(found)
    objects, output = tmp_path / "k.o", tmp_path / "k.so"
    objects.write_bytes(kernel("x86-64-v3"))
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_ZIG, str(objects), str(output)],
        env={"PATH": str(tmp_path / "bin")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == program, done.stderr
    elf = Elf(output.read_bytes())
    assert elf.needed == ["libm.so.6"]
    assert elf.flags_1 & 1


def test_no_linker_at_all(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_ZIG, "k.o", "k.so"],
        env={"PATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "no linker for x86_64 was found" in done.stderr
    assert "pip install ziglang" in done.stderr


def test_libm_is_found_by_name_when_loaded(tmp_path):
    """The stub's soname is the one this system's loader knows."""
    if sys.platform.startswith("linux"):
        assert ctypes.CDLL("libm.so.6").cosf
