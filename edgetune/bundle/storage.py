"""The files of a bundle, in a directory or in a ``.tar``, read in the same way.

Tar members are stored as they are, at multiples of 512 bytes, so that weights can be mapped into
memory straight from the archive.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from edgetune.atomic import writing
from edgetune.bundle.manifest import FORMAT, MANIFEST
from edgetune.errors import BundleError, OutputError

_CHUNK_BYTES = 1 << 20
_HASHED_BYTES = 1 << 18


@dataclass(frozen=True)
class Extent:
    """Where the bytes of a bundle's file lie: ``size`` bytes of ``path`` from ``offset`` on."""

    path: Path
    offset: int
    size: int

    def chunks(self) -> Iterator[bytes]:
        """The bytes, a megabyte at a time; fewer than ``size`` where the file was cut short."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            left = self.size
            while left and (chunk := file.read(min(left, _CHUNK_BYTES))):
                left -= len(chunk)
                yield chunk

    def read(self) -> bytes:
        """All bytes."""
        return b"".join(self.chunks())

    def sha256(self) -> str:
        """The digest of the bytes, as hexadecimal digits."""
        digest = hashlib.sha256()
        # One piece of memory that stays in the CPU's cache, a tenth faster than a fresh one each time.
        memory = memoryview(bytearray(min(self.size, _HASHED_BYTES)))
        with self.path.open("rb", buffering=0) as file:
            file.seek(self.offset)
            left = self.size
            while left and (count := file.readinto(memory[:left])):
                digest.update(memory[:count])
                left -= count
        return digest.hexdigest()


@dataclass(frozen=True)
class Storage:
    """The files that are there, by name. ``archive`` says that they lie in one ``.tar``."""

    path: Path
    files: Mapping[str, Extent]
    archive: bool = False


def open_storage(path: Path) -> Storage:
    """List the files of the bundle at ``path``; nothing is read but the archive's headers.

    Raises:
        BundleError: there is nothing at ``path``, or it is no bundle.
    """
    with _reading(path):
        if path.is_dir():
            with os.scandir(path) as entries:
                files = {
                    entry.name: Extent(path / entry.name, 0, entry.stat().st_size)
                    for entry in entries
                    if entry.is_file()
                }
            storage = Storage(path, files)
        elif path.exists():
            storage = Storage(path, _tar_members(path), archive=True)
        else:
            raise BundleError(f"{path} does not exist; give the directory or .tar of a bundle")
    if MANIFEST not in storage.files:
        raise BundleError(
            f"{path} is not a bundle: it has no {MANIFEST}; give the directory or .tar that "
            "'edgetune tune' or 'edgetune compile' has written"
        )
    return storage


def _tar_members(path: Path) -> dict[str, Extent]:
    try:
        with tarfile.open(path, "r:") as tar:
            members = tar.getmembers()
    except tarfile.TarError as error:
        raise BundleError(
            f"{path} is not a bundle: neither a directory nor an undamaged .tar ({error}); "
            "copy or build it again"
        ) from error
    files = {}
    for member in members:
        # Anything but a plain file at the top is not of our making; no name may lead elsewhere.
        if member.isreg() and "/" not in member.name and not member.issparse():
            files[member.name] = Extent(path, member.offset_data, member.size)
    return files


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: OSError) -> BundleError:
    """What the system says, and what to look at."""
    permissions = isinstance(error, PermissionError)
    advice = "its permissions" if permissions else "the disk, and the limits of this process ('ulimit -a')"
    return BundleError(f"{path} cannot be read: {error.strerror or error}; check {advice}")


def write_tar(directory: Path, archive: Path) -> None:
    """Pack a bundle's directory; the same files always give the same bytes, the manifest comes first."""
    names = sorted((entry.name for entry in directory.iterdir()), key=lambda name: (name != MANIFEST, name))
    with archive.open("xb") as file, tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = (directory / name).stat().st_size
            info.mode = 0o644
            with (directory / name).open("rb") as source:
                tar.addfile(info, source)


def is_bundle(path: Path) -> bool:
    """Whether ``path`` holds a bundle, undamaged or not: what may be replaced by a newer one."""
    try:
        manifest = open_storage(path).files[MANIFEST].read()
    except (BundleError, OSError):
        return False
    return f'"{FORMAT}"'.encode() in manifest


def refuse_to_overwrite(out: Path) -> None:
    """Only a bundle, or an empty directory, may be replaced: never what a user keeps elsewhere.

    Raises:
        OutputError: ``out`` holds something else.
    """
    with writing(out):
        if not out.exists() or (out.is_dir() and not any(out.iterdir())):
            return
    if not is_bundle(out):
        raise OutputError(
            f"{out} exists and is not a bundle, so it is not overwritten; choose another place with --out, "
            "or delete it first"
        )
