"""What a device says about itself: read with nothing but a shell, and checked against contradictions.

Sources: ``proc(5)``; Linux ``Documentation/ABI/testing/sysfs-devices-system-cpu``,
``Documentation/driver-api/thermal/sysfs-api.rst``; ``getauxval(3)``; Raspberry Pi's documentation of
``vcgencmd get_throttled``.
"""

from __future__ import annotations

import re
from collections import Counter

from pydantic import BaseModel, ConfigDict

from edgetune.cpu import ARCHITECTURES, architecture, features_from_auxv, features_from_cpuinfo
from edgetune.devices.link import Link
from edgetune.errors import DeviceError
from edgetune.targets.remote import CpuFacts

# No command in it is needed: what is missing leaves its section empty.
_SCRIPT = r"""
exec 2>/dev/null
section() { printf '\n==%s==\n' "$1"; }
section system; uname -s; uname -m; uname -r
section cpuinfo; cat /proc/cpuinfo
section auxv; od -An -v -tx1 /proc/self/auxv
section memory; head -n 3 /proc/meminfo
section allowed; cat /proc/self/status | grep Cpus_allowed_list
section libc; getconf GNU_LIBC_VERSION || ldd --version 2>&1 | head -n 1
section cpus
for cpu in /sys/devices/system/cpu/cpu[0-9]*; do
  printf '%s' "${cpu##*/cpu}"
  for file in cpufreq/cpuinfo_max_freq cpufreq/scaling_governor regs/identification/midr_el1 \
      topology/thread_siblings_list; do
    value=; read -r value < "$cpu/$file"; printf '|%s' "$value"
  done
  printf '|'
  for cache in "$cpu"/cache/index*; do
    read -r level < "$cache/level" && read -r type < "$cache/type" && read -r size < "$cache/size" &&
      printf ' %s:%s:%s' "$level" "$type" "$size"
  done
  printf '\n'
done
section thermal
for zone in /sys/class/thermal/thermal_zone*; do
  read -r type < "$zone/type" && read -r temp < "$zone/temp" && printf '%s|%s\n' "$type" "$temp"
done
section throttled; vcgencmd get_throttled
section board; tr -d '\000' < /proc/device-tree/model
section android; getprop ro.product.model; getprop ro.build.version.sdk
section gpu; nvidia-smi --query-gpu=name,compute_cap --format=csv,noheader; ls -d /dev/nvhost-gpu
section end
"""
_AT_PAGESZ = 6


class Cpu(BaseModel):
    """One logical CPU; zeros and empty texts where the kernel does not tell."""

    model_config = ConfigDict(frozen=True)

    number: int
    part: str = ""
    max_khz: int = 0
    governor: str = ""
    siblings: str = ""


