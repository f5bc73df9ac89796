"""Directory trees like those of real devices' kernels, for the reader of sensors.

Layouts after Linux ``Documentation/ABI/testing/sysfs-devices-system-cpu``, ``sysfs-class-thermal``,
``Documentation/hwmon/ina3221.rst``, ``Documentation/power/powercap/powercap.rst``, and the names that the Raspberry
Pi's, Jetson Linux's and Qualcomm's device trees give.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def write(root: Path, files: Mapping[str, object]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return root


def cpu(number: int, now: int, most: int, governor: str, limit: int | None = None) -> dict[str, object]:
    folder = f"sys/devices/system/cpu/cpu{number}/cpufreq"
    return {
        f"{folder}/scaling_cur_freq": now,
        f"{folder}/scaling_max_freq": limit or most,
        f"{folder}/cpuinfo_max_freq": most,
        f"{folder}/scaling_governor": governor,
        f"{folder}/scaling_available_governors": "conservative ondemand userspace powersave performance schedutil",
    }


def zone(number: int, kind: str, temp: int) -> dict[str, object]:
    folder = f"sys/class/thermal/thermal_zone{number}"
    return {f"{folder}/type": kind, f"{folder}/temp": temp}


def cooling(number: int, kind: str, now: int, most: int) -> dict[str, object]:
    folder = f"sys/class/thermal/cooling_device{number}"
    return {f"{folder}/type": kind, f"{folder}/cur_state": now, f"{folder}/max_state": most}


def raspberry_pi_5(root: Path, throttled: str = "0", temp: int = 48750, now: int = 2_400_000) -> Path:
    files: dict[str, object] = {}
    for number in range(4):
        files |= cpu(number, now, 2_400_000, "ondemand")
    files |= zone(0, "cpu-thermal", temp)
    files["sys/devices/platform/soc/soc:firmware/get_throttled"] = throttled
    hwmon = "sys/class/hwmon/hwmon2"
    files |= {f"{hwmon}/name": "pwmfan", f"{hwmon}/fan1_input": 2900}
    files |= cooling(0, "pwm-fan", 1, 4)
    return write(root, files)


def jetson_orin_nano(root: Path) -> Path:
    files: dict[str, object] = {}
    for number in range(6):
        files |= cpu(number, 1_344_000, 1_510_400, "schedutil")
    for number, (kind, temp) in enumerate(
        [("cpu-thermal", 51093), ("gpu-thermal", 49500), ("cv0-thermal", -256000), ("tj-thermal", 51093)]
    ):
        files |= zone(number, kind, temp)
    hwmon = "sys/class/hwmon/hwmon1"
    files[f"{hwmon}/name"] = "ina3221"
    rails = [("VDD_IN", 4952, 1040), ("VDD_CPU_GPU_CV", 4952, 208), ("VDD_SOC", 4944, 312)]
    for number, (label, millivolts, milliamperes) in enumerate(rails, 1):
        files[f"{hwmon}/in{number}_label"] = label
        files[f"{hwmon}/in{number}_input"] = millivolts
        files[f"{hwmon}/curr{number}_input"] = milliamperes
    return write(root, files)


def jetson_nano(root: Path) -> Path:
    """With Jetson Linux 32: the INA3221 as an IIO device, in milliwatts."""
    files: dict[str, object] = {}
    for number in range(4):
        files |= cpu(number, 1_479_000, 1_479_000, "schedutil")
    iio = "sys/bus/i2c/drivers/ina3221x/6-0040/iio:device0"
    for number, (rail, milliwatts) in enumerate(
        [("POM_5V_IN", 3220), ("POM_5V_GPU", 80), ("POM_5V_CPU", 880)]
    ):
        files[f"{iio}/rail_name_{number}"] = rail
        files[f"{iio}/in_power{number}_input"] = milliwatts
    return write(root, files)


def android_phone(root: Path, capped: bool = False) -> Path:
    """Four small, three big and one biggest core; the big ones' clock is lowered by a cooling device."""
    files: dict[str, object] = {}
    for number in range(8):
        most = 1_804_800 if number < 4 else 2_419_200 if number < 7 else 2_841_600
        limit = 1_766_400 if capped and number > 3 else most
        files |= cpu(number, limit, most, "walt", limit)
    files |= zone(0, "cpu-1-7-usr", 61800) | zone(1, "battery", 31000) | zone(2, "skin-msm-therm", 38)
    files |= cooling(0, "thermal-cpufreq-0", 0, 18) | cooling(1, "thermal-cpufreq-4", 7 if capped else 0, 16)
    files |= cooling(2, "panel0-backlight", 3, 255)
    return write(root, files)


def x86_box(root: Path, energy: int = 262_143_000_000) -> Path:
    files: dict[str, object] = {}
    for number in range(4):
        files |= cpu(number, 3_400_000, 3_400_000, "powersave")
        throttle = f"sys/devices/system/cpu/cpu{number}/thermal_throttle"
        files |= {f"{throttle}/core_throttle_count": number, f"{throttle}/package_throttle_count": 12}
    files |= zone(0, "x86_pkg_temp", 67000)
    rapl = "sys/class/powercap/intel-rapl:0"
    files |= {f"{rapl}/name": "package-0", f"{rapl}/energy_uj": energy}
    files |= {
        f"{rapl}/max_energy_range_uj": 262_143_328_850,
        f"{rapl}:0/name": "core",
        f"{rapl}:0/energy_uj": 1,
    }
    return write(root, files)
