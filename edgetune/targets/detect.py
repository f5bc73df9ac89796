"""Describes this machine's CPU as a target."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from dataclasses import replace

from edgetune.cpu import architecture, checkable_features, machine_features, model_name
from edgetune.errors import TargetError
from edgetune.machine import Caches, caches, usable_cores
from edgetune.targets import llvm
from edgetune.targets.files import LOCAL, list_targets
from edgetune.targets.target import Target

# Where neither the kernel nor a shipped target of the same CPU tells: the least of current CPUs.
_ASSUMED = Caches(l1d_bytes=32768, l2_bytes=262144)
# Worth adding to what the CPU's name implies. Left out are vectors of unknown width, and what no
# kernel uses, such as cryptography.
_WORTH_ADDING = frozenset(
    word
    for line in (
        "sse3 ssse3 sse4.1 sse4.2 avx avx2 fma f16c bmi bmi2 lzcnt popcnt movbe avx512f avx512dq avx512bw",
        "avx512vl avx512cd avx512ifma avx512vbmi avx512vbmi2 avx512vnni avx512bf16 avx512fp16 avxvnni",
        "neon dotprod fullfp16 fp16fml i8mm bf16 lse rdm vfp4 d32 hwdiv hwdiv-arm",
        "m a f d c v zba zbb zbs zfh zvfh",
    )
    for word in line.split()
)


def detect(threads: int | None = None) -> Target:
    """Return the target of this machine's CPU. Imports TVM.

    ``mattr`` makes the features LLVM will use those the kernel reports, whatever the CPU's name
    implies: hypervisors hide some.

    Args:
        threads: number of threads instead of the number of usable cores.

    Raises:
        TargetError: not a Linux machine, or an architecture edgetune does not know.
    """
    arch = architecture()
    if not sys.platform.startswith("linux") or arch not in llvm.TRIPLES:
        raise TargetError(
            f"cannot detect this machine ({platform.system()} on {platform.machine()}), only Linux on "
            f"{', '.join(llvm.TRIPLES)}; name a target instead, 'edgetune targets list' shows them"
        )
    mtriple = llvm.TRIPLES[arch]
    mcpu = _host_cpu(mtriple)
    mattr = adjust(mtriple, mcpu, _present(arch), _verifiable(arch))
    vector_bits, vector_registers = llvm.vector_shape(arch, llvm.cpu_features(mtriple, mcpu, mattr))
    sizes, origin = cache_sizes(mcpu, caches())
    cores = usable_cores()
    target = Target(
        name=LOCAL,
        description=model_name() or f"this machine's CPU ({mcpu})",
        kind="llvm",
        mtriple=mtriple,
        mcpu=mcpu,
        mattr=mattr,
        cores=cores,
        threads=cores,
        vector_bits=vector_bits,
        vector_registers=vector_registers,
        l1d_bytes=sizes.l1d_bytes,
        l2_bytes=sizes.l2_bytes,
        l3_bytes=sizes.l3_bytes,
        notes=f"Detected. {origin}",
        sources=("the kernel: /proc/cpuinfo, /sys/devices/system/cpu, cgroups; LLVM's host CPU name",),
    )
    return target if threads is None else target.with_threads(threads)


def adjust(mtriple: str, mcpu: str, present: frozenset[str], verifiable: frozenset[str]) -> tuple[str, ...]:
    """Return the shortest mattr found that makes a CPU name fit the features really present.

    Args:
        mtriple: the machine's triple.
        mcpu: LLVM's name of its CPU.
        present: features the machine has.
        verifiable: features the machine would report if it had them.
    """
    absent = verifiable - present

    def excess(features: frozenset[str]) -> frozenset[str]:
        return features & absent

    def lack(features: frozenset[str]) -> frozenset[str]:
        return (present & _WORTH_ADDING) - features

    added = _shrink(mtriple, mcpu, (), "+", lack)
    return _shrink(mtriple, mcpu, added, "-", excess)


def _shrink(
    mtriple: str,
    mcpu: str,
    mattr: tuple[str, ...],
    sign: str,
    wrong: Callable[[frozenset[str]], frozenset[str]],
) -> tuple[str, ...]:
    """Add to mattr, one by one, the feature that puts the most others right (``-avx`` all of AVX-512)."""
    left = wrong(llvm.cpu_features(mtriple, mcpu, mattr))
    while left:
        options = {
            name: wrong(llvm.cpu_features(mtriple, mcpu, (*mattr, sign + name))) for name in sorted(left)
        }
        best = min(options, key=lambda name: len(options[name]))
        if len(options[best]) >= len(left):
            break
        mattr, left = (*mattr, sign + best), options[best]
    return mattr


def _host_cpu(mtriple: str) -> str:
    import tvm  # noqa: F401  registers the functions asked for next
    import tvm_ffi

    name = str(tvm_ffi.get_global_func("tvm.codegen.llvm.GetHostCPUName")())
    return name if name in llvm.known_cpus(mtriple) else "generic"


def _present(arch: str) -> frozenset[str]:
    return machine_features() | {name for name, on in _llvm_host_features(arch).items() if on}


def _verifiable(arch: str) -> frozenset[str]:
    asked = frozenset(
        name for name in _llvm_host_features(arch) if name.startswith(("avx", "sse", "fma", "bmi"))
    )
    return checkable_features(arch) | asked if machine_features() else asked


def _llvm_host_features(arch: str) -> dict[str, bool]:
    """Return what LLVM reads from CPUID, which knows newer extensions than the kernel's flags do."""
    if arch != "x86_64":
        return {}  # elsewhere LLVM reads the same /proc/cpuinfo
    import tvm_ffi

    features = tvm_ffi.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures")()
    return {str(name): bool(on) for name, on in features.items()}


def cache_sizes(mcpu: str, sizes: Caches) -> tuple[Caches, str]:
    """Return the caches and a sentence on where their sizes come from.

    ARM kernels often do not tell them.

    Args:
        mcpu: LLVM's name of the CPU.
        sizes: what the kernel tells.
    """
    if sizes.l1d_bytes and sizes.l2_bytes:
        return sizes, "Cache sizes as the kernel tells them."
    for known in list_targets():
        if known.mcpu == mcpu != "generic" and known.kind == "llvm":
            return Caches(known.l1d_bytes, known.l2_bytes, known.l3_bytes), (
                f"The kernel does not tell the cache sizes: taken from the target '{known.name}'."
            )
    guess = replace(
        sizes,
        l1d_bytes=sizes.l1d_bytes or _ASSUMED.l1d_bytes,
        l2_bytes=sizes.l2_bytes or _ASSUMED.l2_bytes,
    )
    return guess, "The kernel does not tell all cache sizes: assumed, correct them in a target file."
