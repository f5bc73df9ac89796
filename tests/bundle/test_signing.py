"""Signatures of bundles: made and checked here and by minisign, and what they refuse."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import edgetune
from edgetune.bundle.signing import SIGNATURE, generate_key, sign, verify
from edgetune.errors import BundleError, OutputError, UsageError


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    secret = tmp_path / "mine.key"
    public, _ = generate_key(secret)
    return secret, public


def minisign(*arguments: object) -> str:
    if shutil.which("minisign") is None:
        pytest.skip("needs minisign (package minisign)")
    done = subprocess.run(["minisign", *map(str, arguments)], capture_output=True, text=True, input="")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("archive", [False, True])
def test_a_signed_bundle_is_verified_and_loaded(stand_in, keys, tmp_path, archive):
    secret, public = keys
    bundle = stand_in.write(tmp_path / "bundle", archive=archive).path
    with pytest.raises(BundleError, match="is not signed"):
        edgetune.load(bundle, key=public)
    before = edgetune.compare(bundle)
    signed = sign(bundle, secret, "released")
    assert verify(bundle, public) == signed
    assert signed.comment == "released"
    text = public.read_text().splitlines()[1]
    assert verify(bundle, text) == signed
    assert edgetune.load(bundle, key=text).name == "conv"
    assert edgetune.compare(bundle) == before


def test_minisign_verifies_what_is_signed_here_and_the_reverse(bundle, keys, tmp_path):
    secret, public = keys
    sign(bundle, secret, "one line")
    assert "one line" in minisign("-Vm", bundle / "manifest.json", "-p", public)
    minisign("-Sm", bundle / "manifest.json", "-s", secret, "-t", "with a key of ours")
    assert verify(bundle, public).comment == "with a key of ours"
    theirs = tmp_path / "theirs"
    minisign("-GW", "-p", theirs.with_suffix(".pub"), "-s", theirs)
    minisign("-Sm", bundle / "manifest.json", "-s", theirs, "-t", "by minisign")
    assert verify(bundle, theirs.with_suffix(".pub")).comment == "by minisign"
    minisign("-Slm", bundle / "manifest.json", "-s", theirs, "-t", "unhashed")
    assert verify(bundle, theirs.with_suffix(".pub")).comment == "unhashed"
    assert sign(bundle, theirs).key_id == verify(bundle, theirs.with_suffix(".pub")).key_id


def test_every_changed_byte_of_manifest_and_signature_is_noticed(bundle, keys):
    secret, public = keys
    sign(bundle, secret, "one line")
    for name, step in ((SIGNATURE, 1), ("manifest.json", 97)):
        whole = (bundle / name).read_bytes()
        # The first line of a signature is a comment that nobody signs.
        start = whole.index(b"\n") if name == SIGNATURE else 0
        for position in range(start, len(whole) - 1, step):
            changed = bytearray(whole)
            changed[position] ^= 4
            (bundle / name).write_bytes(changed)
            with pytest.raises(BundleError):
                verify(bundle, public)
        (bundle / name).write_bytes(whole)
    verify(bundle, public)


def test_a_signature_has_one_form(bundle, keys):
    secret, public = keys
    sign(bundle, secret)
    whole = (bundle / SIGNATURE).read_text()
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    for line in (1, 3):
        lines = whole.splitlines(keepends=True)
        body = lines[line].rstrip("=\n")
        # The same bytes: only bits that base64's last letter has to spare are changed.
        lines[line] = body[:-1] + letters[letters.index(body[-1]) ^ 1] + lines[line][len(body) :]
        (bundle / SIGNATURE).write_text("".join(lines))
        with pytest.raises(BundleError, match="is damaged"):
            verify(bundle, public)


def test_keys_and_signatures_of_others(bundle, keys, tmp_path):
    secret, public = keys
    sign(bundle, secret)
    other, _ = generate_key(tmp_path / "other.key")
    with pytest.raises(BundleError, match="was signed with key"):
        verify(bundle, other)
    with pytest.raises(UsageError, match="no public key"):
        verify(bundle, secret)
    with pytest.raises(UsageError, match="no secret key"):
        sign(bundle, public)
    with pytest.raises(OutputError, match="not overwritten"):
        generate_key(secret)
    with pytest.raises(UsageError, match="several lines"):
        sign(bundle, secret, "two\nlines")
    assert secret.stat().st_mode & 0o77 == 0


def test_the_commands(bundle, tmp_path, run_cli):
    key = tmp_path / "k.key"
    assert run_cli("bundle", "keygen", "--out", str(key))[0] == 0
    assert run_cli("bundle", "sign", str(bundle), "--key", str(key), "--comment", "v1")[0] == 0
    code, out, _ = run_cli("bundle", "verify", str(bundle), "--key", str(key.with_suffix(".pub")), "--json")
    assert code == 0
    assert json.loads(out)["comment"] == "v1"
    (bundle / "model.so").write_bytes(b"")
    code, _, err = run_cli("bundle", "verify", str(bundle), "--key", str(key.with_suffix(".pub")))
    assert code == 1
    assert "model.so has 0 bytes" in err
