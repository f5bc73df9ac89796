"""Which instructions this machine's CPU really offers, under LLVM's names.

The kernel is the witness: it hides what a hypervisor masks and what it cannot save on a context
switch, both of which a CPU's model name says nothing about. Imports the standard library alone,
because loading a bundle uses it.

Sources: Linux ``arch/x86/include/asm/cpufeatures.h``, ``Documentation/arch/arm64/elf_hwcaps.rst``,
``arch/arm/include/uapi/asm/hwcap.h``, ``Documentation/arch/riscv/uabi.rst``; LLVM's names from
``llc -march=ARCH -mattr=help``.
"""

from __future__ import annotations

import platform
import re
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path


def _words(text: str) -> list[str]:
    return text.split()


# Only instructions that a compiler may select by itself are listed: those that a program must ask
# for (cryptography, AMX, system instructions) never occur in a kernel, so nothing hangs on them.
_X86: Mapping[str, str] = {
    **{
        name: name
        for name in _words(
            "cmov cx8 cx16 mmx sse sse2 ssse3 sse4a avx avx2 fma fma4 xop tbm f16c bmi2 popcnt movbe gfni "
            "avx512f avx512dq avx512bw avx512vl avx512cd avx512ifma avx512vbmi"
        )
    },
    "pni": "sse3",
    "sse4_1": "sse4.1",
    "sse4_2": "sse4.2",
    "bmi1": "bmi",
    "abm": "lzcnt",
    "lahf_lm": "sahf",
    "avx512_vbmi2": "avx512vbmi2",
    "avx512_vnni": "avx512vnni",
    "avx512_bitalg": "avx512bitalg",
    "avx512_vpopcntdq": "avx512vpopcntdq",
    "avx512_bf16": "avx512bf16",
    "avx512_fp16": "avx512fp16",
    "avx512_vp2intersect": "avx512vp2intersect",
    "avx_vnni": "avxvnni",
}

# In the order of the bits of AT_HWCAP, then of AT_HWCAP2: /proc/cpuinfo prints the same names.
_AARCH64_HWCAP = _words(
    "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm jscvt fcma "
    "lrcpc dcpop sha3 sm3 sm4 asimddp sha512 sve asimdfhm dit uscat ilrcpc flagm ssbs sb paca pacg"
)
_AARCH64_HWCAP2 = _words(
    "dcpodp sve2 sveaes svepmull svebitperm svesha3 svesm4 flagm2 frint svei8mm svef32mm "
    "svef64mm svebf16 i8mm bf16 dgh rng bti mte"
)
_AARCH64: Mapping[str, str] = {
    "fp": "fp-armv8",
    "asimd": "neon",
    "atomics": "lse",
    "asimdhp": "fullfp16",
    "asimdrdm": "rdm",
    "fcma": "complxnum",
    "lrcpc": "rcpc",
    "ilrcpc": "rcpc-immo",
    "sha3": "sha3",
    "asimddp": "dotprod",
    "asimdfhm": "fp16fml",
    "uscat": "lse2",
    "flagm": "flagm",
    "flagm2": "altnzcv",
    "frint": "fptoint",
    "sve": "sve",
    "sve2": "sve2",
    "i8mm": "i8mm",
    "bf16": "bf16",
}

_ARM_HWCAP = _words(
    "swp half thumb 26bit fastmult fpa vfp edsp java iwmmxt crunch thumbee neon vfpv3 vfpv3d16 tls "
    "vfpv4 idiva idivt vfpd32 lpae evtstrm fphp asimdhp asimddp asimdfhm asimdbf16 i8mm"
)
_ARM_HWCAP2 = _words("aes pmull sha1 sha2 crc32 sb ssbs")
_ARM: Mapping[str, str] = {
    "neon": "neon",
    "vfp": "vfp2",
    "vfpv3": "vfp3",
    "vfpv4": "vfp4",
    "vfpd32": "d32",
    "idiva": "hwdiv-arm",
    "idivt": "hwdiv",
    "asimdhp": "fullfp16",
    "asimddp": "dotprod",
    "asimdfhm": "fp16fml",
    "asimdbf16": "bf16",
    "i8mm": "i8mm",
}

_RISCV_LETTERS = "imafdcv"
_RISCV: Mapping[str, str] = {
    name: name for name in (*_RISCV_LETTERS, *_words("zba zbb zbs zfh zfhmin zvfh zvfhmin zvbb zicond"))
}

_TABLES: Mapping[str, Mapping[str, str]] = {
    "x86_64": _X86,
    "aarch64": _AARCH64,
    "arm": _ARM,
    "riscv64": _RISCV,
}
ARCHITECTURES = tuple(_TABLES)

_AT_HWCAP, _AT_HWCAP2 = 16, 26


def architecture(machine: str | None = None) -> str:
    """Return one of ARCHITECTURES for ``uname -m`` (this machine's by default), else its own name.

    A 32-bit process on a 64-bit ARM kernel is ``arm``: what counts is the code it can load.
    """
    name = (machine or platform.machine()).lower()
    if machine is None and name in ("aarch64", "arm64") and struct.calcsize("P") == 4:
        return "arm"
    if name in ("amd64", "x86_64"):
        return "x86_64"
    if name in ("arm64", "aarch64"):
        return "aarch64"
    return "arm" if name.startswith("armv") else name


def checkable_features(arch: str | None = None) -> frozenset[str]:
    """Return the LLVM features of an architecture whose presence the kernel reports."""
    return frozenset(_TABLES.get(arch or architecture(), {}).values())


