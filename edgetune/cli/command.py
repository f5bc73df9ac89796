"""Turns a function into a command with the options that all commands have."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec

import typer

from edgetune.cli import options
from edgetune.cli.output import Output

P = ParamSpec("P")
_Command = Callable[Concatenate[Output, P], None]

_COMMON = [
    inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=annotation)
    for name, default, annotation in (
        ("json", False, options.JsonOption),
        ("verbose", 0, options.VerboseOption),
        ("quiet", False, options.QuietOption),
    )
]


def command(app: typer.Typer, name: str | None = None) -> Callable[[_Command[P]], _Command[P]]:
    """Make a function a command of ``app``, called like the function unless it has a ``name``.

    The function's first parameter is given the command's :class:`Output`; the others are its arguments and
    options. ``--json``, ``--verbose`` and ``--quiet`` come on top.
    """

    def decorate(function: _Command[P]) -> _Command[P]:
        @functools.wraps(function)
        def run(json: bool, verbose: int, quiet: bool, **given: Any) -> None:
            with Output(json=json, verbose=verbose, quiet=quiet) as out:
                function(out, **given)  # type: ignore[call-arg]  # as the signature below has it

        signature = inspect.signature(function, eval_str=True)
        parameters = [*list(signature.parameters.values())[1:], *_COMMON]
        # What typer reads.
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        app.command(name)(run)
        return function

    return decorate
