"""Settings: which layer wins, where a value came from, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgetune.config import COMMAND_LINE, DEFAULT, load_settings, parse_duration
from edgetune.errors import UsageError


@pytest.fixture
def layers(tmp_path: Path) -> Path:
    (tmp_path / "edgetune.toml").write_text('target = "zen4"\ntrials = 7\ntime = "90s"\n')
    (tmp_path / "user.toml").write_text('target = "alderlake"\ntrials = 5\nlogs = "team.db"\nthreads = 3\n')
    return tmp_path


def load(directory: Path, environ: dict[str, str] | None = None, **overrides: object):
    return load_settings(
        overrides, environ=environ or {}, directory=directory, user_config=directory / "user.toml"
    )


def test_each_layer_overrides_the_next(layers: Path) -> None:
    loaded = load(layers, {"EDGETUNE_TRIALS": "9", "EDGETUNE_TARGET": "zen5"}, target="local", device=None)
    assert loaded.settings.target == "local"
    assert loaded.settings.trials == 9
    assert loaded.settings.time == 90.0
    assert loaded.settings.logs == "team.db"
    assert loaded.settings.device == "local"
    assert dict(loaded.sources) == {
        "target": COMMAND_LINE,
        "trials": "EDGETUNE_TRIALS",
        "time": str(layers / "edgetune.toml"),
        "logs": str(layers / "user.toml"),
        "threads": str(layers / "user.toml"),
        "device": DEFAULT,
        "out": DEFAULT,
        "models_cache": DEFAULT,
        "cluster": DEFAULT,
    }


def test_defaults_without_any_layer(tmp_path: Path) -> None:
    loaded = load(tmp_path)
    assert loaded.settings.target == loaded.settings.device == "local"
    assert set(loaded.sources.values()) == {DEFAULT}


def test_an_empty_variable_is_not_set(tmp_path: Path) -> None:
    assert load(tmp_path, {"EDGETUNE_TARGET": ""}).settings.target == "local"


@pytest.mark.parametrize(
    "environ, parts",
    [
        ({"EDGETUNE_TRAILS": "3"}, ["EDGETUNE_TRAILS", "EDGETUNE_TRIALS"]),
        ({"EDGETUNE_TRIALS": "many"}, ["EDGETUNE_TRIALS", "many", "integer"]),
        ({"EDGETUNE_THREADS": "0"}, ["EDGETUNE_THREADS", "greater than or equal to 1"]),
        ({"EDGETUNE_TIME": "soon"}, ["soon", "10m"]),
    ],
)
def test_wrong_variables(tmp_path: Path, environ: dict[str, str], parts: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        load(tmp_path, environ)
    assert all(part in str(caught.value) for part in parts)


@pytest.mark.parametrize(
    "text, parts",
    [
        ("trails = 3", ["trails", "trials", "edgetune.toml"]),
        ("trials = [1]", ["trials", "edgetune.toml"]),
        ("trials = \ntime = 3", ["edgetune.toml", "not valid TOML", "line 1"]),
        ("[tune]\ntrials = 3", ["tune", "known: target"]),
    ],
)
def test_wrong_files(tmp_path: Path, text: str, parts: list[str]) -> None:
    (tmp_path / "edgetune.toml").write_text(text)
    with pytest.raises(UsageError) as caught:
        load(tmp_path)
    assert all(part in str(caught.value) for part in parts)


def test_a_hidden_layer_is_checked_too(layers: Path) -> None:
    (layers / "user.toml").write_text("trials = -1")
    with pytest.raises(UsageError, match=r"user\.toml"):
        load(layers, trials=3)


@pytest.mark.parametrize(
    "text, seconds",
    [
        ("90s", 90),
        ("10m", 600),
        ("1h", 3600),
        ("1h30m", 5400),
        ("1h 30m 5s", 5405),
        ("45", 45),
        ("0.5m", 30),
        (7, 7),
    ],
)
def test_durations(text: str | float, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-5", "10x", "m", "1m1h", "nan", "inf"])
def test_no_durations(text: str) -> None:
    with pytest.raises(UsageError, match="10m"):
        parse_duration(text)
