"""``edgetune config``: the settings in force and where each came from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from edgetune.cli.command import command
from edgetune.cli.output import Output

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)


@app.callback()
def config() -> None:
    """Show the settings and where each came from.

    A setting is taken from the first place that has it: the command line, an EDGETUNE_* variable
    (EDGETUNE_TARGET, EDGETUNE_TRIALS, ...), edgetune.toml in the working directory, the user's
    config file, the default.
    """


@command(app)
def show(out: Output) -> None:
    """Print each setting, its value and the place it came from."""
    from edgetune.config import FILE_NAME, load_settings, user_config_path

    layered = load_settings()
    values = layered.settings.model_dump(mode="json")

    def table(console: Console) -> None:
        from rich.table import Table

        rows = Table("setting", "value", "from", box=None)
        unset = _unset()
        for name, value in values.items():
            rows.add_row(name, f"- ({unset[name]})" if value is None else str(value), layered.sources[name])
        console.print(rows)

    payload = {
        "settings": {
            name: {"value": value, "source": layered.sources[name]} for name, value in values.items()
        },
        "files": [FILE_NAME, str(user_config_path())],
    }
    out.result(payload, table)


def _unset() -> dict[str, str]:
    """What a setting without a value comes to, for a person."""
    from edgetune.logs import default_path
    from edgetune.model.registry import cache_dir

    until = "until no kernel improves any more"
    return {
        "cluster": "any CPUs",
        "logs": str(default_path()),
        "trials": until,
        "time": until,
        "threads": "the target's",
        "out": "edgetune-out/MODEL-TARGET",
        "models_cache": str(cache_dir()),
    }
