"""What a device says about itself: read with nothing but a shell, and checked against contradictions.

Sources: ``proc(5)``; Linux ``Documentation/ABI/testing/sysfs-devices-system-cpu``; ``getauxval(3)``; ``elf(5)``;
NVIDIA's table of compute capabilities; those of ``sensors.py``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from pydantic import BaseModel, ConfigDict

from edgetune.cpu import (
    ARCHITECTURES,
    architecture,
    features_from_auxv,
    features_from_cpuinfo,
    isa_level,
)
from edgetune.devices.link import Link
from edgetune.devices.questions import QUESTIONS
from edgetune.devices.sensors import TIMEOUT_S, State, sections_of, state_of, state_script
from edgetune.errors import DeviceError
from edgetune.targets import DeviceFacts
from edgetune.targets.remote import CpuFacts

_AT_PAGESZ = 6
# Jetson's systems on a chip, by the name in their device trees: older ones have no nvidia-smi.
_TEGRA = {
    "tegra210": "sm_53",
    "tegra186": "sm_62",
    "tegra194": "sm_72",
    "tegra234": "sm_87",
    "tegra264": "sm_110",
}


class Cpu(BaseModel):
    """One logical CPU; zeros and empty texts where the kernel does not tell."""

    model_config = ConfigDict(frozen=True)

    number: int
    part: str = ""
    max_khz: int = 0
    governor: str = ""
    siblings: str = ""
    capacity: int = 0
    caches: dict[int, int] = {}


class Cluster(BaseModel):
    """CPUs of one kind: their model number, highest clock, how fast they are (1024 is the fastest; 0: not told)."""

    model_config = ConfigDict(frozen=True)

    part: str
    max_khz: int
    capacity: int
    cpus: tuple[int, ...]


class Probe(BaseModel):
    """What a device is, at one moment.

    Attributes:
        arch: one of ``cpu.ARCHITECTURES``, or the machine's own name where edgetune knows it not.
        system: name and version of the kernel. model: of the board or the CPU.
        cpus: those that a user's program may run on. cores: how many of them are physical cores.
        features: under LLVM's names. parts: the CPUs' model numbers, as ``0x41:0xd0b`` on ARM.
        l1d_bytes, l2_bytes, l3_bytes: caches of the first CPU; 0 where unknown.
        page_bytes: size of a memory page; 0 where unknown. memory_bytes: all of it.
        libc: ``glibc 2.36``, ``musl 1.2.5``, ``bionic``, or empty where it is another one.
        isa_level: what the features amount to, as ``x86-64-v3``, ``armv8.2-a``; empty where unknown.
        temperatures_c: by sensor. throttled: what a Raspberry Pi's firmware says of it, where it says anything.
        state: clocks, throttling and power at this moment.
        gpu: name and compute capability of NVIDIA's, where there is one. other_gpu: name of another maker's.
        emulated: its witnesses contradict each other: timings say nothing about a real device.
        notes: what to know.
    """

    model_config = ConfigDict(frozen=True)

    arch: str
    system: str
    model: str
    cpus: tuple[Cpu, ...]
    cores: int
    features: tuple[str, ...]
    parts: tuple[str, ...]
    l1d_bytes: int
    l2_bytes: int
    l3_bytes: int
    page_bytes: int
    memory_bytes: int
    libc: str
    isa_level: str = ""
    temperatures_c: dict[str, float]
    throttled: str
    state: State = State()
    gpu: str
    other_gpu: str = ""
    emulated: bool
    notes: tuple[str, ...]

    @property
    def clusters(self) -> tuple[tuple[str, int, int], ...]:
        """Part, highest frequency in kHz and number of CPUs of each kind of core, the fastest first."""
        return tuple((kind.part, kind.max_khz, len(kind.cpus)) for kind in self.kinds)

    @property
    def kinds(self) -> tuple[Cluster, ...]:
        """The kinds of cores, the fastest first: by clock, where that is equal or not told by capacity."""
        found: dict[tuple[int, int, str], list[int]] = {}
        for cpu in self.cpus:
            found.setdefault((cpu.max_khz, cpu.capacity, cpu.part), []).append(cpu.number)
        ordered = sorted(found.items(), key=lambda item: (-item[0][0], -item[0][1], item[1]))
        return tuple(
            Cluster(part=part, max_khz=khz, capacity=capacity, cpus=tuple(numbers))
            for (khz, capacity, part), numbers in ordered
        )

    @property
    def gpu_arch(self) -> str:
        """``sm_`` and the compute capability of its NVIDIA GPU; empty without one."""
        match = re.search(r"\bsm_\d+\b", self.gpu)
        return match[0] if match else ""

    @property
    def governors(self) -> tuple[str, ...]:
        """The frequency governors in use."""
        return tuple(sorted({cpu.governor for cpu in self.cpus if cpu.governor}))

    def only(self, numbers: Collection[int]) -> Probe:
        """Return the same device with these CPUs alone."""
        cpus = tuple(cpu for cpu in self.cpus if cpu.number in numbers)
        virtual = self.cores == len(self.cpus)
        caches = _fastest(cpus).caches
        return self.model_copy(
            update={
                "cpus": cpus,
                "cores": len(cpus) if virtual else len({cpu.siblings or str(cpu.number) for cpu in cpus}),
                "l1d_bytes": caches.get(1, 0),
                "l2_bytes": caches.get(2, 0),
                "l3_bytes": caches.get(3, 0),
            }
        )

    def facts(self) -> CpuFacts:
        """What a target can be made of: the fastest kind of cores gives its name and its caches."""
        kinds = self.kinds
        part = kinds[0].part if kinds else ""
        return CpuFacts(
            arch=self.arch,
            model=self.model,
            part=part or (self.parts[0] if self.parts else ""),
            features=frozenset(self.features),
            cores=self.cores,
            l1d_bytes=self.l1d_bytes,
            l2_bytes=self.l2_bytes,
            l3_bytes=self.l3_bytes,
            page_bytes=self.page_bytes,
            notes=self.notes,
            device=self.device_facts(),
        )

    def device_facts(self) -> DeviceFacts:
        """What a target file keeps of the machine itself."""
        return DeviceFacts(
            system=self.system,
            features=self.features,
            isa_level=self.isa_level,
            clusters=tuple(
                f"{len(kind.cpus)} x {kind.part or 'CPU'}, {kind.max_khz / 1e3:.0f} MHz, "
                f"CPUs {','.join(map(str, kind.cpus))}"
                for kind in self.kinds
            ),
            page_bytes=self.page_bytes,
            memory_bytes=self.memory_bytes,
            libc=self.libc,
            gpu=self.gpu or self.other_gpu,
            governors=self.governors,
            temperature_sources=tuple(self.temperatures_c),
            power_sources=self.state.power_sensors,
        )

    def summary(self) -> str:
        """One line for people."""
        parts = [
            self.model or "unknown CPU",
            self.arch,
            f"{self.cores} cores",
            self.libc or "unknown C library",
        ]
        return ", ".join([*parts, *(["emulated"] if self.emulated else [])])


def probe(link: Link) -> Probe:
    """Ask a device what it is.

    Raises:
        DeviceError: the connection broke, or its shell does not run the questions.
    """
    done = link.run(QUESTIONS + state_script(), timeout_s=60 + TIMEOUT_S)
    sections = parse_sections(done.stdout.decode("utf-8", "replace"))
    if "end" not in sections:
        raise DeviceError(
            f"{link.address} does not answer with a POSIX shell ({done.complaint}). Give its user one: edgetune "
            "runs commands with `sh -c`."
        )
    return describe(sections)


def parse_sections(text: str) -> dict[str, str]:
    """Split what the questions printed, by section."""
    return sections_of(text)


def describe(sections: Mapping[str, str]) -> Probe:
    """Turn the answers into a :class:`Probe`."""
    told = defaultdict(str, sections)
    kernel, machine, release = (told["system"].splitlines() + ["", "", ""])[:3]
    arch = architecture(machine) if machine else "unknown"
    cpuinfo = told["cpuinfo"]
    auxv = bytes.fromhex("".join(told["auxv"].split()))
    narrow = bytes.fromhex("".join(told["class"].split()))[4:5] == b"\1"
    features = features_from_cpuinfo(cpuinfo, arch) or features_from_auxv(auxv, arch)
    emulated, notes = _contradictions(arch, cpuinfo)
    parts = _parts(arch, cpuinfo) if not emulated else {}
    allowed = cpu_list(told["allowed"].rpartition(":")[2])
    cpus = _cpus(told["cpus"], parts, allowed)
    caches = _fastest(cpus).caches
    virtual = bool(re.search(r"^flags\s*:.*\bhypervisor\b", cpuinfo, re.M))
    state = state_of(told, tuple(cpu.number for cpu in cpus))
    if narrow and arch in ("aarch64", "x86_64"):
        notes += (
            f"its programs are 32-bit ones on a 64-bit kernel: code for {arch} runs, but in no app of theirs",
        )
    return Probe(
        arch=arch,
        system=f"{kernel} {release}".strip(),
        model=_model(told, cpuinfo) if not emulated else "emulated CPU",
        cpus=cpus,
        cores=max(1, len(cpus) if virtual else len({cpu.siblings or str(cpu.number) for cpu in cpus})),
        features=tuple(sorted(features)),
        parts=tuple(sorted(set(parts.values()))),
        l1d_bytes=caches.get(1, 0),
        l2_bytes=caches.get(2, 0),
        l3_bytes=caches.get(3, 0),
        page_bytes=_auxiliary(auxv, _AT_PAGESZ, 4 if narrow or arch == "arm" else 8),
        memory_bytes=_memory(told["memory"]),
        libc=_libc(told["libc"]),
        isa_level=isa_level(arch, features),
        temperatures_c=state.temperatures_c,
        throttled=told["throttled"].rpartition("=")[2].removesuffix("0x"),
        state=state,
        gpu=_gpu(told["gpu"], told["tree"]),
        other_gpu=next(iter(told["othergpu"].splitlines()), ""),
        emulated=emulated,
        notes=(*notes, *_unknown(arch, features)),
    )


def _fastest(cpus: Iterable[Cpu]) -> Cpu:
    """The fastest CPU, the first of equals. Of phones, the first CPU is a small one."""
    return max(cpus, key=lambda cpu: (cpu.max_khz, cpu.capacity, -cpu.number))


def _unknown(arch: str, features: frozenset[str]) -> tuple[str, ...]:
    notes: tuple[str, ...] = ()
    if not features:
        notes += ("the kernel does not tell the CPU's features: only what every CPU of its kind has is used",)
    if arch not in ARCHITECTURES:
        notes += (f"edgetune does not know the architecture {arch}",)
    return notes


def _contradictions(arch: str, cpuinfo: str) -> tuple[bool, tuple[str, ...]]:
    """Whether /proc/cpuinfo is that of another kind of machine than the programs are for."""
    x86 = bool(re.search(r"^(vendor_id|flags)\s*:", cpuinfo, re.M))
    arm = bool(re.search(r"^CPU implementer\s*:", cpuinfo, re.M))
    told = "x86_64" if x86 else "arm" if arm else arch
    if told == arch or (told == "arm" and arch in ("arm", "aarch64")):
        return False, ()
    return True, (
        f"programs are for {arch}, but /proc/cpuinfo describes an {told} CPU: this is an emulator, whose timings "
        "say nothing about a real device",
    )


def _parts(arch: str, cpuinfo: str) -> dict[int, str]:
    """The model number of each logical CPU, as far as /proc/cpuinfo gives it."""
    found = {}
    for block in cpuinfo.split("\n\n"):
        fields = {
            key.strip(): value.strip()
            for key, _, value in (line.partition(":") for line in block.splitlines())
        }
        if not fields.get("processor", "").isdigit():
            continue
        if arch in ("aarch64", "arm"):
            part = f"{fields.get('CPU implementer', '')}:{fields.get('CPU part', '')}".lower()
        else:
            keys = ("vendor_id", "cpu family", "model") if arch == "x86_64" else ("uarch",)
            part = ":".join(fields.get(key, "") for key in keys)
        found[int(fields["processor"])] = part.strip(":")
    return found


def _cpus(text: str, parts: dict[int, str], allowed: set[int]) -> tuple[Cpu, ...]:
    """The usable CPUs."""
    found = []
    for line in text.splitlines():
        number, khz, governor, capacity, siblings, cached = (line.split("|") + [""] * 6)[:6]
        if not number.isdigit() or (allowed and int(number) not in allowed):
            continue
        cpu = int(number)
        found.append(
            Cpu(
                number=cpu,
                part=parts.get(cpu, ""),
                max_khz=int(khz) if khz.isdigit() else 0,
                governor=governor,
                siblings=siblings,
                capacity=int(capacity) if capacity.isdigit() else 0,
                caches=_caches(cached),
            )
        )
    if not found:  # a device without sysfs
        numbers = sorted(allowed or parts or {0})
        found = [Cpu(number=number, part=parts.get(number, "")) for number in numbers]
    return tuple(sorted(found, key=lambda cpu: cpu.number))


def _caches(text: str) -> dict[int, int]:
    sizes = {}
    for level, kind, number, unit in re.findall(r"(\d):(\w+):(\d+)([KMG]?)", text):
        if kind in ("Data", "Unified"):
            sizes[int(level)] = int(number) << {"": 0, "K": 10, "M": 20, "G": 30}[unit]
    return sizes


def cpu_list(text: str) -> set[int]:
    """Read ``0-3,6``."""
    numbers: set[int] = set()
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        numbers |= set(range(int(first), int(last or first) + 1))
    return numbers


def _auxiliary(auxv: bytes, key: int, size: int) -> int:
    """An entry of the auxiliary vector, whose words have ``size`` bytes."""
    words = [int.from_bytes(auxv[i : i + size], "little") for i in range(0, len(auxv) - size + 1, size)]
    return dict(zip(words[::2], words[1::2], strict=False)).get(key, 0)


def _memory(text: str) -> int:
    match = re.search(r"^MemTotal:\s*(\d+) kB", text, re.M)
    return int(match[1]) * 1024 if match else 0


def _libc(text: str) -> str:
    if match := re.search(r"(?i)\b(?:glibc|gnu libc)\b.*?(\d+\.\d+)", text):
        return f"glibc {match[1]}"
    if match := re.search(r"musl libc.*?Version (\d+[.\d]*)", text, re.S):
        return f"musl {match[1]}"
    return "bionic" if "/system/lib" in text else ""


def _gpu(smi: str, tree: str) -> str:
    """NVIDIA's GPU, from what nvidia-smi says, else from the name of the system on a chip."""
    lines = [line.strip() for line in smi.splitlines() if "," in line]
    name, _, capability = lines[0].rpartition(", ") if lines else ("", "", "")
    if re.fullmatch(r"\d+\.\d", capability):
        return f"{name} sm_{capability.replace('.', '')}"
    chip = next((part for part in re.findall(r"^nvidia,(tegra\d+)$", tree, re.M) if part in _TEGRA), "")
    return f"{name or chip.capitalize()} {_TEGRA[chip]}" if chip else name


def _model(sections: Mapping[str, str], cpuinfo: str) -> str:
    phone = sections["android"].splitlines()
    match = re.search(r"^(?:model name|Hardware)\s*:\s*(.+)$", cpuinfo, re.M)
    return sections["board"] or (phone[0] if phone else "") or (match[1].strip() if match else "")
