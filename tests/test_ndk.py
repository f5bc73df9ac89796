"""Linking with Android's NDK, in whose place stands one of its layout: a linker, and a C library of one function."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from edgetune import toolchain
from edgetune.errors import ToolchainError
from edgetune.standalone.compiler import compile_object
from tests.test_toolchain import Elf

SHOWN = '__attribute__((visibility("default"))) '


def compiled(code: str, work: Path) -> Path:
    source, output = work / "code.c", work / f"{abs(hash(code))}.o"
    source.write_text(code)
    compile_object(source, output, "aarch64")
    return output


@pytest.fixture
def ndk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its linker is zig's, and leaves a trace."""
    host = tmp_path / "ndk/toolchains/llvm/prebuilt/linux-x86_64"
    libraries = host / "sysroot/usr/lib/aarch64-linux-android"
    (host / "bin").mkdir(parents=True)
    linker = host / "bin/ld.lld"
    linker.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/trace\nexec {toolchain.zig()} ld.lld "$@"\n')
    linker.chmod(0o755)
    function = compiled(SHOWN + "void *malloc(unsigned long n) { return (void *)n; }\n", tmp_path)
    for level in ("21", "24", "35"):
        (libraries / level).mkdir(parents=True)
        for name in ("libc.so", "libm.so"):
            command = [toolchain.zig(), "ld.lld", "-shared", "-m", "aarch64linux", "-soname", name]
            subprocess.run([*command, function, "-o", libraries / level / name], check=True)
    monkeypatch.delenv("ANDROID_NDK_HOME", raising=False)
    monkeypatch.setenv("ANDROID_NDK_ROOT", str(tmp_path / "ndk"))
    return tmp_path / "ndk"


def link(code: str, work: Path, mtriple: str = "aarch64-linux-android") -> Elf:
    output = work / "model.so"
    toolchain.link_shared([compiled(code, work)], output, mtriple, exports="edgetune_*")
    return Elf(output.read_bytes())


GOOD = "void *malloc(unsigned long);\n" + SHOWN + "void *edgetune_make(void) { return malloc(4); }\n"


def test_its_linker_and_its_oldest_libraries_that_count(ndk: Path, tmp_path: Path) -> None:
    elf = link(GOOD, tmp_path)
    assert elf.needed == ["libm.so", "libc.so"]
    trace = (tmp_path / "trace").read_text()
    assert "aarch64-linux-android/24/libc.so" in trace
    assert "aarch64-linux-android/21" not in trace


def test_what_android_does_not_have_is_found_at_once(ndk: Path, tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="getrandom"):
        link(GOOD.replace("malloc", "getrandom"), tmp_path)


def test_other_systems_do_without(ndk: Path, tmp_path: Path) -> None:
    link(GOOD, tmp_path, "aarch64-linux-gnu")
    assert not (tmp_path / "trace").exists()


def test_the_first_variable_counts_and_must_be_right(
    ndk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANDROID_NDK_HOME", str(tmp_path))
    with pytest.raises(ToolchainError, match=r"ANDROID_NDK_HOME is .* unset ANDROID_NDK_HOME"):
        link(GOOD, tmp_path)
