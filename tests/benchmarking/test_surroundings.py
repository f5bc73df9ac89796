"""Around a benchmark: clocks, state and power of a device whose sensors are a directory tree."""

from __future__ import annotations

import dataclasses
import time

import pytest

from edgetune.benchmarking.surroundings import surroundings
from edgetune.devices.clocks import GOVERNOR
from edgetune.devices.local import local_device
from edgetune.devices.local_link import LocalLink
from tests.devices import trees


@pytest.fixture
def device(tmp_path):
    class Link(LocalLink):
        home = f'"{tmp_path}/home"'

    return dataclasses.replace(local_device(1), linker=Link, cpus=())


def test_a_jetson_with_fixed_clocks(device, tmp_path):
    root = trees.jetson_orin_nano(tmp_path / "jetson")
    with surroundings(device, fix_clocks=True, root=str(root)) as around:
        power_w = around.watts({"edgetune": lambda: time.sleep(0.2)})
    told = around.to_json()
    assert power_w == {"edgetune": pytest.approx(5.15008)}
    assert (told["clocks_fixed"], told["controlled"], told["power_sensors"]) == (True, True, ["VDD_IN"])
    assert told["before"]["governors"] == [GOVERNOR], "the state is that of the benchmark"
    assert {path.read_text() for path in root.rglob("scaling_governor")} == {"schedutil\n"}


def test_a_board_that_is_throttled_meanwhile(device, tmp_path):
    root = trees.raspberry_pi_5(tmp_path / "pi")
    with surroundings(device, root=str(root)) as around:
        trees.raspberry_pi_5(root, throttled="e0008", temp=85000)
        assert around.watts({"edgetune": lambda: None}) == {"edgetune": None}
    told = around.to_json()
    assert told["slowed"] == [
        "it is above the soft temperature limit",
        "limits met since its start 3 times",
    ]
    assert not told["controlled"]
    assert "slowed down meanwhile" in around.notes[0]
    assert (told["before"]["hottest_c"], told["after"]["hottest_c"]) == (48.75, 85.0)
