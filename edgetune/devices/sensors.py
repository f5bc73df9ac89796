"""How a device is at the moment: clocks, governor, temperatures, throttling, power.

One class reads it all, with a shell's built-in commands and what the device has anyway, over any link; where the
kernel's files lie is its parameter, so that a directory tree stands in for a device. What is missing is left out.

Sources: Linux ``Documentation/admin-guide/pm/cpufreq.rst``, ``Documentation/driver-api/thermal/sysfs-api.rst``
(zones, cooling devices), ``Documentation/hwmon/sysfs-interface.rst`` and ``ina3221.rst``,
``Documentation/power/powercap/powercap.rst``, ``arch/x86/kernel/cpu/mce/therm_throt.c`` (throttle counters);
Raspberry Pi's ``vcgencmd get_throttled``; NVIDIA's Jetson Linux developer guide, "Power mode" (``nvpmodel -q``) and
"Software-based power consumption modeling" (rails of the INA3221, as hwmon and, before Jetson Linux 34, as IIO
devices); Android's ``android.os.PowerManager.THERMAL_STATUS_*`` as ``dumpsys thermalservice`` prints them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from edgetune.devices.link import Output

TIMEOUT_S = 20.0
_READ = r"""
exec 2>/dev/null
section() { printf '\n==%s==\n' "$1"; }
get() { value=; read -r value < "$1"; }
section clocks
for cpu in "$root"/sys/devices/system/cpu/cpu[0-9]*; do
  printf '%s' "${cpu##*/cpu}"
  for file in cpufreq/scaling_cur_freq cpufreq/scaling_max_freq cpufreq/scaling_governor \
      thermal_throttle/core_throttle_count thermal_throttle/package_throttle_count; do
    get "$cpu/$file"; printf '|%s' "$value"
  done
  printf '\n'
done
section thermal
for zone in "$root"/sys/class/thermal/thermal_zone*; do
  read -r type < "$zone/type" && read -r temp < "$zone/temp" && printf '%s|%s\n' "$type" "$temp"
done
for chip in "$root"/sys/class/hwmon/hwmon*; do
  get "$chip/name"; name=$value
  for input in "$chip"/temp*_input; do
    read -r temp < "$input" && { get "${input%_input}_label"; printf '%s|%s\n' "$name ${value:-${input##*/}}" "$temp"; }
  done
done
section cooling
for device in "$root"/sys/class/thermal/cooling_device*; do
  read -r type < "$device/type" && read -r now < "$device/cur_state" && { get "$device/max_state"
    printf '%s|%s|%s\n' "$type" "$now" "$value"; }
done
section power
@POWER@
section throttled
vcgencmd get_throttled || {
  get "$root/sys/devices/platform/soc/soc:firmware/get_throttled"; echo "throttled=0x$value"; }
