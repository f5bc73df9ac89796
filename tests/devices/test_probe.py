"""What is made of a device's answers. The answers are written after the kernel's documentation and public logs.

``/proc/cpuinfo`` after Linux ``arch/arm64/kernel/cpuinfo.c`` and ``arch/x86/kernel/cpu/proc.c``; the boards' and
systems' names after the device trees in Linux (``bcm2712``, ``tegra234``) and Android's ``getprop``.
"""

from __future__ import annotations

import json
import os
import resource
import struct

import pytest

from edgetune.cpu import machine_features
from edgetune.devices.manage import check_target, device_target
from edgetune.devices.probe import describe, parse_sections
from edgetune.errors import DeviceError
from edgetune.targets import load_target, write_target

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
            "".join(f"\n=={name}==\n{given.get(name, '')}\n" for name in dict.fromkeys((*names, *given)))
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


SVE2 = f"{A76} fcma ilrcpc flagm uscat sve sve2 i8mm bf16"
BIG = [("0xd46", SVE2)] * 3 + [("0xd4d", SVE2)] * 4 + [("0xd4e", SVE2)]


def test_a_phone():
    """Caches and name come from the biggest core, clocks decide which that is, and bionic is no glibc."""
    cpus = "\n".join(
        f"{n}|{khz}|walt|{capacity}|{n}| 1:Data:{l1}K 2:Unified:{l2}K"
        for n, khz, capacity, l1, l2 in [(n, 2_016_000, 326, 32, 128) for n in range(3)]
        + [(n, 2_803_200, 855, 64, 256) for n in range(3, 7)]
        + [(7, 3_187_200, 1024, 64, 1024)]
    )
    found = answers(
        cpuinfo=cpuinfo(BIG),
        cpus=cpus,
        libc="/system/lib64/libc.so\n/system/lib/libc.so",
        android="SM-S911B\n34\nQTI\nSM8550",
        othergpu="Adreno740v2",
        thermal="cpu-1-7-0-usr|41200",
    )
    assert (found.libc, found.isa_level) == ("bionic", "armv9-a")
    assert [(kind.part, kind.cpus) for kind in found.kinds] == [
        ("0x41:0xd4e", (7,)),
        ("0x41:0xd4d", (3, 4, 5, 6)),
        ("0x41:0xd46", (0, 1, 2)),
    ]
    assert (found.l1d_bytes, found.l2_bytes) == (64 << 10, 1 << 20)
    assert (found.model, found.gpu, found.other_gpu) == ("SM-S911B", "", "Adreno740v2")
    assert {"dotprod", "fullfp16", "i8mm", "sve"} <= set(found.features)
    target = device_target("phone", found)
    assert (target.mcpu, target.device.clusters[0]) == ("cortex-x3", "1 x 0x41:0xd4e, 3187 MHz, CPUs 7")


def test_a_jetson(tmp_path):
    """The GPU's capability comes from the system on a chip: its nvidia-smi knows none."""
    found = answers(
        cpuinfo=cpuinfo([("0xd42", A76)] * 6),
        board="NVIDIA Jetson Orin Nano Engineering Reference Developer Kit Super",
        tree="nvidia,p3768-0000+p3767-0005-super\nnvidia,p3767-0005\nnvidia,tegra234",
        gpu="Orin (nvgpu), [N/A]",
        power="mv_ma|VDD_IN|4952|1040\nmv_ma|VDD_SOC|4944|312",
        mode="NV Power Mode: 15W\n0",
    )
    assert (found.gpu, found.gpu_arch) == ("Orin (nvgpu) sm_87", "sm_87")
    assert (found.state.power_mode, found.state.power_sensors) == ("15W", ("VDD_IN",))
    target = device_target("jetson", found)
    assert target.mcpu == "cortex-a78ae"
    check_target(load_target("jetson-orin-cuda"), "jetson", answers(**JETSON12))
    with pytest.raises(DeviceError, match=r"sm_72.*sm_87"):
        check_target(load_target("jetson-xavier-cuda").model_copy(update={"mattr": ()}), "jetson", found)


JETSON12 = {
    "cpuinfo": cpuinfo([("0xd42", A76)] * 12),
    "tree": "nvidia,p3701-0000\nnvidia,tegra234",
    "allowed": "Cpus_allowed_list:\t0-11",
}


def test_a_pc():
    flags = "fpu cx8 cmov sse sse2 pni ssse3 cx16 sse4_1 sse4_2 movbe popcnt avx f16c abm bmi1 avx2 bmi2 fma"
    text = f"processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Intel(R) N100\nflags\t\t: {flags} avx_vnni\n"
    found = answers(
        system="Linux\nx86_64\n6.8.0-48-generic",
        cpuinfo=text,
        cpus="0|3400000|powersave||0| 1:Data:32K 1:Instruction:64K 2:Unified:2048K 3:Unified:6144K",
        libc="musl libc (x86_64)\nVersion 1.2.5",
        gpu="NVIDIA GeForce RTX 4070, 8.9",
        power="uj|package-0|1000000|262143328850",
    )
    assert (found.isa_level, found.libc, found.gpu) == (
        "x86-64-v3",
        "musl 1.2.5",
        "NVIDIA GeForce RTX 4070 sm_89",
    )
    assert found.state.power_sensors == ("package-0",)
    with pytest.raises(DeviceError, match=r"lacks: avx512"):
        check_target(load_target("x86-64-v4").with_threads(1), "box", found)


def test_32_bit_programs_on_a_64_bit_kernel():
    """As Raspberry Pi OS of 32 bits has it: the auxiliary vector's words are half as long."""
    auxv = struct.pack("<IIII", 6, 4096, 16, 0x3)
    found = answers(cpuinfo=cpuinfo([("0xd08", A72)] * 4), auxv=auxv.hex(" "), **{"class": "7f 45 4c 46 01"})
    assert found.page_bytes == 4096
    assert "32-bit" in found.notes[0]


def test_what_was_detected_is_in_the_target_file(pi4, tmp_path):
    target = device_target("pi", pi4)
    write_target(target, tmp_path / "pi.toml")
    again = load_target(tmp_path / "pi.toml")
    assert again.device == target.device
    assert again.device.governors == ("ondemand",)
    assert again.device.temperature_sources == ("cpu-thermal",)
    assert again.fingerprint == target.model_copy(update={"device": None}).fingerprint


def test_this_machine(run_cli):
    code, out, err = run_cli("devices", "probe", "local", "--json")
    assert code == 0, err
    told = json.loads(out)
    assert set(told["features"]) == set(machine_features())
    assert told["page_bytes"] == resource.getpagesize()
    assert {cpu["number"] for cpu in told["cpus"]} == set(os.sched_getaffinity(0))
