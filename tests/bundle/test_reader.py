"""Opening bundles: every kind of damage or misfit is one plain sentence."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from pathlib import Path

import pytest

from edgetune.bundle.manifest import Manifest, _digest, parse_manifest
from edgetune.bundle.reader import check_loadable, open_bundle
from edgetune.cpu import checkable_features, machine_features
from edgetune.errors import BundleError


def rewrite(bundle: Path, change) -> None:
    """Change the manifest and make its digest fit again, as another edgetune would have written it."""
    path = bundle / "manifest.json"
    content = json.loads(path.read_text())
    content.pop("digest")
    change(content)
    path.write_text(json.dumps({**content, "digest": _digest(content)}))


def refused(path: Path) -> str:
    with pytest.raises(BundleError) as caught:
        check_loadable(open_bundle(path))
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


def test_manifest_round_trip(shared_bundle):
    data = (shared_bundle / "manifest.json").read_bytes()
    manifest = parse_manifest(data, "b")
    assert isinstance(manifest, Manifest)
    assert manifest.to_json() == data


def test_nothing_there(tmp_path):
    assert "does not exist" in refused(tmp_path / "nothing")


def test_another_directory(tmp_path):
    assert "is not a bundle: it has no manifest.json" in refused(tmp_path)


@pytest.mark.parametrize("content", [b"", b"hello", b"\x7fELF" + bytes(5000)])
def test_another_file(tmp_path, content):
    (tmp_path / "b.tar").write_bytes(content)
    assert "is not a bundle" in refused(tmp_path / "b.tar")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": "other"}', "\x00\x01"])
def test_manifest_of_something_else(bundle, text):
    (bundle / "manifest.json").write_text(text)
    assert "manifest.json" in refused(bundle)


def test_every_flipped_byte_of_the_manifest_is_noticed(bundle):
    path = bundle / "manifest.json"
    data = path.read_bytes()
    unnoticed = []
    for index in range(0, len(data), 7):
        path.write_bytes(data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :])
        try:
            open_bundle(bundle, check_files=False)
        except BundleError:
            continue
        unnoticed.append((index, data[index : index + 1]))
    # White space between values may change without changing what is said.
    assert {character for _, character in unnoticed} <= {b" ", b"\n"}


def test_newer_schema(bundle):
    rewrite(bundle, lambda content: content.update(schema_version=4))
    assert "schema version 4, this edgetune reads up to 3; upgrade edgetune" in refused(bundle)


@pytest.mark.parametrize("name", ["model.so", "weights.bin"])
def test_missing_file(bundle, name):
    (bundle / name).unlink()
    assert f"{name} is missing" in refused(bundle)


@pytest.mark.parametrize("name", ["model.onnx", "reference.npz"])
def test_optional_files_may_be_deleted(bundle, name):
    (bundle / name).unlink()
    check_loadable(open_bundle(bundle))


@pytest.mark.parametrize("name", ["model.so", "weights.bin", "model.onnx", "reference.npz"])
def test_changed_file(bundle, name):
    data = bytearray((bundle / name).read_bytes())
    data[len(data) // 2] ^= 1
    (bundle / name).write_bytes(data)
    assert f"{name} was changed or damaged" in refused(bundle)


@pytest.mark.parametrize("name", ["model.so", "weights.bin", "model.onnx", "reference.npz"])
def test_truncated_file(bundle, name):
    data = (bundle / name).read_bytes()
    (bundle / name).write_bytes(data[: len(data) // 2])
    assert f"{name} has {len(data) // 2} bytes in place of {len(data)}" in refused(bundle)


def test_truncated_archive_at_every_block(stand_in, tmp_path):
    path = stand_in.write(tmp_path / "b.tar", archive=True).path
    data = path.read_bytes()
    end_of_last_file = max(extent.offset + extent.size for extent in open_bundle(path).storage.files.values())
    for size in range(0, end_of_last_file, 512):
        path.write_bytes(data[:size])
        refused(path)


def test_archive_is_read_like_a_directory(stand_in, bundle, tmp_path):
    archive = open_bundle(stand_in.write(tmp_path / "b.tar", archive=True).path)
    directory = open_bundle(bundle)
    assert archive.model() == directory.model()
    assert archive.manifest.files == directory.manifest.files


def test_archive_made_with_tar(bundle, tmp_path):
    """What people pack themselves works too; members that lead elsewhere are ignored."""
    with tarfile.open(tmp_path / "b.tar", "w") as tar:
        for path in bundle.iterdir():
            tar.add(path, path.name)
        evil = tarfile.TarInfo("../../evil")
        evil.size = 4
        tar.addfile(evil, io.BytesIO(b"evil"))
        link = tarfile.TarInfo("weights.link")
        link.type = tarfile.SYMTYPE
        link.linkname = "/etc/passwd"
        tar.addfile(link)
    opened = open_bundle(tmp_path / "b.tar")
    assert "../../evil" not in opened.storage.files
    assert "weights.link" not in opened.storage.files


def test_file_names_that_lead_elsewhere_are_refused(bundle):
    rewrite(bundle, lambda content: content["files"].update({"../x": content["files"]["model.so"]}))
    assert "is not the name of a file in a bundle" in refused(bundle)


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.pop("inputs"),
        lambda content: content["inputs"][0].update(dtype="object"),
        lambda content: content["inputs"][0].update(shape=[-1]),
        lambda content: content["weights"][0].update(offset=1 << 40),
        lambda content: content["weights"][0].update(offset=1),
        lambda content: content["weights"][0].update(shape=[1 << 20]),
        lambda content: content.update(threads=0),
        lambda content: content["files"].pop("model.so"),
    ],
)
def test_senseless_manifest(bundle, change):
    rewrite(bundle, change)
    assert "manifest.json is not valid" in refused(bundle)


def test_another_architecture(bundle):
    rewrite(bundle, lambda content: content["target"].update(mtriple="aarch64-linux-gnu", name="rpi4"))
    message = refused(bundle)
    assert "was made for rpi4 (aarch64), this machine is" in message
    assert "--target local" in message


def test_missing_cpu_features(bundle):
    lacking = sorted(checkable_features() - machine_features())
    if not lacking:
        pytest.skip("this machine has every feature of its architecture")
    rewrite(bundle, lambda content: content["target"]["cpu_features"].extend(lacking))
    message = refused(bundle)
    assert f"uses CPU features that this machine lacks: {', '.join(lacking)};" in message


def test_another_kind_of_device(bundle):
    rewrite(bundle, lambda content: content["target"].update(kind="cuda"))
    assert "was made for a cuda device" in refused(bundle)


@pytest.mark.parametrize("name, package", [("tvm", "apache-tvm"), ("tvm-ffi", "apache-tvm-ffi")])
def test_other_versions(bundle, name, package):
    rewrite(bundle, lambda content: content["versions"].update({name: "0.99"}))
    message = refused(bundle)
    assert f"was built with {package} 0.99" in message
    assert f"pip install {package}==0.99" in message


def test_damaged_reference(bundle):
    data = b"no zip file"

    def change(content):
        import hashlib

        entry = content["files"]["reference.npz"]
        entry.update(size=len(data), sha256=hashlib.sha256(data).hexdigest())

    rewrite(bundle, change)
    (bundle / "reference.npz").write_bytes(data)
    with pytest.raises(BundleError, match=r"reference\.npz was changed or damaged"):
        open_bundle(bundle).reference()


def test_a_copy_elsewhere_is_the_same_bundle(bundle, tmp_path):
    shutil.copytree(bundle, tmp_path / "copy")
    check_loadable(open_bundle(tmp_path / "copy"))
