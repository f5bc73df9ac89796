"""``edgetune bundle``: sign, verify and merge bundles."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgetune.cli import options
from edgetune.cli.command import command
from edgetune.cli.options import argument, option
from edgetune.cli.output import Output

if TYPE_CHECKING:
    from edgetune.bundle.manifest import Manifest
    from edgetune.bundle.storage import Storage

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)


@app.callback()
def bundle() -> None:
    """Sign, verify and merge bundles.

    Keys and signatures are minisign's: that program signs and verifies a bundle's manifest.json as well. The
    manifest has the SHA-256 of every other file.
    """


@command(app)
def keygen(
    out: Output,
    out_path: Annotated[
        Path,
        typer.Option("--out", "-o", metavar="FILE", help="The secret key; the public one is beside it."),
    ] = Path("edgetune.key"),
) -> None:
    """Make a pair of keys: FILE, which signs and stays with you, and FILE.pub, which verifies.

    The secret key has no password: only its owner may read the file.
    """
    from edgetune.bundle.signing import generate_key

    public, text = generate_key(out_path)
    payload = {"secret_key": out_path, "public_key": public, "key": text}
    out.result(payload, f"secret key: {out_path}\npublic key: {public}\n{text}")


@command(app)
def sign(
    out: Output,
    bundle: options.BundleArgument,
    key: Annotated[Path, option("--key -k", "FILE", "The secret key.")],
    comment: Annotated[str, option("--comment", "TEXT", "A line that is signed too.")] = "",
) -> None:
    """Sign a bundle, once its files have been compared with their SHA-256.

    The signature is manifest.json.minisig in the bundle.
    """
    from edgetune.bundle import signing
    from edgetune.bundle.reader import check_storage

    check_storage(bundle)
    signed = signing.sign(bundle, key, comment)
    payload = {"bundle": bundle, "key_id": signed.key_id, "comment": signed.comment}
    out.result(payload, f"{bundle} is signed with key {signed.key_id}")


@command(app)
def verify(
    out: Output,
    bundle: options.BundleArgument,
    key: Annotated[
        str | None,
        option("--key -k", "KEY", "The signer's public key, or its file.  [default: compare the files only]"),
    ] = None,
) -> None:
    """Check a bundle's signature, and every file against its SHA-256; nothing of it is loaded."""
    from edgetune.bundle import signing
    from edgetune.bundle.reader import check_storage

    signed = None if key is None else signing.verify(bundle, key)
    files = check_storage(bundle)
    payload = {
        "bundle": bundle,
        "files": files,
        "key_id": signed.key_id if signed else None,
        "comment": signed.comment if signed else None,
    }
    by = (
        f", signed with key {signed.key_id} {signed.comment}".rstrip()
        if signed
        else ", signature not checked"
    )
    out.result(payload, f"{bundle}: {len(files)} files unchanged{by}")


@command(app)
def merge(
    out: Output,
    bundles: Annotated[list[Path], argument("BUNDLE...", "Bundles of one model for several targets.")],
    out_path: Annotated[Path, option("--out -o", "PATH", "Where to write the bundle of all.")],
    archive: options.ArchiveOption = False,
) -> None:
    """Put bundles of one model for several targets into one, each equal file once.

    What loads it takes the code that uses most of the CPU's features, and falls back to code that uses less.
    """
    from edgetune.bundle import package
    from edgetune.bundle.reader import open_bundle

    def read(path: Path) -> tuple[Manifest, Storage]:
        opened = open_bundle(path)
        return opened.manifest, opened.storage

    merged = package.merge(bundles, out_path, read=read, archive=archive)
    payload = {
        "bundle": merged.path,
        "targets": list(merged.targets),
        "size_bytes": merged.size_bytes,
        "saved_bytes": merged.saved_bytes,
    }
    out.result(
        payload,
        f"{merged.path}: {', '.join(merged.targets)}; {merged.size_bytes / 1e6:.1f} MB, "
        f"{merged.saved_bytes / 1e6:.1f} MB shared",
    )
