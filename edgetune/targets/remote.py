"""Describes another machine's CPU as a target, from what it says of itself.

Sources of the ARM part numbers: the main ID register (MIDR_EL1) in each core's technical reference manual,
as collected in Linux ``arch/arm64/include/asm/cputype.h``.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgetune.cpu import checkable_features
from edgetune.errors import TargetError
from edgetune.machine import Caches
from edgetune.targets import llvm
from edgetune.targets.detect import adjust, cache_sizes
from edgetune.targets.target import DeviceFacts, Target, Toolchain

_ARM_PARTS = {
    "0x41:0xc05": "cortex-a5",
    "0x41:0xc07": "cortex-a7",
    "0x41:0xc08": "cortex-a8",
    "0x41:0xc09": "cortex-a9",
    "0x41:0xc0f": "cortex-a15",
    "0x41:0xd03": "cortex-a53",
    "0x41:0xd04": "cortex-a35",
    "0x41:0xd05": "cortex-a55",
    "0x41:0xd07": "cortex-a57",
    "0x41:0xd08": "cortex-a72",
    "0x41:0xd09": "cortex-a73",
    "0x41:0xd0a": "cortex-a75",
    "0x41:0xd0b": "cortex-a76",
    "0x41:0xd0c": "neoverse-n1",
    "0x41:0xd0d": "cortex-a77",
    "0x41:0xd40": "neoverse-v1",
    "0x41:0xd41": "cortex-a78",
    "0x41:0xd42": "cortex-a78ae",
    "0x41:0xd44": "cortex-x1",
    "0x41:0xd46": "cortex-a510",
    "0x41:0xd47": "cortex-a710",
    "0x41:0xd48": "cortex-x2",
    "0x41:0xd49": "neoverse-n2",
    "0x41:0xd4b": "cortex-a78c",
    "0x41:0xd4d": "cortex-a715",
    "0x41:0xd4e": "cortex-x3",
    "0x41:0xd4f": "neoverse-v2",
    "0x41:0xd80": "cortex-a520",
    "0x41:0xd81": "cortex-a720",
    "0x41:0xd82": "cortex-x4",
    "0x4e:0x004": "carmel",
    "0x51:0x801": "cortex-a73",  # Kryo 2xx Silver and Gold, 3xx, 4xx: after ARM's cores
    "0x51:0x800": "cortex-a73",
    "0x51:0x803": "cortex-a55",
    "0x51:0x802": "cortex-a75",
    "0x51:0x805": "cortex-a55",
    "0x51:0x804": "cortex-a76",
}
# The levels of the x86-64 psABI, the highest first, with a feature that only it has.
_X86_LEVELS = (("x86-64-v4", "avx512vl"), ("x86-64-v3", "avx2"), ("x86-64-v2", "sse4.2"), ("x86-64", "sse2"))
_DEFAULT_PAGE_BYTES = 4096


@dataclass(frozen=True)
class CpuFacts:
    """What a machine says of its CPU.

    Attributes:
        arch: one of ``cpu.ARCHITECTURES``. model: for people. part: model number, as ``0x41:0xd0b``.
        features: under LLVM's names; empty where the kernel does not tell.
        cores: physical cores that a program may use.
        l1d_bytes, l2_bytes, l3_bytes: caches; 0 where unknown. page_bytes: of memory; 0 where unknown.
        notes: what to know. device: what else a target file keeps of it.
    """

    arch: str
    model: str
    part: str
    features: frozenset[str]
    cores: int
    l1d_bytes: int
    l2_bytes: int
    l3_bytes: int
    page_bytes: int
    notes: tuple[str, ...] = ()
    device: DeviceFacts | None = None


def remote_target(name: str, facts: CpuFacts, threads: int | None = None) -> Target:
    """Return the target of another Linux machine's CPU. Imports TVM.

    Args:
        name: the target's name.
        facts: what the machine says.
        threads: number of threads in place of the number of cores.

    Raises:
        TargetError: its architecture is none that edgetune knows.
    """
    if facts.arch not in llvm.TRIPLES:
        raise TargetError(
            f"cannot compile for {name}: its architecture is {facts.arch}, edgetune knows "
            f"{', '.join(llvm.TRIPLES)}; use another device"
        )
    mtriple = llvm.TRIPLES[facts.arch]
    mcpu = _cpu_name(facts, mtriple)
    mattr: tuple[str, ...] = ()
    if facts.features:
        mattr = adjust(mtriple, mcpu, facts.features, checkable_features(facts.arch))
    vector_bits, vector_registers = llvm.vector_shape(facts.arch, llvm.cpu_features(mtriple, mcpu, mattr))
    sizes, origin = cache_sizes(mcpu, Caches(facts.l1d_bytes, facts.l2_bytes, facts.l3_bytes))
    page = facts.page_bytes if facts.page_bytes > _DEFAULT_PAGE_BYTES else None
    target = Target(
        name=name,
        description=facts.model or f"{name}'s CPU ({mcpu})",
        kind="llvm",
        mtriple=mtriple,
        mcpu=mcpu,
        mattr=mattr,
        cores=facts.cores,
        threads=facts.cores,
        vector_bits=vector_bits,
        vector_registers=vector_registers,
        l1d_bytes=sizes.l1d_bytes,
        l2_bytes=sizes.l2_bytes,
        l3_bytes=sizes.l3_bytes,
        toolchain=Toolchain(page_size_bytes=page),
        device=facts.device,
        notes=" ".join(
            ["Detected on the device.", origin, *(f"{note[0].upper()}{note[1:]}." for note in facts.notes)]
        ),
        sources=("the device: /proc/cpuinfo, /proc/self/auxv, /sys/devices/system/cpu",),
    )
    return target if threads is None else target.with_threads(threads)


def _cpu_name(facts: CpuFacts, mtriple: str) -> str:
    """LLVM's name of the CPU, or of the least one that has its features."""
    known = llvm.known_cpus(mtriple)
    if facts.arch == "x86_64":
        names = [name for name, feature in _X86_LEVELS if feature in facts.features and name in known]
        return names[0] if names else "x86-64"
    name = _ARM_PARTS.get(facts.part, "generic")
    if name in known:
        return name
    return "generic-rv64" if facts.arch == "riscv64" and "generic-rv64" in known else "generic"
