"""``edgetune compare``."""

from __future__ import annotations

import json

import numpy as np


def test_json(run_cli, shared_bundle):
    code, out, err = run_cli("compare", str(shared_bundle), "--json")
    assert (code, err) == (0, "")
    payload = json.loads(out)
    assert payload["passed"] is True
    assert [output["name"] for output in payload["outputs"]] == ["y", "pooled"]
    assert all(output["max_abs_error"] < 1e-4 for output in payload["outputs"])
    assert all("max_rel_error" in output for output in payload["outputs"])


def test_difference_beyond_the_tolerance(run_cli, shared_bundle):
    code, out, err = run_cli("compare", str(shared_bundle), "--rtol", "0", "--atol", "0")
    assert code == 3
    assert "failed" in out
    assert "error: output 'y' differs in" in err
    assert "Traceback" not in err


def test_the_printed_tolerances_pass(run_cli, shared_bundle):
    _, out, _ = run_cli("compare", str(shared_bundle), "--rtol", "0", "--atol", "0")
    row = next(line.split() for line in out.splitlines() if line.split()[:1] == ["y"])
    tolerances = [row[row.index(name) + 1] for name in ("--atol", "--rtol")]
    assert run_cli("compare", str(shared_bundle), "--rtol", "0", "--atol", tolerances[0])[0] == 0
    assert run_cli("compare", str(shared_bundle), "--rtol", tolerances[1], "--atol", "0")[0] == 0


def test_given_inputs_and_model(run_cli, shared_bundle, stand_in, tmp_path):
    np.savez(tmp_path / "x.npz", **stand_in.prepared.reference_inputs)
    (tmp_path / "m.onnx").write_bytes(stand_in.prepared.onnx)
    code, out, _ = run_cli(
        "compare", str(shared_bundle), "-m", str(tmp_path / "m.onnx"), "-i", str(tmp_path / "x.npz")
    )
    assert code == 0
    assert "against ONNX Runtime 1." in out


def test_no_bundle(run_cli, tmp_path):
    code, out, err = run_cli("compare", str(tmp_path), "--json")
    assert code == 1
    assert json.loads(out)["error"]["kind"] == "BundleError"
    assert "is not a bundle" in err


def test_unknown_device(run_cli, shared_bundle):
    assert run_cli("compare", str(shared_bundle), "--device", "pi4")[0] == 4
