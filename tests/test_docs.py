"""Every command and option is documented, and the documents say what is true."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from edgetune.cli import COMMANDS
from edgetune.cli.main import app
from edgetune.cli.reference import reference
from edgetune.config import Settings

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = sorted([README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")])


def commands() -> Iterator[tuple[str, Any]]:
    """Every command and subcommand by its words, as ``logs export``."""
    root = typer.main.get_command(app)
    pending = [(name, root.get_command(None, name)) for name in COMMANDS]
    while pending:
        name, command = pending.pop(0)
        yield name, command
        pending += [(f"{name} {child}", value) for child, value in getattr(command, "commands", {}).items()]


ALL_COMMANDS = dict(commands())


@pytest.mark.parametrize("name", ALL_COMMANDS)
def test_every_command_and_option_has_help(name: str) -> None:
    command = ALL_COMMANDS[name]
    assert command.help, name
    for param in command.params:
        assert getattr(param, "help", None), f"{name}: {param.opts}"


WITHOUT_JSON = {"runner": "all it prints is a JSON object, from the script that runs on devices"}


@pytest.mark.parametrize("name", sorted(ALL_COMMANDS.keys() - WITHOUT_JSON.keys()))
def test_results_are_to_be_had_as_json(name: str) -> None:
    command = ALL_COMMANDS[name]
    if getattr(command, "commands", None):
        return
    options = {option for param in command.params for option in param.opts}
    assert {"--json", "-v", "--quiet"} <= options, name


def test_the_commands_page_is_what_the_commands_say() -> None:
    assert (ROOT / "docs" / "commands.md").read_text() == reference(), "run `make docs`"


@pytest.mark.parametrize("name", ALL_COMMANDS)
def test_the_readme_names_every_command(name: str) -> None:
    assert re.search(rf"\bedgetune {name}\b", README.read_text())


@pytest.mark.parametrize("name", Settings.model_fields)
def test_the_readme_names_every_setting(name: str) -> None:
    assert f"`{name}`" in README.read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / link).exists(), link


def test_the_map_of_the_code_is_complete() -> None:
    """Each part of the package stands in the README's map."""
    text = README.read_text()
    package = ROOT / "edgetune"
    parts = [path.name for path in package.glob("*.py") if path.stem != "__init__"]
    parts += [f"{path.parent.name}/" for path in package.glob("*/__init__.py")]
    missing = [part for part in parts if f"`{part}`" not in text and f" {part} " not in text]
    assert not missing
