"""The user's devices: a small file in the user's configuration directory."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import platformdirs
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from edgetune.atomic import replacing
from edgetune.devices.address import Address
from edgetune.devices.transport import PYTHON
from edgetune.errors import DeviceError, did_you_mean

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._+-]*$"
"""What a device may be called: also what a target may, since its target is called like it."""

Name = Annotated[str, Field(pattern=NAME_PATTERN)]


class Entry(BaseModel):
    """One device.

    Attributes:
        address: how it is reached.
        description: what it was when it was added, for people.
        arch: its architecture then, one of ``cpu.ARCHITECTURES``.
        python: its Python, for what runs in one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    address: Address
    description: str = ""
    arch: str = ""
    python: str = PYTHON


class Registry(BaseModel):
    """The file's content."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: int = 1
    devices: dict[Name, Entry] = {}


def registry_path() -> Path:
    """Return where the file is, whether it exists or not."""
    return Path(platformdirs.user_config_dir("edgetune", appauthor=False)) / "devices.json"


def load_registry(path: Path | None = None) -> Registry:
    """Return the registered devices.

    Raises:
        DeviceError: the file cannot be read, or is none of edgetune's.
    """
    path = path or registry_path()
    try:
        return Registry.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return Registry()
    except OSError as error:
        raise DeviceError(f"The list of devices {path} cannot be read: {error.strerror}; mend it.") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the file"
        raise DeviceError(
            f"The list of devices {path} is damaged at {place}: {first['msg']}; mend it, or remove it and add "
            "the devices again."
        ) from error


def find(name: str, path: Path | None = None) -> Entry:
    """Return a device.

    Raises:
        DeviceError: there is none of that name; the message says which there are.
    """
    devices = load_registry(path).devices
    if "," in name:
        raise DeviceError(
            f"'{name}' names several devices, which only `edgetune tune` uses at once; name one."
        )
    if name not in devices:
        raise DeviceError(
            f"There is no device '{name}'; {did_you_mean(name, ['local', *devices])}. Add one with "
            "`edgetune devices add NAME ssh://user@host`."
        )
    return devices[name]


def store(name: str, entry: Entry, path: Path | None = None) -> None:
    """Add a device, or replace the one of that name.

    Raises:
        DeviceError: the file cannot be written.
    """
    with _changing(path or registry_path()) as devices:
        devices[name] = entry


def forget(name: str, path: Path | None = None) -> None:
    """Remove a device from the list; nothing is done to the device itself.

    Raises:
        DeviceError: there is none of that name, or the file cannot be written.
    """
    find(name, path)
    with _changing(path or registry_path()) as devices:
        devices.pop(name, None)


@contextlib.contextmanager
def _changing(path: Path) -> Iterator[dict[str, Entry]]:
    """Give the devices to change, and write them back in one step; other processes wait meanwhile."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path.with_suffix(".lock"), "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            registry = load_registry(path)
            devices = dict(registry.devices)
            yield devices
            text = registry.model_copy(update={"devices": devices}).model_dump_json(
                indent=2, exclude_defaults=True
            )
            with replacing(path, mode=0o600) as file:
                file.write(text.encode() + b"\n")
    except OSError as error:
        raise DeviceError(
            f"The list of devices {path} cannot be written: {error.strerror}; make the folder writable."
        ) from error
