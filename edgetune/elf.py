"""What a library asks of the machine that is to load it: read from its ELF file.

Sources: System V ABI, chapters 4 and 5 (``elf(5)``); the Linux Standard Base's "Symbol versioning" for the versions
needed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

MAGIC = b"\x7fELF"
# e_machine and the class (1: 32 bits, 2: 64 bits); from the psABI documents.
_MACHINES = {(62, 2): "x86_64", (183, 2): "aarch64", (40, 1): "arm", (243, 2): "riscv64"}
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NEEDED, _DT_STRTAB, _DT_STRSZ, _DT_SONAME = 1, 5, 10, 14
_DT_VERNEED, _DT_VERNEEDNUM = 0x6FFFFFFE, 0x6FFFFFFF


class ElfError(ValueError):
    """The bytes are no whole ELF file of a known kind."""


@dataclass(frozen=True)
class Elf:
    """A program or shared library.

    Attributes:
        arch: one of ``cpu.ARCHITECTURES``, or ``machine N`` where edgetune knows it not.
        needed: the libraries that must be loaded with it. soname: its own name, or nothing.
        versions: the versions of symbols that it needs, as ``("libc.so.6", "GLIBC_2.28")``.
        page_bytes: the largest memory page that its segments can be mapped with; 0 for an object file.
    """

    arch: str
    needed: tuple[str, ...]
    soname: str
    versions: tuple[tuple[str, str], ...]
    page_bytes: int


def read_elf(data: bytes) -> Elf:
    """Read a file's program headers and dynamic section.

    Raises:
        ElfError: it is none, or cut short.
    """
    if data[:4] != MAGIC or len(data) < 52 or data[4] not in (1, 2) or data[5] != 1:
        raise ElfError("it is no ELF file for a little-endian machine")
    try:
        return _read(data)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ElfError("its ELF headers point outside of it: it is cut short or damaged") from error


def _read(data: bytes) -> Elf:
    wide = data[4] == 2
    machine = struct.unpack_from("<H", data, 18)[0]
    at = struct.unpack_from("<Q" if wide else "<I", data, 32 if wide else 28)[0]
    size, count = struct.unpack_from("<HH", data, 54 if wide else 42)
    loads, dynamic = [], (0, 0)
    for index in range(count):
        # Of a 64-bit program header the flags come second, of a 32-bit one seventh.
        kind, offset, address, length, align = _segment(data, at + index * size, wide)
        if kind == _PT_LOAD:
            loads.append((offset, address, length, align))
        elif kind == _PT_DYNAMIC:
            dynamic = (offset, length)
    entries = list(_entries(data, *dynamic, wide))
    values = dict(entries)

    def place(address: int) -> int:
        for offset, start, length, _ in loads:
            if start <= address < start + length:
                return int(offset + address - start)
        raise IndexError(address)

    strings = b""
    if _DT_STRTAB in values:
        start = place(values[_DT_STRTAB])
        strings = data[start : start + values[_DT_STRSZ] if _DT_STRSZ in values else None]

    def text(offset: int) -> str:
        return strings[offset : strings.index(b"\0", offset)].decode() if offset < len(strings) else ""

    versions: tuple[tuple[str, str], ...] = ()
    if _DT_VERNEED in values:
        found = _versions(data, place(values[_DT_VERNEED]), values.get(_DT_VERNEEDNUM, 0))
        versions = tuple((text(library), text(version)) for library, version in found)
    return Elf(
        arch=_MACHINES.get((machine, data[4]), f"machine {machine}"),
        needed=tuple(text(value) for tag, value in entries if tag == _DT_NEEDED),
        soname=text(values[_DT_SONAME]) if _DT_SONAME in values else "",
        versions=versions,
        page_bytes=min((align for *_, align in loads), default=0),
    )


def _segment(data: bytes, at: int, wide: bool) -> tuple[int, int, int, int, int]:
    """Kind, offset, address, length in the file and alignment of a segment."""
    if wide:
        kind, _, offset, address, _, length, _, align = struct.unpack_from("<IIQQQQQQ", data, at)
    else:
        kind, offset, address, _, length, _, _, align = struct.unpack_from("<IIIIIIII", data, at)
    return kind, offset, address, length, align


def _entries(data: bytes, offset: int, length: int, wide: bool) -> Iterator[tuple[int, int]]:
    entry = struct.Struct("<QQ" if wide else "<II")
    for at in range(offset, offset + length - entry.size + 1, entry.size):
        tag, value = entry.unpack_from(data, at)
        if tag == 0:
            return
        yield tag, value


def _versions(data: bytes, at: int, count: int) -> Iterator[tuple[int, int]]:
    """Places in the strings of a library's name and of the version wanted of it."""
    for _ in range(count):
        _, number, library, first, following = struct.unpack_from("<HHIII", data, at)
        one = at + first
        for _ in range(number):
            _, _, _, version, more = struct.unpack_from("<IHHII", data, one)
            yield library, version
            one += more
        at += following
