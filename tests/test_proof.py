"""Where bundles are verified when the devices of a run do not answer."""

import pytest

from edgetune.bundle.reader import open_bundle
from edgetune.devices.address import parse_address
from edgetune.devices.remote import remote_device
from edgetune.proof import Prover
from edgetune.watcher import Watcher


class Notes(Watcher):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


@pytest.mark.parametrize("here", [True, False])
def test_a_bundle_outlives_its_device(stand_in, tmp_path, here):
    notes = Notes()
    gone = remote_device("gone", parse_address("ssh://nobody@127.0.0.1:1"), 2)
    prover = Prover([gone], here, None, None, notes)
    assert prover.possible
    assert prover.note == ""
    written = stand_in.write(tmp_path / "bundle", check=prover.verify)
    assert "cannot be reached" in notes.notes[0]
    manifest = open_bundle(written.path).manifest
    if here:
        assert written.verification.passed
        assert manifest.verification.passed
        assert prover.note.startswith("verified on this machine, not on the device")
    else:
        assert written.verification is None
        assert manifest.verification is None
        assert prover.note.startswith("not verified on the device, which was lost")
    assert prover.benchmark(written.path, stand_in.prepared.onnx, 1) is None
