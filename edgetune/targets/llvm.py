"""What TVM's LLVM knows of CPUs and their features. Imports TVM inside its functions."""

from __future__ import annotations

import functools
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from edgetune.cpu import architecture
from edgetune.errors import TargetError, did_you_mean

TRIPLES = {
    "x86_64": "x86_64-linux-gnu",
    "aarch64": "aarch64-linux-gnu",
    "arm": "armv7l-linux-gnueabihf",
    "riscv64": "riscv64-linux-gnu",
}
"""The triple of a Linux system with glibc, for each of ``cpu.ARCHITECTURES``."""

_stderr_lock = threading.Lock()


@functools.cache
def known_cpus(mtriple: str) -> tuple[str, ...]:
    """Return the CPU names that LLVM can compile for under a triple, sorted."""
    from tvm.target import Target, codegen

    any_cpu = Target({"kind": "llvm", "mtriple": mtriple})
    names = [str(name) for name in codegen.llvm_get_cpu_archlist(any_cpu)]
    if architecture(mtriple.split("-")[0]) in ("x86_64", "riscv64"):
        # LLVM lists 32-bit CPUs too, and aborts the process when it must compile for one.
        names = [
            name
            for name in names
            if "64bit"
            in codegen.llvm_get_cpu_features(Target({"kind": "llvm", "mtriple": mtriple, "mcpu": name}))
        ]
    return tuple(sorted(names))


@functools.cache
def cpu_features(mtriple: str, mcpu: str, mattr: tuple[str, ...] = ()) -> frozenset[str]:
    """Return every feature that code for this CPU may use, ``mattr`` applied in order.

    ``mcpu`` must be one of :func:`known_cpus`.
    """
    from tvm.target import Target, codegen

    description = {"kind": "llvm", "mtriple": mtriple, "mcpu": mcpu, "mattr": list(mattr)}
    return frozenset(str(name) for name in codegen.llvm_get_cpu_features(Target(description)))


@functools.cache
def known_features(mtriple: str) -> frozenset[str]:
    """Return the features that at least one known CPU has; LLVM may know a few more."""
    return frozenset().union(*(cpu_features(mtriple, name) for name in known_cpus(mtriple)))


def check(name: str, mtriple: str, mcpu: str, mattr: tuple[str, ...]) -> None:
    """Refuse a CPU or a feature that LLVM does not know: it would only log it and compile generic code.

    Raises:
        TargetError: with the nearest known names; ``name`` is the target's.
    """
    if mcpu not in known_cpus(mtriple):
        others = [triple for triple in TRIPLES.values() if mcpu in known_cpus(triple)]
        hint = f"it is one of {others[0]} (mtriple)" if others else did_you_mean(mcpu, known_cpus(mtriple))
        raise TargetError(f"target {name}: LLVM knows no CPU {mcpu!r} (mcpu) for {mtriple}; {hint}")
    for attribute in mattr:
        feature = attribute[1:]
        if feature not in known_features(mtriple) and not _llvm_accepts(mtriple, mcpu, feature):
            raise TargetError(
                f"target {name}: LLVM knows no feature {feature!r} (in mattr) for {mtriple}; "
                f"{did_you_mean(feature, sorted(known_features(mtriple)))}"
            )


def vector_shape(arch: str, features: frozenset[str]) -> tuple[int, int]:
    """Return the width in bits of the vector registers, and their number, that features give.

    LLVM's own answer (``llvm_get_vector_width``) says 512 for every x86 CPU. AArch64's SVE counts
    as the 128 bits of NEON, since kernels are compiled for fixed widths. A CPU without a vector
    unit counts one 64-bit register.
    """
    if arch == "x86_64":
        if "avx512f" in features:
            return 512, 32
        return (256, 16) if "avx" in features else (128, 16)
    if arch == "riscv64":
        widths = [int(match[1]) for match in (re.fullmatch(r"zvl(\d+)b", name) for name in features) if match]
        return (max(widths) if widths else 64), 32
    if "neon" in features:
        return 128, 32 if arch == "aarch64" else 16
    return 64, 32


def _llvm_accepts(mtriple: str, mcpu: str, feature: str) -> bool:
    """Try a feature that no CPU has by default: LLVM keeps it only if it knows it."""
    with _quiet_stderr():
        return feature in cpu_features(mtriple, mcpu, (f"+{feature}",))


@contextmanager
def _quiet_stderr() -> Iterator[None]:
    """Drop what LLVM prints to file descriptor 2, which no Python redirection catches."""
    with _stderr_lock:
        sys.stderr.flush()
        saved = os.dup(2)
        sink = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(sink, 2)
            yield
        finally:
            os.dup2(saved, 2)
            os.close(sink)
            os.close(saved)
