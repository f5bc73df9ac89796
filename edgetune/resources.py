"""Finds the data folders that travel with edgetune: targets, shipped logs, runner sources, models."""

from __future__ import annotations

from pathlib import Path

from edgetune.errors import ToolchainError

KINDS = ("targets", "tuning_logs", "rpc", "models")

_PACKAGE = Path(__file__).resolve().parent


def data_path(kind: str) -> Path:
    """Return the folder of one kind of shipped data: ``targets/`` and so on.

    A wheel carries the folders inside the package (``edgetune/_data/KIND``, see
    pyproject.toml); a checkout has them beside it.

    Raises:
        ValueError: ``kind`` is not one of KINDS.
        ToolchainError: the folder is missing, so the installation is damaged.
    """
    if kind not in KINDS:
        raise ValueError(f"unknown kind of data {kind!r}, expected one of {', '.join(KINDS)}")
    installed = _PACKAGE / "_data" / kind
    if installed.is_dir():
        return installed
    checkout = _PACKAGE.parent
    if (checkout / "pyproject.toml").is_file() and (checkout / kind).is_dir():
        return checkout / kind
    raise ToolchainError(
        f"the data folder {kind} of edgetune is missing (looked for {installed}), so the installation is "
        "damaged; run 'pip install --force-reinstall --no-deps edgetune'"
    )
