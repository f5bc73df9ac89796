"""What is read from ELF files: the same as binutils' readelf reads."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edgetune.elf import ElfError, read_elf
from edgetune.toolchain import _empty_object, link_shared
from edgetune.tvm_runtime import libraries

READELF = shutil.which("readelf")
MACHINES = {"x86_64": "X86-64", "aarch64": "AArch64", "arm": "ARM", "riscv64": "RISC-V"}


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> list[Path]:
    """Real programs of this machine, and libraries that edgetune links for others."""
    from edgetune.cpu import architecture

    folder = tmp_path_factory.mktemp("elf")
    found = [*libraries(architecture()).values(), Path(sys.executable).resolve()]
    for triple in (
        "x86_64-linux-gnu",
        "aarch64-linux-android",
        "armv7l-linux-gnueabihf",
        "riscv64-linux-gnu",
    ):
        path = folder / f"{triple}.so"
        link_shared([_empty_object(triple.split("-")[0].replace("armv7l", "arm"))], path, triple)
        found.append(path)
    return found


@pytest.mark.skipif(READELF is None, reason="binutils is not installed")
def test_as_readelf_reads_it(files):
    for path in files:
        elf = read_elf(path.read_bytes())
        text = subprocess.run(
            ["readelf", "-hldVW", str(path)], capture_output=True, text=True, check=True
        ).stdout
        assert re.search(rf"Machine:.*{MACHINES[elf.arch]}", text), path
        assert list(elf.needed) == re.findall(r"\(NEEDED\).*\[(.*)\]", text), path
        assert ([elf.soname] if elf.soname else []) == re.findall(r"\(SONAME\).*\[(.*)\]", text), path
        assert elf.page_bytes == min(int(a, 16) for a in re.findall(r"^  LOAD .* 0x(\w+)$", text, re.M)), path
        needs = text.partition("Version needs section")[2]
        assert sorted(version for _, version in elf.versions) == sorted(re.findall(r"Name: (\S+) ", needs)), (
            path
        )


def test_android_gets_pages_of_16_kib(files):
    android = next(path for path in files if "android" in path.name)
    assert read_elf(android.read_bytes()).page_bytes == 16384


def test_what_is_no_library_is_refused(files):
    whole = files[0].read_bytes()
    for damaged in (
        b"",
        b"#!/bin/sh\n",
        b"\x7fELF",
        whole[:64],
        whole[:200],
        b"\x7fELF" + bytes([2, 2]) + bytes(64),
    ):
        with pytest.raises(ElfError):
            read_elf(damaged)
