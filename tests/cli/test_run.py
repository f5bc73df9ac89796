"""``edgetune run``."""

from __future__ import annotations

import json

import numpy as np


def test_random_inputs(run_cli, shared_bundle):
    code, out, err = run_cli("run", str(shared_bundle), "--json")
    assert (code, err) == (0, "")
    outputs = json.loads(out)["outputs"]
    assert [(item["name"], item["dtype"], item["shape"]) for item in outputs] == [
        ("y", "float32", [1, 8, 16, 16]),
        ("pooled", "float32", [1, 8, 1, 1]),
    ]
    assert outputs == json.loads(run_cli("run", str(shared_bundle), "--json")[1])["outputs"]
    assert outputs != json.loads(run_cli("run", str(shared_bundle), "--json", "--seed", "1")[1])["outputs"]


def test_given_inputs_and_written_outputs(run_cli, shared_bundle, stand_in, tmp_path):
    np.savez(tmp_path / "x.npz", **stand_in.prepared.reference_inputs)
    code, out, _ = run_cli(
        "run", str(shared_bundle), "--input", str(tmp_path / "x.npz"), "--output", str(tmp_path / "y.npz")
    )
    assert code == 0
    assert "1x8x16x16" in out
    with np.load(tmp_path / "y.npz") as outputs:
        for name, expected in stand_in.prepared.reference_outputs.items():
            np.testing.assert_allclose(outputs[name], expected, rtol=1e-5, atol=1e-5)


def test_output_that_cannot_be_written(run_cli, shared_bundle, tmp_path):
    code, _, err = run_cli("run", str(shared_bundle), "--output", str(tmp_path / "no" / "y.npz"))
    assert code == 1
    assert "cannot write the outputs" in err


def test_missing_inputs_file(run_cli, shared_bundle, tmp_path):
    code, _, err = run_cli("run", str(shared_bundle), "--input", str(tmp_path / "x.npz"))
    assert code == 2
    assert "is not a readable .npz file" in err
