"""Reads and writes target files; docs/targets.md explains their fields."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from edgetune.atomic import replacing, writing
from edgetune.errors import TargetError, did_you_mean
from edgetune.resources import data_path
from edgetune.targets.target import DeviceFacts, Gpu, Target, Toolchain

LOCAL = "local"

_NEEDS_ESCAPE = re.compile(r'[\\"\x00-\x09\x0b-\x1f\x7f]')

_FIELDS = {
    "": [*Target.model_fields, "host"],
    "gpu": list(Gpu.model_fields),
    "toolchain": list(Toolchain.model_fields),
    "device": list(DeviceFacts.model_fields),
}


def load_target(name_or_path: str | Path) -> Target:
    """Return a target: ``local``, the name of a shipped one, or the path of a TOML file.

    A file of the user's is checked against LLVM at once, which imports TVM.

    Raises:
        TargetError: there is no such target, or its description is wrong.
    """
    text = str(name_or_path)
    if text == LOCAL:
        return detect_local()
    if text in _shipped():
        return _read(_shipped()[text])
    path = Path(text).expanduser()
    if path.suffix != ".toml" and not path.is_file():
        raise TargetError(
            f"unknown target {text!r}; {did_you_mean(text, [LOCAL, *sorted(_shipped())])} "
            "('edgetune targets list' describes them; the path of a TOML file works too)"
        )
    target = _read(path)
    target.check()
    return target


def list_targets() -> list[Target]:
    """Return the shipped targets, sorted by name.

    Raises:
        TargetError: a file among them is wrong.
    """
    return [_read(path) for _, path in sorted(_shipped().items())]


def detect_local(threads: int | None = None) -> Target:
    """Return the target of this machine's CPU, for the cores this process may use. Imports TVM.

    Args:
        threads: number of threads instead of the detected one.
    """
    from edgetune.targets.detect import detect

    return detect(threads)


def to_toml(target: Target) -> str:
    """Return a target as the text of a target file."""
    fields = target.model_dump(mode="json", exclude_none=True, exclude={"name"})
    tables = {key: value for key, value in fields.items() if isinstance(value, dict)}
    lines = [f"{key} = {_toml_value(value)}" for key, value in fields.items() if key not in tables]
    for table, content in tables.items():
        if content:
            lines += ["", f"[{table}]", *(f"{key} = {_toml_value(value)}" for key, value in content.items())]
    return "\n".join(lines) + "\n"


def write_target(target: Target, path: Path) -> None:
    """Write a target file; it will be loaded under the name of the file's stem.

    Raises:
        OutputError: the file cannot be written.
    """
    with writing(path, "the target file"), replacing(path) as file:
        file.write(to_toml(target).encode())


def _toml_value(value: object) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    if isinstance(value, str) and "\n" in value and not _NEEDS_ESCAPE.search(value):
        return f'"""\n{value}"""'
    # JSON's strings and integers are TOML's, as long as no character is split into surrogates.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _shipped() -> dict[str, Path]:
    return {path.stem: path for path in data_path("targets").glob("*.toml")}


def _read(path: Path) -> Target:
    fields = _with_host({"name": path.stem} | _parse(path), path)
    try:
        return Target.model_validate(fields)
    except ValidationError as error:
        raise TargetError(
            f"{path} is no valid target: {_explain(error)}; docs/targets.md explains the fields"
        ) from error


def _parse(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TargetError(f"cannot read the target file {path}: {error.strerror}; check the path") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TargetError(f"{path} is not valid TOML: {error}; correct it there") from error


def _with_host(fields: dict[str, Any], path: Path) -> dict[str, Any]:
    """Replace ``host = "NAME"`` of a GPU's file with the fields of that CPU's target."""
    if "host" not in fields:
        return fields
    host = fields["host"]
    cpus = [name for name, shipped in _shipped().items() if "host" not in _parse(shipped)]
    if host not in cpus:
        raise TargetError(
            f"{path} is no valid target: field 'host' must name a shipped CPU target, not {host!r}; "
            f"{did_you_mean(str(host), sorted(cpus))}"
        )
    cpu = _read(_shipped()[host]).model_dump(
        exclude={"name", "description", "kind", "gpu", "toolchain", "device", "notes", "sources"}
    )
    return cpu | {key: value for key, value in fields.items() if key != "host"}


def _explain(error: ValidationError) -> str:
    """Turn pydantic's report into one sentence that names each field."""
    problems = []
    for item in error.errors():
        field = ".".join(str(part) for part in item["loc"])
        if item["type"] == "extra_forbidden":
            known = _FIELDS.get(field.split(".")[0], _FIELDS[""])
            problems.append(f"unknown field '{field}', {did_you_mean(field.rpartition('.')[2], known)}")
        elif item["type"] == "missing":
            problems.append(f"field '{field}' is missing")
        else:
            message = item["msg"].removeprefix("Value error, ")
            problems.append(f"field '{field}': {message}, not {item['input']!r}" if field else message)
    return "; ".join(problems)