section mode; nvpmodel -q
section thermalservice; dumpsys thermalservice | grep -m 1 'Thermal Status'
section end
"""
# Kind, name, then counted energy in microjoules and where it wraps, or power in microwatts, or milliwatts, or
# millivolts and milliamperes.
_POWER = r"""
for zone in "$root"/sys/class/powercap/intel-rapl:*; do
  case ${zone##*/intel-rapl:} in *:*) continue;; esac
  read -r energy < "$zone/energy_uj" && { get "$zone/name"; name=$value; get "$zone/max_energy_range_uj"
    printf 'uj|%s|%s|%s\n' "$name" "$energy" "$value"; }
done
for chip in "$root"/sys/class/hwmon/hwmon*; do
  get "$chip/name"; [ "$value" = ina3221 ] || continue
  for input in "$chip"/in[123]_input; do
    n=${input##*/in}; n=${n%%_input}
    read -r volts < "$input" && read -r amperes < "$chip/curr${n}_input" && { get "$chip/in${n}_label"
      printf 'mv_ma|%s|%s|%s\n' "${value:-rail $n}" "$volts" "$amperes"; }
  done
done
for input in "$root"/sys/bus/i2c/drivers/ina3221x/*/iio:device*/in_power[012]_input; do
  n=${input##*/in_power}; n=${n%%_input}
  read -r power < "$input" && { get "${input%%/in_power*}/rail_name_$n"
    printf 'mw|%s|%s\n' "${value:-rail $n}" "$power"; }
done
"""
_RAIL_OF_ALL = ("VDD_IN", "POM_5V_IN")
"""Rails of Jetson boards that feed all others."""
_THERMAL_STATUS = ("none", "light", "moderate", "severe", "critical", "emergency", "shutdown")
_UNDER_VOLTAGE, _CAPPED, _THROTTLED, _SOFT_LIMIT = 1, 2, 4, 8
"""``get_throttled``: what is so now; the same bits 16 higher: what has been so since the start."""


class Shell(Protocol):
    """What runs commands of a POSIX shell: a link, or a part of one."""

    def run(self, command: str, timeout_s: float = 30.0) -> Output:
        """Run a command and wait for its end.

        Raises:
            DeviceError: the connection broke, or the command took longer than ``timeout_s`` seconds.
        """
        ...


@dataclass(frozen=True)
class State:
    """What a device says of itself at one moment; empty where it does not tell.

    Attributes:
        mhz: clock by CPU. limit_mhz: highest clock that is allowed at the moment, by CPU.
        governors: frequency governors in use. temperatures_c: by sensor.
        throttled: why it is slowed down now, in words; empty when it is not, or does not tell.
        counters: events that slowed it down, counted since its start, by name.
        power_mode: of a Jetson, as ``MAXN``. power_w: by rail, where power itself is told.
        power_sensors: the names of all that tell power or energy.
    """

    mhz: dict[int, float] = field(default_factory=dict)
    limit_mhz: dict[int, float] = field(default_factory=dict)
    governors: tuple[str, ...] = ()
    temperatures_c: dict[str, float] = field(default_factory=dict)
    throttled: tuple[str, ...] = ()
    counters: dict[str, int] = field(default_factory=dict)
    power_mode: str = ""
    power_w: dict[str, float] = field(default_factory=dict)
    power_sensors: tuple[str, ...] = ()

    @property
    def hottest_c(self) -> float | None:
        """The highest temperature."""
        return max(self.temperatures_c.values(), default=None)

    def slowed_since(self, before: State) -> tuple[str, ...]:
        """Why it was slowed down at some moment since ``before``, as far as it tells."""
        counted = tuple(
            f"{name} {number - before.counters[name]} times"
            for name, number in self.counters.items()
            if number > before.counters.get(name, number)
        )
        return tuple(dict.fromkeys((*before.throttled, *self.throttled, *counted)))

    def brief(self) -> dict[str, Any]:
        """In few words, as a JSON object; None where it does not tell."""
        mean_mhz = sum(self.mhz.values()) / len(self.mhz) if self.mhz else None
        return {
            "governors": list(self.governors),
            "mean_mhz": mean_mhz,
            "hottest_c": self.hottest_c,
            "throttled": list(self.throttled),
            "power_mode": self.power_mode or None,
            "power_w": sum(self.power_w.values()) if self.power_w else None,
        }


class Sensors:
    """Reads a device's state. Not for several threads.

    Args:
        shell: to the device.
        cpus: the CPUs whose clocks matter; all by default.
        root: what stands before the paths of the kernel's files.
    """

    def __init__(self, shell: Shell, cpus: tuple[int, ...] = (), root: str = "") -> None:
        self._shell = shell
        self._cpus = cpus
        self._script = state_script(root)

    def read(self) -> State:
        """Return the state now; takes some hundredths of a second beside the connection's delay.

        Raises:
            DeviceError: the connection broke.
        """
        done = self._shell.run(self._script, TIMEOUT_S)
        return parse_state(done.stdout.decode("utf-8", "replace"), self._cpus)


def state_script(root: str = "") -> str:
    """Return the shell commands that print all of it."""
    return f"root={shlex.quote(root)}\n" + _READ.replace("@POWER@", _POWER)


def power_script(root: str, period_s: float) -> str:
    """Return shell commands that print the power sensors again and again.

    Each time they stand between the lines ``@ SECONDS`` (of uptime) and ``end``.
    """
    return (
        f"exec 2>/dev/null; root={shlex.quote(root)}\n"
        'get() { value=; read -r value < "$1"; }\n'
        f"while read -r now _ < /proc/uptime && printf '@ %s\\n' \"$now\"; do\n{_POWER}\n"
        f"echo end; sleep {period_s:g} || sleep 1; done"
    )


def sections_of(text: str) -> dict[str, str]:
    """Split what a script printed, by its lines ``==name==``."""
    pieces = re.split(r"^==(\w+)==$", text, flags=re.M)
    return {name: body.strip() for name, body in zip(pieces[1::2], pieces[2::2], strict=True)}


def parse_state(text: str, cpus: tuple[int, ...] = ()) -> State:
    """Turn what the script printed into a :class:`State`, the clocks of ``cpus`` alone if some are given."""
    return state_of(sections_of(text), cpus)


def state_of(sections: Mapping[str, str], cpus: tuple[int, ...] = ()) -> State:
    """The same, from its sections."""
    mhz: dict[int, float] = {}
    limit_mhz: dict[int, float] = {}
    governors: set[str] = set()
    counters: dict[str, int] = {}
    for line in sections.get("clocks", "").splitlines():
        number, now, limit, governor, core, package = (line.split("|") + [""] * 6)[:6]
        if not number.isdigit() or (cpus and int(number) not in cpus):
            continue
        if now.isdigit():
            mhz[int(number)] = int(now) / 1e3
        if limit.isdigit():
            limit_mhz[int(number)] = int(limit) / 1e3
        governors |= {governor} - {""}
        for name, count in (("the core was too hot", core), ("the package was too hot", package)):
            if count.isdigit():
                # CPUs of one package count the same events.
                counters[name] = max(counters.get(name, 0), int(count))
    reasons, past = _raspberry_pi(sections.get("throttled", ""))
    status = re.search(r"Thermal Status:\s*(\d+)", sections.get("thermalservice", ""))
    if status and int(status[1]):
        reasons.append(f"Android's thermal status is {_THERMAL_STATUS[min(int(status[1]), 6)]}")
    readings = parse_power(sections.get("power", ""))
    mode = re.search(r"NV Power Mode:\s*(\S+)", sections.get("mode", ""))
    return State(
        mhz=dict(sorted(mhz.items())),
        limit_mhz=dict(sorted(limit_mhz.items())),
        governors=tuple(sorted(governors)),
        temperatures_c=parse_temperatures(sections.get("thermal", "")),
        throttled=(*reasons, *_cooling(sections.get("cooling", ""))),
        counters=counters | past,
        power_mode=mode[1] if mode else "",
        power_w={reading.name: reading.watts for reading in readings if reading.watts is not None},
        power_sensors=tuple(reading.name for reading in readings),
    )


def parse_temperatures(text: str) -> dict[str, float]:
    """Degrees Celsius by sensor, from lines ``NAME|VALUE``."""
    found: dict[str, float] = {}
    for name, value in re.findall(r"^(.+)\|(-?\d+)$", text, re.M):
        # Kernels give thousandths of a degree, a few drivers whole ones. Sensors that are off tell nonsense.
        degrees = int(value) / 1000 if abs(int(value)) > 1000 else float(value)
        if -40 < degrees < 150:
            unique = name
            while unique in found:
                unique += "'"
            found[unique] = degrees
    return found


@dataclass(frozen=True)
class PowerReading:
    """One power sensor: a counter of energy in joules that wraps at ``wraps_j``, or power in watts."""

    name: str
    joules: float | None = None
    wraps_j: float = 0.0
    watts: float | None = None


def parse_power(text: str) -> tuple[PowerReading, ...]:
    """The power sensors, from lines ``KIND|NAME|VALUE...``."""
    found = []
    for kind, name, first, second in re.findall(r"^(uj|mv_ma|mw)\|(.*?)\|(-?\d+)(?:\|(-?\d*))?$", text, re.M):
        if kind == "uj":
            found.append(PowerReading(name, joules=int(first) / 1e6, wraps_j=int(second or 0) / 1e6))
        else:
            milliwatts = int(first) * int(second or 0) / 1e3 if kind == "mv_ma" else float(first)
            found.append(PowerReading(name, watts=milliwatts / 1e3))
    total = [reading for reading in found if reading.name in _RAIL_OF_ALL]
    return tuple(total or found)


def _raspberry_pi(text: str) -> tuple[list[str], dict[str, int]]:
    """What slows the board down now, and how many of the four limits it has met since its start."""
    match = re.search(r"throttled=0x([0-9a-fA-F]+)", text)
    bits = int(match[1], 16) if match else 0
    names = {
        _UNDER_VOLTAGE: "its supply's voltage is too low",
        _CAPPED: "the firmware caps its clock",
        _THROTTLED: "the firmware throttles it",
        _SOFT_LIMIT: "it is above the soft temperature limit",
    }
    reasons = [name for bit, name in names.items() if bits & bit]
    return reasons, {"limits met since its start": (bits >> 16 & 15).bit_count()} if match else {}


def _cooling(text: str) -> list[str]:
    """Cooling devices that lower the CPU's clock."""
    return [
        f"{kind} is at {now} of {most}"
        for kind, now, most in re.findall(r"^(.+)\|(\d+)\|(\d*)$", text, re.M)
        if int(now) and re.search(r"cpufreq|processor|cpu-?freq|cpuidle-inject", kind, re.I)
    ]
