"""The reader of sensors on trees made like real devices', over real shells."""

from __future__ import annotations

import pytest

from edgetune.devices.local_link import LocalLink
from edgetune.devices.sensors import Sensors, State, parse_state
from tests.devices import trees


def read(root, cpus=()):
    return Sensors(LocalLink(), cpus, str(root)).read()


def test_a_raspberry_pi(tmp_path):
    state = read(trees.raspberry_pi_5(tmp_path, throttled="50005", temp=84200, now=1_500_000))
    assert state.mhz == dict.fromkeys(range(4), 1500.0)
    assert state.governors == ("ondemand",)
    assert state.temperatures_c == {"cpu-thermal": 84.2}
    # Bits 0 and 2: https://www.raspberrypi.com/documentation/computers/os.html#get_throttled
    assert state.throttled == ("its supply's voltage is too low", "the firmware throttles it")
    assert state.counters == {"limits met since its start": 2}
    calm = read(trees.raspberry_pi_5(tmp_path, throttled="0"))
    assert calm.throttled == ()
    assert state.slowed_since(calm) == (*state.throttled, "limits met since its start 2 times")
    assert calm.slowed_since(calm) == ()


def test_jetson_boards(tmp_path):
    orin = read(trees.jetson_orin_nano(tmp_path / "orin"))
    assert orin.power_w == {"VDD_IN": pytest.approx(4.952 * 1.040)}, "the rail that feeds all others"
    assert "cv0-thermal" not in orin.temperatures_c, "a sensor that is off"
    assert orin.hottest_c == 51.093
    nano = read(trees.jetson_nano(tmp_path / "nano"))
    assert nano.power_w == {"POM_5V_IN": 3.22}


def test_an_android_phone(tmp_path):
    state = read(trees.android_phone(tmp_path, capped=True), cpus=(7,))
    assert (state.mhz, state.limit_mhz) == ({7: 1766.4}, {7: 1766.4})
    assert state.throttled == ("thermal-cpufreq-4 is at 7 of 16",), "neither a screen nor what is at rest"
    assert state.temperatures_c == {"cpu-1-7-usr": 61.8, "battery": 31.0, "skin-msm-therm": 38.0}


def test_a_pc(tmp_path):
    state = read(trees.x86_box(tmp_path))
    assert state.counters == {"the core was too hot": 3, "the package was too hot": 12}
    assert state.power_w == {}, "RAPL counts energy; power is its change"


def test_what_only_commands_tell():
    """As ``dumpsys thermalservice`` and ``nvpmodel -q`` print it."""
    state = parse_state(
        "==thermalservice==\nThermal Status: 3\n==mode==\nNV Power Mode: MAXN_SUPER\n2\n"
        "==throttled==\nthrottled=0x80008\n==end==\n"
    )
    assert state.throttled == (
        "it is above the soft temperature limit",
        "Android's thermal status is severe",
    )
    assert state.power_mode == "MAXN_SUPER"


def test_a_device_that_tells_nothing(tmp_path):
    assert read(tmp_path) == State()
