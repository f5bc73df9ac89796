"""Feature names, against what real machines print."""

from __future__ import annotations

import struct

import pytest

from edgetune import cpu
from edgetune.targets import load_target

# The lines as these boards print them under their vendors' systems.
CPUINFO = {
    "raspberry-pi-3": ("aarch64", "Features\t: fp asimd evtstrm crc32 cpuid\n" * 4),
    "raspberry-pi-3-armv7": (
        "arm",
        "Features\t: half thumb fastmult vfp edsp neon vfpv3 tls vfpv4 idiva idivt vfpd32 lpae evtstrm "
        "crc32\n",
    ),
    "raspberry-pi-4": ("aarch64", "Features\t: fp asimd evtstrm crc32 cpuid\n" * 4),
    "raspberry-pi-5": (
        "aarch64",
        "Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc "
        "dcpop asimddp\n",
    ),
    "jetson-nano": ("aarch64", "Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32\n"),
    "jetson-xavier": (
        "aarch64",
        "Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm dcpop\n",
    ),
    "jetson-orin": (
        "aarch64",
        "Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc "
        "dcpop asimddp uscat ilrcpc flagm paca pacg\n",
    ),
    "riscv64": ("riscv64", "isa\t\t: rv64imafdc_zicntr_zicsr_zifencei_zihpm_zba_zbb\n"),
}


@pytest.mark.parametrize("board", CPUINFO)
def test_a_board_has_what_its_target_needs(board):
    arch, text = CPUINFO[board]
    present = cpu.features_from_cpuinfo(text, arch)
    assert cpu.missing_features(load_target(board).required_features(), present, arch) == ()


def test_code_for_a_newer_board_is_refused_by_an_older_one():
    present = cpu.features_from_cpuinfo(CPUINFO["raspberry-pi-4"][1], "aarch64")
    required = load_target("raspberry-pi-5").required_features()
    assert cpu.missing_features(required, present, "aarch64") == (
        "dotprod", "fullfp16", "lse", "rcpc", "rdm",
    )  # fmt: skip


def test_only_what_every_core_has_counts():
    text = "flags : fpu sse2 avx2 avx512f\nflags : fpu sse2 avx2\n"
    assert cpu.features_from_cpuinfo(text, "x86_64") == {"sse2", "avx2"}


def test_linux_names_become_llvm_names():
    text = "flags\t\t: pni sse4_1 bmi1 abm avx512_vnni avx_vnni avx512_bf16 lahf_lm hypervisor"
    assert cpu.features_from_cpuinfo(text, "x86_64") == {
        "sse3", "sse4.1", "bmi", "lzcnt", "avx512vnni", "avxvnni", "avx512bf16", "sahf",
    }  # fmt: skip


def test_general_riscv_letter_is_spelled_out():
    assert {"i", "m", "a", "f", "d", "c", "v"} <= cpu.features_from_cpuinfo("isa : rv64gcv\n", "riscv64")


def test_another_architectures_cpuinfo_says_nothing():
    assert cpu.features_from_cpuinfo("flags : fpu sse2 avx2\n", "aarch64") == frozenset()


def test_auxiliary_vector_of_a_raspberry_pi_4():
    # AT_HWCAP as LD_SHOW_AUXV=1 prints it there, between AT_PAGESZ and AT_NULL.
    auxv = struct.pack("=6Q", 6, 4096, 16, 0x887, 0, 0)
    expected = cpu.features_from_cpuinfo(CPUINFO["raspberry-pi-4"][1], "aarch64")
    assert cpu.features_from_auxv(auxv, "aarch64") == expected == {"fp-armv8", "neon"}


def test_unknown_machine_misses_nothing():
    assert cpu.missing_features(["avx512f"], machine=()) == ()


def test_tuning_hints_are_never_missing():
    assert cpu.missing_features(["fast-hops", "slow-3ops-lea"], ["sse2"], "x86_64") == ()


def test_every_name_is_one_that_llvm_knows():
    from edgetune.targets import llvm

    triples = {
        "x86_64": "x86_64-linux-gnu",
        "aarch64": "aarch64-linux-gnu",
        "arm": "armv7l-linux-gnueabihf",
        "riscv64": "riscv64-linux-gnu",
    }
    for arch, triple in triples.items():
        assert cpu.checkable_features(arch) <= llvm.known_features(triple), arch


@pytest.mark.parametrize(
    ("machine", "arch"),
    [
        ("x86_64", "x86_64"),
        ("AMD64", "x86_64"),
        ("aarch64", "aarch64"),
        ("arm64", "aarch64"),
        ("armv7l", "arm"),
        ("riscv64", "riscv64"),
        ("ppc64le", "ppc64le"),
    ],
)
def test_architecture_of_a_machine_name(machine, arch):
    assert cpu.architecture(machine) == arch


def test_this_machine_reports_something():
    assert cpu.machine_features() <= cpu.checkable_features()
    assert cpu.machine_features()
