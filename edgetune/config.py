"""Settings in layers: command line, ``EDGETUNE_*`` variables, ``edgetune.toml`` here, the user's config.

Each layer overrides the ones after it, setting by setting; :func:`load_settings` keeps for every
value the place it came from. Paths are relative to the working directory, wherever they are written.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from edgetune.errors import UsageError, did_you_mean

PREFIX = "EDGETUNE_"
FILE_NAME = "edgetune.toml"
COMMAND_LINE = "command line"
DEFAULT = "default"

_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?")


class Settings(BaseModel):
    """What can be set once instead of on every command line."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    target: str = Field("local", min_length=1, description="'local', a name from targets/ or a TOML's path")
    device: str = Field("local", min_length=1, description="name of the device to measure and run on")
    cluster: str | None = Field(None, min_length=1, description="CPUs of the device to run on, as big or 4-7")
    logs: str | None = Field(None, min_length=1, description="tuning logs: SQLite path or PostgreSQL URL")
    trials: int | None = Field(None, ge=0, description="budget of a tuning run in trials")
    time: float | None = Field(None, description="budget of a tuning run in seconds, or as 10m, 1h30m")
    threads: int | None = Field(None, ge=1, description="threads to compile and run for")
    out: Path | None = Field(None, description="directory of the bundle to write")
    models_cache: Path | None = Field(None, description="folder of the fetched public models")

    @field_validator("time", mode="before")
    @classmethod
    def _duration(cls, value: Any) -> Any:
        return None if value is None else parse_duration(value)


@dataclass(frozen=True)
class LayeredSettings:
    """The settings in force, and for each the place it came from (``sources``, by name)."""

    settings: Settings
    sources: Mapping[str, str]


def parse_duration(text: str | float) -> float:
    """Seconds, from ``90s``, ``10m``, ``1h30m`` or a plain number of seconds.

    Raises:
        UsageError: the text is no duration, or not above zero.
    """
    match = _DURATION.fullmatch(str(text).strip().replace(" ", "").lower())
    parts = match.groups() if match else (None, None, None)
    seconds = sum(float(part or 0) * unit for part, unit in zip(parts, (3600, 60, 1), strict=True))
    if not 0 < seconds < float("inf"):
        raise UsageError(f"{text!r} is not a duration; write for example 90s, 10m or 1h30m")
    return seconds


def user_config_path() -> Path:
    """Where the user's own settings file is, whether it exists or not."""
    return Path(platformdirs.user_config_dir("edgetune", appauthor=False)) / "config.toml"


def load_settings(
    overrides: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    directory: Path | None = None,
    user_config: Path | None = None,
) -> LayeredSettings:
    """The settings in force; ``overrides`` are the command line's, None among them means not given.

    The other arguments stand for the process's environment, the working directory and the user's
    config file.

    Raises:
        UsageError: a layer has an unknown name or a value of the wrong kind, or a file is no TOML.
    """
    environ = os.environ if environ is None else environ
    layers = [
        ({name: value for name, value in (overrides or {}).items() if value is not None}, COMMAND_LINE),
        _environment(environ),
        _file((directory or Path()) / FILE_NAME),
        _file(user_config or user_config_path()),
    ]
    values: dict[str, Any] = {}
    sources: dict[str, str] = dict.fromkeys(Settings.model_fields, DEFAULT)
    for layer, origin in reversed(layers):
        _validated(layer, origin)
        for name, value in layer.items():
            values[name] = value
            sources[name] = PREFIX + name.upper() if origin == PREFIX else origin
    return LayeredSettings(_validated(values, COMMAND_LINE), sources)


def _environment(environ: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    found = {
        key.removeprefix(PREFIX).lower(): value
        for key, value in environ.items()
        if key.startswith(PREFIX) and value
    }
    return found, PREFIX


def _file(path: Path) -> tuple[dict[str, Any], str]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8")), str(path)
    except FileNotFoundError:
        return {}, str(path)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}; mend that place or remove the file") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}; mend it or remove it") from error


def _validated(layer: Mapping[str, Any], origin: str) -> Settings:
    """The layer as settings, or a UsageError that names its first wrong entry."""
    for name in layer:
        if name not in Settings.model_fields:
            raise UsageError(
                f"unknown setting {_spelled(name, origin)} in {_place(origin)}; {_nearest(name, origin)}"
            )
    try:
        return Settings(**layer)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        raise UsageError(
            f"{_spelled(name, origin)} = {first['input']!r} in {_place(origin)} is wrong: "
            f"{first['msg'].lower()}; expected: {Settings.model_fields[name].description}"
        ) from error
    except UsageError as error:
        raise UsageError(f"time in {_place(origin)}: {error}") from error


def _spelled(name: str, origin: str) -> str:
    return PREFIX + name.upper() if origin == PREFIX else name


def _place(origin: str) -> str:
    return "the environment" if origin == PREFIX else origin


def _nearest(name: str, origin: str) -> str:
    return did_you_mean(_spelled(name, origin), [_spelled(known, origin) for known in Settings.model_fields])
