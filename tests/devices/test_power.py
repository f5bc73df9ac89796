"""Power over time: from samples whose mean is known, and from sensors that are read while something runs."""

from __future__ import annotations

import threading
import time

import pytest

from edgetune.devices.local_link import LocalLink
from edgetune.devices.power import PowerMeter, Sample, mean_watts
from edgetune.devices.sensors import PowerReading
from tests.devices import trees


def power(at_s, **rails):
    return Sample(at_s, tuple(PowerReading(name, watts=watts) for name, watts in rails.items()))


def energy(at_s, joules, wraps_j=1000.0):
    return Sample(at_s, (PowerReading("package-0", joules=joules, wraps_j=wraps_j),))


def test_power_is_averaged_over_time_and_added_over_rails():
    samples = [power(0, a=1, b=2), power(1, a=3, b=2), power(3, a=3, b=2)]
    # Rail a: 2 W on average for one second, 3 W for two; b: 2 W.
    assert mean_watts(samples, 0, 3) == pytest.approx((2 * 1 + 3 * 2) / 3 + 2)


def test_counted_energy_may_wrap():
    samples = [energy(0, 990), energy(1, 995), energy(2, 0), energy(3, 5)]
    assert mean_watts(samples, 0, 3) == pytest.approx(5)
    assert mean_watts(samples, 0.5, 2.5) == pytest.approx(5)


def test_too_few_samples_tell_nothing():
    assert mean_watts([], 0, 1) is None
    assert mean_watts([power(0.5, a=1)], 0, 1) is None
    assert mean_watts([power(0.2, a=1), power(0.8, b=1)], 0, 1) is None, "no sensor in both"
    assert mean_watts([Sample(0.2, ()), Sample(0.8, ())], 0, 1) is None


def test_the_sensors_of_a_jetson_while_work_runs(tmp_path):
    """5.15 W at rest; the second rail's load is not counted twice, for the first one feeds it."""
    with PowerMeter(LocalLink(), str(trees.jetson_orin_nano(tmp_path))) as meter:
        assert meter.watts(lambda: time.sleep(0.3)) == pytest.approx(4.952 * 1.040)


def test_the_energy_counter_of_a_pc_while_work_runs(tmp_path):
    """A counter that rises by 20 W: any load on this machine spreads the steps, the rise over the time stays."""
    root = trees.x86_box(tmp_path, energy=0)
    counter = root / "sys/class/powercap/intel-rapl:0/energy_uj"
    done = threading.Event()

    def count() -> None:
        start_s = time.monotonic()
        while not done.wait(0.002):
            new = counter.with_suffix(".new")
            new.write_text(f"{int(20e6 * (time.monotonic() - start_s))}\n")
            new.rename(counter)

    counting = threading.Thread(target=count)
    counting.start()
    try:
        with PowerMeter(LocalLink(), str(root)) as meter:
            assert meter.watts(lambda: time.sleep(0.6)) == pytest.approx(20, rel=0.25)
    finally:
        done.set()
        counting.join()


def test_without_sensors_there_is_no_power(tmp_path):
    with PowerMeter(LocalLink(), str(tmp_path)) as meter:
        assert meter.watts(lambda: time.sleep(0.15)) is None
