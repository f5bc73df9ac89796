"""``edgetune benchmark``."""

from __future__ import annotations

import json
import os


def test_json(run_cli, shared_bundle):
    code, out, _ = run_cli("benchmark", str(shared_bundle), "--json", "--rounds", "2", "--runs", "20")
    assert code == 0
    payload = json.loads(out)
    for side in ("edgetune", "onnxruntime"):
        times = payload[side]
        assert 0 < times["min_ms"] <= times["median_ms"] <= times["p90_ms"] <= times["p99_ms"]
    assert payload["runs"] == 40
    assert payload["threads"] >= 1
    assert payload["conditions"]["controlled"] == (not payload["conditions"]["slowed"])
    measured = bool(payload["conditions"]["power_sensors"])
    assert measured or payload["edgetune"]["energy_mj"] is None, "no sensor, no number"
    ratio = payload["onnxruntime"]["median_ms"] / payload["edgetune"]["median_ms"]
    assert abs(payload["speedup"] - ratio) < 1e-9


def test_table_and_the_bundle_alone(run_cli, stand_in, tmp_path):
    path = stand_in.write(tmp_path / "b", lean=True).path
    args = ("benchmark", str(path), "--against", "none", "--rounds", "1", "--runs", "5", "--cluster")
    code, out, _ = run_cli(*args, str(min(os.sched_getaffinity(0))))
    assert code == 0
    assert "1 threads, 1 rounds, 5 runs" in out
    assert "speedup" not in out


def test_unknown_side(run_cli, shared_bundle):
    code, _, err = run_cli("benchmark", str(shared_bundle), "--against", "onnxruntim")
    assert code == 2
    assert "did you mean onnxruntime?" in err
