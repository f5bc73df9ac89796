"""Writes docs/commands.md from the commands' own help: ``python -m edgetune.cli.reference``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import typer

from edgetune.cli import COMMANDS
from edgetune.cli.main import app

_HEAD = """\
# Commands

Made from the commands' help by `make docs`; a test keeps it true. Common rules:

- `--json` prints one JSON object on stdout and nothing else there; notes and progress go to stderr. When a
  command fails before it has a result, the object is `{"error": {"kind", "message", "exit_code"}}`.
- Exit codes: 0 done; 1 failed; 2 usage; 3 outputs differ from the reference; 4 device unavailable; 5 budget
  ended before the stated goal; 130 interrupted, best so far saved.
- Options not given are taken from `EDGETUNE_*` variables, then `edgetune.toml` in the working directory,
  then the user's config file; `edgetune config show` prints them.
"""


def reference() -> str:
    """The whole page as Markdown."""
    root = typer.main.get_command(app)
    ctx = root.make_context("edgetune", [], resilient_parsing=True)
    parts = [_HEAD]
    for name in COMMANDS:
        command: Any = root.get_command(ctx, name)  # type: ignore[attr-defined]
        for title, text in _pages(command, typer.Context(command, parent=ctx, info_name=name), name):
            parts.append(f"## {title}\n\n```text\n{text}\n```\n")
    return "\n".join(parts)


def _pages(command: Any, ctx: Any, title: str) -> Iterator[tuple[str, str]]:
    # A fixed width, so that the page does not depend on the terminal it is made in.
    ctx.terminal_width = ctx.max_content_width = 100
    yield title, "\n".join(line.rstrip() for line in command.get_help(ctx).strip().splitlines())
    for name, child in getattr(command, "commands", {}).items():
        yield from _pages(child, typer.Context(child, parent=ctx, info_name=name), f"{title} {name}")


if __name__ == "__main__":
    sys.stdout.write(reference())