# What each level adds, the lowest first: the x86-64 psABI's levels, and the features that ARM's architecture makes
# mandatory in each version ("A-profile architecture registers", ID_AA64ISAR*; LLVM's AArch64Features.td).
_LEVELS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "x86_64": (
        ("x86-64", "cmov cx8 sse sse2"),
        ("x86-64-v2", "cx16 popcnt sse3 ssse3 sse4.1 sse4.2"),
        ("x86-64-v3", "avx avx2 bmi bmi2 f16c fma lzcnt movbe"),
        ("x86-64-v4", "avx512f avx512bw avx512cd avx512dq avx512vl"),
    ),
    "aarch64": (
        ("armv8-a", "fp-armv8 neon"),
        ("armv8.1-a", "lse rdm"),
        ("armv8.2-a", "fullfp16"),
        ("armv8.3-a", "rcpc complxnum"),
        ("armv8.4-a", "dotprod lse2 rcpc-immo flagm"),
        ("armv8.6-a", "i8mm bf16"),
        ("armv9-a", "sve2"),
    ),
    "arm": (("armv7-a", "vfp3"), ("armv7-a+neon", "neon"), ("armv7-a+neon-vfpv4", "vfp4")),
}


def isa_level(arch: str, features: Iterable[str]) -> str:
    """Return the name of the highest level whose features, and those of all lower ones, are present; or nothing."""
    present, reached = frozenset(features), ""
    for name, added in _LEVELS.get(arch, ()):
        if not present.issuperset(added.split()):
            break
        reached = name
    return reached


def machine_features() -> frozenset[str]:
    """Return the features of this machine under LLVM's names; empty where the kernel tells nothing."""
    arch = architecture()
    found = features_from_cpuinfo(_read(Path("/proc/cpuinfo")), arch)
    # An emulator may show the cpuinfo of its host; its auxiliary vector is its own.
    return found or features_from_auxv(_read_bytes(Path("/proc/self/auxv")), arch)


def model_name() -> str:
    """Return what the kernel calls this machine: the board's name, else the CPU's, else nothing."""
    board = _read(Path("/proc/device-tree/model")).strip("\0 \n")
    match = re.search(r"^model name\s*:\s*(.+)$", _read(Path("/proc/cpuinfo")), re.M)
    return board or (match[1].strip() if match else "")


def missing_features(
    required: Iterable[str], machine: Iterable[str] | None = None, arch: str | None = None
) -> tuple[str, ...]:
    """Return the required LLVM features that a machine lacks, sorted.

    Features whose presence the kernel does not report (tuning hints, system instructions) are
    ignored, and nothing is missing where the machine's own features are unknown.

    Args:
        required: what the code may use (``Target.required_features``).
        machine: what the machine has; this one by default.
        arch: the machine's architecture, one of ARCHITECTURES; this one by default.
    """
    present = machine_features() if machine is None else frozenset(machine)
    if not present:
        return ()
    return tuple(sorted((frozenset(required) & checkable_features(arch)) - present))


def features_from_cpuinfo(text: str, arch: str) -> frozenset[str]:
    """Translate the text of ``/proc/cpuinfo`` into LLVM's names.

    Cores of different kinds may differ: only what every core lists counts. Lines of another
    architecture are ignored.
    """
    if arch == "riscv64":
        lists = [_split_isa(isa) for isa in re.findall(r"^isa\s*:\s*(\S+)", text, re.M)]
    else:
        key = "flags" if arch == "x86_64" else "Features"
        lists = [set(line.split()) for line in re.findall(rf"^{key}\s*:(.*)$", text, re.M)]
    if not lists:
        return frozenset()
    return _translate(set.intersection(*lists), arch)


def _translate(names: Iterable[str], arch: str) -> frozenset[str]:
    table = _TABLES.get(arch, {})
    return frozenset(table[name] for name in names if name in table)


def _split_isa(isa: str) -> set[str]:
    """Split ``rv64imafdcv_zba_zbb`` into its extensions; ``g`` stands for imafd."""
    first, *rest = isa.lower().split("_")
    letters = first.removeprefix("rv64").removeprefix("rv32").replace("g", "imafd")
    return {*letters, *rest}


def features_from_auxv(auxv: bytes, arch: str) -> frozenset[str]:
    """Translate the ``AT_HWCAP`` words of ``/proc/self/auxv`` into LLVM's names; nothing on x86-64."""
    if arch == "riscv64":
        words = {_AT_HWCAP: [chr(ord("a") + bit) for bit in range(26)]}
    elif arch == "aarch64":
        words = {_AT_HWCAP: _AARCH64_HWCAP, _AT_HWCAP2: _AARCH64_HWCAP2}
    elif arch == "arm":
        words = {_AT_HWCAP: _ARM_HWCAP, _AT_HWCAP2: _ARM_HWCAP2}
    else:
        return frozenset()
    entry = struct.Struct("=II" if arch == "arm" else "=QQ")
    usable = len(auxv) - len(auxv) % entry.size
    values = dict(entry.iter_unpack(auxv[:usable]))
    names = [
        name
        for word, bits in words.items()
        for bit, name in enumerate(bits)
        if values.get(word, 0) >> bit & 1
    ]
    return _translate(names, arch)


def _read(path: Path) -> str:
    return _read_bytes(path).decode("utf-8", errors="replace")


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