class Probe(BaseModel):
    """What a device is, at one moment.

    Attributes:
        arch: one of ``cpu.ARCHITECTURES``, or the machine's own name where edgetune knows it not.
        system: name and version of the kernel. model: of the board or the CPU.
        cpus: those that a user's program may run on. cores: how many of them are physical cores.
        features: under LLVM's names. parts: the CPUs' model numbers, as ``0x41:0xd0b`` on ARM.
        l1d_bytes, l2_bytes, l3_bytes: caches of the first CPU; 0 where unknown.
        page_bytes: size of a memory page; 0 where unknown. memory_bytes: all of it.
        libc: ``glibc 2.36``, or empty where it is another one.
        temperatures_c: by sensor. throttled: what the firmware says of it, where it says anything.
        gpu: name and compute capability, where there is one.
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
    temperatures_c: dict[str, float]
    throttled: str
    gpu: str
    emulated: bool
    notes: tuple[str, ...]

    @property
    def clusters(self) -> tuple[tuple[str, int, int], ...]:
        """Part, highest frequency in kHz and number of CPUs of each kind of core, the fastest first."""
        counted = Counter((cpu.part, cpu.max_khz) for cpu in self.cpus)
        return tuple((part, khz, n) for (part, khz), n in sorted(counted.items(), key=lambda i: -i[0][1]))

    @property
    def governors(self) -> tuple[str, ...]:
        """The frequency governors in use."""
        return tuple(sorted({cpu.governor for cpu in self.cpus if cpu.governor}))

    def facts(self) -> CpuFacts:
        """What a target can be made of."""
        fastest = self.clusters[0][0] if self.clusters else ""
        part = fastest or (self.parts[0] if self.parts else "")
        return CpuFacts(
            arch=self.arch,
            model=self.model,
            part=part,
            features=frozenset(self.features),
            cores=self.cores,
            l1d_bytes=self.l1d_bytes,
            l2_bytes=self.l2_bytes,
            l3_bytes=self.l3_bytes,
            page_bytes=self.page_bytes,
            notes=self.notes,
        )

    def summary(self) -> str:
        """One line for people."""
        parts = [self.model or "unknown CPU", self.arch, f"{self.cores} cores", self.libc or "no glibc"]
        return ", ".join([*parts, *(["emulated"] if self.emulated else [])])


def probe(link: Link) -> Probe:
    """Ask a device what it is.

    Raises:
        DeviceError: the connection broke, or its shell does not run the questions.
    """
    done = link.run(_SCRIPT, timeout_s=60)
    sections = parse_sections(done.stdout.decode("utf-8", "replace"))
    if "end" not in sections:
        raise DeviceError(
            f"{link.address} does not answer with a POSIX shell ({done.complaint}). Give its user one: edgetune "
            "runs commands with `sh -c`."
        )
    return describe(sections)


def parse_sections(text: str) -> dict[str, str]:
    """Split what the questions printed, by section."""
    pieces = re.split(r"^==(\w+)==$", text, flags=re.M)
    return {name: body.strip() for name, body in zip(pieces[1::2], pieces[2::2], strict=True)}


def describe(sections: dict[str, str]) -> Probe:
    """Turn the answers into a :class:`Probe`."""
    kernel, machine, release = (sections["system"].splitlines() + ["", "", ""])[:3]
    arch = architecture(machine) if machine else "unknown"
    cpuinfo = sections["cpuinfo"]
    auxv = bytes.fromhex("".join(sections["auxv"].split()))
    features = features_from_cpuinfo(cpuinfo, arch) or features_from_auxv(auxv, arch)
    emulated, notes = _contradictions(arch, cpuinfo)
    parts = _parts(arch, cpuinfo) if not emulated else {}
    allowed = _cpu_list(sections["allowed"].rpartition(":")[2])
    cpus, caches = _cpus(sections["cpus"], parts, allowed)
    virtual = bool(re.search(r"^flags\s*:.*\bhypervisor\b", cpuinfo, re.M))
    if not features:
        notes += ("the kernel does not tell the CPU's features: only what every CPU of its kind has is used",)
    if arch not in ARCHITECTURES:
        notes += (f"edgetune does not know the architecture {arch}",)
    return Probe(
        arch=arch,
        system=f"{kernel} {release}".strip(),
        model=_model(sections, cpuinfo) if not emulated else "emulated CPU",
        cpus=cpus,
        cores=max(1, len(cpus) if virtual else len({cpu.siblings or str(cpu.number) for cpu in cpus})),
        features=tuple(sorted(features)),
        parts=tuple(sorted(set(parts.values()))),
        l1d_bytes=caches.get(1, 0),
        l2_bytes=caches.get(2, 0),
        l3_bytes=caches.get(3, 0),
        page_bytes=_auxiliary(auxv, _AT_PAGESZ, arch),
        memory_bytes=_memory(sections["memory"]),
        libc=_libc(sections["libc"]),
        temperatures_c=_temperatures(sections["thermal"]),
        throttled=sections["throttled"].rpartition("=")[2],
        gpu=_gpu(sections["gpu"]),
        emulated=emulated,
        notes=notes,
    )


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


def _cpus(text: str, parts: dict[int, str], allowed: set[int]) -> tuple[tuple[Cpu, ...], dict[int, int]]:
    """The usable CPUs, and the caches of the first of them by level."""
    found, caches = [], {}
    for line in text.splitlines():
        number, khz, governor, _, siblings, cached = (line.split("|") + [""] * 6)[:6]
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
            )
        )
        caches[cpu] = _caches(cached)
    if not found:  # a device without sysfs
        numbers = sorted(allowed or parts or {0})
        found = [Cpu(number=number, part=parts.get(number, "")) for number in numbers]
    found.sort(key=lambda cpu: cpu.number)
    return tuple(found), caches.get(found[0].number, {})


def _caches(text: str) -> dict[int, int]:
    sizes = {}
    for level, kind, number, unit in re.findall(r"(\d):(\w+):(\d+)([KMG]?)", text):
        if kind in ("Data", "Unified"):
            sizes[int(level)] = int(number) << {"": 0, "K": 10, "M": 20, "G": 30}[unit]
    return sizes


def _cpu_list(text: str) -> set[int]:
    """Read ``0-3,6``."""
    numbers: set[int] = set()
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        numbers |= set(range(int(first), int(last or first) + 1))
    return numbers


def _auxiliary(auxv: bytes, key: int, arch: str) -> int:
    size = 4 if arch == "arm" else 8
    words = [int.from_bytes(auxv[i : i + size], "little") for i in range(0, len(auxv) - size + 1, size)]
    return dict(zip(words[::2], words[1::2], strict=False)).get(key, 0)


def _memory(text: str) -> int:
    match = re.search(r"^MemTotal:\s*(\d+) kB", text, re.M)
    return int(match[1]) * 1024 if match else 0


def _libc(text: str) -> str:
    match = re.search(r"(?i)\b(?:glibc|gnu libc)\b.*?(\d+\.\d+)", text)
    return f"glibc {match[1]}" if match else ""


def _temperatures(text: str) -> dict[str, float]:
    pairs = re.findall(r"^(.+)\|(-?\d+)$", text, re.M)
    # Kernels give thousandths of a degree, a few drivers whole ones.
    return {name: int(value) / 1000 if abs(int(value)) > 1000 else float(value) for name, value in pairs}


def _gpu(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (
        lines[0].replace(", ", " sm_").replace(".", "") if lines and "," in lines[0] else " ".join(lines[:1])
    )


def _model(sections: dict[str, str], cpuinfo: str) -> str:
    phone = sections["android"].splitlines()
    match = re.search(r"^(?:model name|Hardware)\s*:\s*(.+)$", cpuinfo, re.M)
    return sections["board"] or (phone[0] if phone else "") or (match[1].strip() if match else "")
