"""Inputs by name: from files, recorded, random; nothing is converted silently."""

from __future__ import annotations

import numpy as np
import pytest

from edgetune.bundle.arrays import read_npz, write_npz
from edgetune.bundle.inputs import choose_inputs, random_inputs
from edgetune.bundle.reader import open_bundle
from edgetune.errors import UsageError
from edgetune.records import TensorSpec


def test_npz_holds_names_that_savez_cannot(tmp_path):
    arrays = {
        "file": np.arange(3),
        "a/b:0": np.ones((2, 0)),
        "allow_pickle": np.array(True),
        "ü": np.zeros(()),
    }
    write_npz(tmp_path / "a.npz", arrays)
    with np.load(tmp_path / "a.npz") as file:
        assert set(file.files) == set(arrays)
    for name, array in read_npz(tmp_path / "a.npz").items():
        assert array.dtype == arrays[name].dtype
        np.testing.assert_array_equal(array, arrays[name])


def test_recorded_inputs_are_taken(stand_in, shared_bundle):
    inputs = choose_inputs(open_bundle(shared_bundle), None)
    np.testing.assert_array_equal(inputs["x"], stand_in.prepared.reference_inputs["x"])


def test_given_inputs_are_taken(shared_bundle, tmp_path):
    given = {"scale": np.ones(1, np.float32), "x": np.ones((1, 3, 16, 16), np.float32)}
    np.savez(tmp_path / "x.npz", **given)
    inputs = choose_inputs(open_bundle(shared_bundle), tmp_path / "x.npz")
    assert list(inputs) == ["x", "scale"]
    np.testing.assert_array_equal(inputs["x"], given["x"])


def test_random_inputs_repeat():
    specs = [TensorSpec("a", "float32", (4, 5)), TensorSpec("b", "int64", (9,)), TensorSpec("c", "bool", ())]
    first, second = random_inputs(specs, 3), random_inputs(specs, 3)
    for spec in specs:
        assert first[spec.name].dtype == spec.dtype
        assert first[spec.name].shape == spec.shape
        np.testing.assert_array_equal(first[spec.name], second[spec.name])
    assert set(np.unique(first["b"])) <= {0, 1}
    assert not np.array_equal(first["a"], random_inputs(specs, 4)["a"])


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda inputs: inputs.pop("x"), r"input 'x' of conv is missing; give float32\[1, 3, 16, 16\]"),
        (lambda inputs: inputs.update(scales=inputs["scale"]), "has no input 'scales'; did you mean scale"),
        (lambda inputs: inputs.update(x=inputs["x"].astype("float64")), "is float64.*convert it with astype"),
        (lambda inputs: inputs.update(x=inputs["x"][0]), r"is float32\[3, 16, 16\], it takes"),
    ],
)
def test_wrong_inputs(shared_bundle, change, message):
    opened = open_bundle(shared_bundle)
    inputs = random_inputs([item.spec() for item in opened.manifest.inputs], 0)
    change(inputs)
    with pytest.raises(UsageError, match=message):
        choose_inputs(opened, inputs)


def test_file_that_is_no_npz(shared_bundle, tmp_path):
    opened = open_bundle(shared_bundle)
    np.save(tmp_path / "single.npy", np.ones(3))
    (tmp_path / "text.npz").write_text("hello")
    (tmp_path / "empty.npz").write_text("")
    np.savez(tmp_path / "objects.npz", x=np.array([{}], dtype=object))
    for name in ("single.npy", "text.npz", "empty.npz", "objects.npz", "missing.npz"):
        with pytest.raises(UsageError, match=r"is not a readable \.npz file"):
            choose_inputs(opened, tmp_path / name)


def test_a_single_array_is_named_as_such(tmp_path):
    np.save(tmp_path / "single.npy", np.zeros(3))
    with pytest.raises(UsageError, match="single array without a name"):
        read_npz(tmp_path / "single.npy")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_damaged_npz_files_are_refused_or_read(tmp_path, save):
    """Whatever zipfile, zlib and NumPy raise is one message."""
    path = tmp_path / "x.npz"
    save(path, x=np.arange(50, dtype=np.float32))
    whole = path.read_bytes()
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 0xFF
        path.write_bytes(damaged)
        try:
            read_npz(path)
        except UsageError as error:
            assert "is not a readable .npz file" in str(error)  # noqa: PT017
