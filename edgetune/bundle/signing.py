"""Signatures of bundles: Ed25519 over ``manifest.json``, in the files of minisign.

The manifest has the SHA-256 of every other file, so that its signature covers the bundle. It lies beside it as
``manifest.json.minisig``, and ``minisign -V`` and ``minisign -S`` serve as well as this module. Formats: "Signature
format", "Public key format" and "Secret key format" of minisign's documentation, https://jedisct1.github.io/minisign/.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgetune.atomic import publish, staging, writing
from edgetune.bundle.manifest import MANIFEST
from edgetune.bundle.storage import Storage, open_storage, write_tar
from edgetune.errors import BundleError, OutputError, UsageError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SIGNATURE = f"{MANIFEST}.minisig"
_SIGNS, _SIGNS_HASH = b"Ed", b"ED"
_SECRET_BYTES = 2 + 2 + 2 + 32 + 8 + 8 + 8 + 64 + 32
_TRUSTED = "trusted comment: "


@dataclass(frozen=True)
class Signed:
    """A good signature: the key's identity in minisign's digits, and what the signer said."""

    key_id: str
    comment: str


def generate_key(secret: Path) -> tuple[Path, str]:
    """Write a new secret key, without a password, and its public one beside it, as ``NAME.pub``.

    Returns:
        The path and the text of the public key.

    Raises:
        OutputError: a file is there already, or cannot be written.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    seed, raw = key.private_bytes_raw(), key.public_key().public_bytes_raw()
    identity = secrets.token_bytes(8)
    checked = hashlib.blake2b(_SIGNS + identity + seed + raw, digest_size=32).digest()
    data = _SIGNS + b"\0\0B2" + bytes(48) + identity + seed + raw + checked
    public = secret.with_suffix(".pub")
    text = base64.b64encode(_SIGNS + identity + raw).decode()
    for path in (secret, public):
        if path.exists():
            raise OutputError(f"{path} exists, and a key is not overwritten; choose another name with --out")
    with writing(secret, "the key"):
        with open(os.open(secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(
                f"untrusted comment: secret key {_digits(identity)}\n{base64.b64encode(data).decode()}\n"
            )
        public.write_text(f"untrusted comment: public key {_digits(identity)}\n{text}\n")
    return public, text


def sign(bundle: Path, secret: Path, comment: str = "") -> Signed:
    """Sign a bundle, a directory or a ``.tar``, in place of an older signature.

    Raises:
        BundleError: there is no bundle.
        UsageError: it is no secret key, is protected by a password, or the comment has several lines.
        OutputError: the signature cannot be written.
    """
    if "\n" in comment or "\r" in comment:
        raise UsageError("the comment has several lines; give one")
    identity, key = _read_secret(secret)
    storage = open_storage(bundle)
    manifest = storage.files[MANIFEST].read()
    signature = key.sign(hashlib.blake2b(manifest).digest())
    seal = key.sign(signature + comment.encode())
    text = (
        f"untrusted comment: signature from edgetune {_digits(identity)}\n"
        f"{base64.b64encode(_SIGNS_HASH + identity + signature).decode()}\n"
        f"{_TRUSTED}{comment}\n{base64.b64encode(seal).decode()}\n"
    )
    _write(storage, text.encode())
    return Signed(_digits(identity), comment)


def verify(bundle: Path, key: str | Path) -> Signed:
    """Check the signature of a bundle's manifest; its files are compared by ``open_bundle``.

    Args:
        bundle: a directory or a ``.tar``.
        key: a public key, or the path of its file.

    Raises:
        BundleError: there is no bundle, no signature, or one of another key or other contents.
        UsageError: it is no public key.
    """
    identity, public = _read_public(key)
    storage = open_storage(bundle)
    found = storage.files.get(SIGNATURE)
    if found is None:
        raise BundleError(f"{bundle} is not signed; sign it with 'edgetune bundle sign', or leave out --key")
    lines = found.read().decode("utf-8", "replace").splitlines()
    try:
        data, seal = _decoded(lines[1]), _decoded(lines[3])
        whole = len(data) == 74 and data[:2] in (_SIGNS, _SIGNS_HASH) and lines[2].startswith(_TRUSTED)
    except (IndexError, binascii.Error, ValueError):
        whole = False
    if not whole:
        raise BundleError(f"{bundle}: {SIGNATURE} is damaged; copy the bundle again, or sign it again")
    if data[2:10] != identity:
        raise BundleError(
            f"{bundle} was signed with key {_digits(data[2:10])}, not with {_digits(identity)}; give the public "
            "key of its signer"
        )
    manifest = storage.files[MANIFEST].read()
    message = hashlib.blake2b(manifest).digest() if data[:2] == _SIGNS_HASH else manifest
    comment = lines[2].removeprefix(_TRUSTED)
    if not (_good(public, data[10:], message) and _good(public, seal, data[10:] + comment.encode())):
        raise BundleError(
            f"{bundle}: {MANIFEST} or {SIGNATURE} was changed after the bundle was signed; do not run it, "
            "get the bundle from its signer again"
        )
    return Signed(_digits(identity), comment)


def _good(public: Ed25519PublicKey, signature: bytes, message: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        public.verify(signature, message)
    except InvalidSignature:
        return False
    return True


def _decoded(line: str) -> bytes:
    """The bytes of a line in base64. Its last letter has bits that mean nothing: they are zero, or it is refused."""
    data = base64.b64decode(line, validate=True)
    if base64.b64encode(data).decode() != line:
        raise ValueError("not in its only form")
    return data


def _read_public(key: str | Path) -> tuple[bytes, Ed25519PublicKey]:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    text = str(key)
    try:
        if (path := Path(text).expanduser()).is_file():
            text = path.read_text().strip().splitlines()[-1]
        data = base64.b64decode(text, validate=True)
    except (OSError, ValueError, IndexError):
        data = b""
    if len(data) != 42 or data[:2] != _SIGNS:
        raise UsageError(
            f"{key} is no public key of minisign; give the file that 'edgetune bundle keygen' or 'minisign -G' has "
            "written, or the line of 56 characters in it"
        )
    return data[2:10], Ed25519PublicKey.from_public_bytes(data[10:])


def _read_secret(path: Path) -> tuple[bytes, Ed25519PrivateKey]:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    try:
        data = base64.b64decode(path.expanduser().read_text().strip().splitlines()[-1], validate=True)
    except (OSError, ValueError, IndexError):
        data = b""
    if len(data) != _SECRET_BYTES or data[:2] != _SIGNS or data[4:6] != b"B2":
        raise UsageError(f"{path} is no secret key of minisign; make one with 'edgetune bundle keygen'")
    if data[2:4] != b"\0\0":
        raise UsageError(
            f"{path} is protected by a password; sign the bundle's {MANIFEST} with 'minisign -S', or use a key "
            "that 'edgetune bundle keygen' has made"
        )
    identity, seed, checked = data[54:62], data[62:126], data[126:]
    # minisign leaves the checksum of a key without a password empty.
    right = hashlib.blake2b(_SIGNS + identity + seed, digest_size=32).digest()
    if checked not in (right, bytes(32)):
        raise UsageError(f"{path} is damaged: its checksum differs; get the key again")
    return identity, Ed25519PrivateKey.from_private_bytes(seed[:32])


def _digits(identity: bytes) -> str:
    return f"{int.from_bytes(identity, 'little'):016X}"


def _write(storage: Storage, signature: bytes) -> None:
    out = storage.path.resolve()
    with staging(out) as work, writing(out, "the signature of"):
        if not storage.archive:
            fresh = work / SIGNATURE
            fresh.write_bytes(signature)
            os.replace(fresh, out / SIGNATURE)
            return
        folder = work / "files"
        folder.mkdir()
        for name, extent in storage.files.items():
            with (folder / name).open("xb") as file:
                file.writelines(extent.chunks())
        (folder / SIGNATURE).write_bytes(signature)
        write_tar(folder, work / "bundle.tar")
        publish(work / "bundle.tar", out)
