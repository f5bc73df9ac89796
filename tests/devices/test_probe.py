"""What is made of a device's answers. The answers are written after the kernel's documentation and public logs."""

from __future__ import annotations

import struct

import pytest

from edgetune.devices.manage import check_target, device_target
from edgetune.devices.probe import describe, parse_sections
from edgetune.errors import DeviceError
from edgetune.targets import load_target

A72 = "fp asimd evtstrm crc32 cpuid"
A76 = "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp"


def cpuinfo(cores: list[tuple[str, str]]) -> str:
    return "\n".join(
        f"processor\t: {number}\nBogoMIPS\t: 108.00\nFeatures\t: {features}\nCPU implementer\t: 0x41\n"
        f"CPU architecture: 8\nCPU part\t: {part}\nCPU revision\t: 3\n"
        for number, (part, features) in enumerate(cores)
    )


def answers(**sections: str):
    page = struct.pack("<QQQQ", 6, 16384, 16, 0x3)
    given = {
        "system": "Linux\naarch64\n6.6.20+rpt-rpi-v8",
        "auxv": page.hex(" "),
        "memory": "MemTotal:        3884360 kB",
        "allowed": "Cpus_allowed_list:\t0-7",
        "libc": "glibc 2.36",
        **sections,
    }
    names = (
        "system",
        "cpuinfo",
        "auxv",
        "memory",
        "allowed",
        "libc",
        "cpus",
        "thermal",
        "throttled",
        "board",
    )
    return describe(
        parse_sections(
            "".join(f"\n=={name}==\n{given.get(name, '')}\n" for name in (*names, "android", "gpu"))
        )
    )


@pytest.fixture
def pi4():
    cpus = "\n".join(
        f"{n}|1800000|ondemand|0x410fd083|{n}| 1:Data:32K 1:Instruction:48K 2:Unified:1M" for n in range(4)
    )
    return answers(
        cpuinfo=cpuinfo([("0xd08", A72)] * 4),
        cpus=cpus,
        thermal="cpu-thermal|48199",
        throttled="throttled=0x50000",
        board="Raspberry Pi 4 Model B Rev 1.4",
    )


def test_a_board(pi4):
    assert pi4.model == "Raspberry Pi 4 Model B Rev 1.4"
    assert pi4.clusters == (("0x41:0xd08", 1_800_000, 4),)
    assert (pi4.l1d_bytes, pi4.l2_bytes, pi4.l3_bytes) == (32 << 10, 1 << 20, 0)
    assert (pi4.page_bytes, pi4.memory_bytes, pi4.libc) == (16384, 3884360 * 1024, "glibc 2.36")
    assert pi4.governors == ("ondemand",)
    assert pi4.temperatures_c == {"cpu-thermal": 48.199}
    assert pi4.throttled == "0x50000"
    assert not pi4.emulated
    target = device_target("pi", pi4)
    assert (target.mcpu, target.threads, target.arch) == ("cortex-a72", 4, "aarch64")
    assert target.toolchain.page_size_bytes == 16384
    assert not target.supports("dotprod")


def test_a_target_with_features_that_the_device_lacks_is_refused(pi4):
    with pytest.raises(DeviceError, match=r"lacks: .*dotprod"):
        check_target(load_target("raspberry-pi-5"), "pi", pi4)
    with pytest.raises(DeviceError, match=r"x86_64.*aarch64"):
        check_target(load_target("zen2"), "pi", pi4)
    with pytest.raises(DeviceError, match=r"8 threads.*4 CPUs"):
        check_target(load_target("raspberry-pi-4").with_threads(8), "pi", pi4)
    check_target(load_target("raspberry-pi-4"), "pi", pi4)


def test_two_kinds_of_cores():
    """A feature counts where all cores have it; the target is named after the fastest cores."""
    cores = [("0xd05", A76)] * 4 + [("0xd0b", f"{A76} i8mm")] * 4
    cpus = "\n".join(f"{n}|{2_400_000 if n > 3 else 1_800_000}|schedutil||{n}|" for n in range(8))
    found = answers(cpuinfo=cpuinfo(cores), cpus=cpus)
    assert found.clusters == (("0x41:0xd0b", 2_400_000, 4), ("0x41:0xd05", 1_800_000, 4))
    assert "dotprod" in found.features
    assert "i8mm" not in found.features
    assert device_target("board", found).mcpu == "cortex-a76"


def test_only_the_cpus_that_the_user_may_use_count():
    cpus = "\n".join(f"{n}|1000000|||{n}|" for n in range(8))
    found = answers(cpuinfo=cpuinfo([("0xd05", A76)] * 8), cpus=cpus, allowed="Cpus_allowed_list:\t0-1,5")
    assert [cpu.number for cpu in found.cpus] == [0, 1, 5]
    assert found.cores == 3


def test_an_emulator_is_not_believed():
    """qemu shows the host's /proc/cpuinfo; the auxiliary vector is that of the machine it plays."""
    host = "processor\t: 0\nvendor_id\t: AuthenticAMD\nflags\t\t: fpu sse2 avx2\n"
    # AT_HWCAP: fp, asimd, asimddp.
    auxv = struct.pack("<QQQQ", 16, 1 | 1 << 1 | 1 << 20, 0, 0)
    found = answers(cpuinfo=host, auxv=auxv.hex(" "))
    assert found.emulated
    assert set(found.features) == {"fp-armv8", "neon", "dotprod"}
    assert device_target("board", found).mcpu == "generic"


def test_a_device_that_tells_nothing():
    found = answers(cpuinfo="", allowed="", auxv="", libc="musl")
    assert (found.arch, found.features, found.libc) == ("aarch64", (), "")
    assert device_target("board", found).threads == 1
