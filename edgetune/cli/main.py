"""The entry point: finds the command, runs it, and turns every exception into a message and an exit code."""

from __future__ import annotations

import errno
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from edgetune.cli import COMMANDS, output
from edgetune.cli.output import INTERRUPTED
from edgetune.errors import EdgetuneError, OutputError, UsageError, did_you_mean


class _LazyGroup(TyperGroup):
    """Imports ``edgetune.cli.NAME`` only when command NAME is asked for; its summary is in ``COMMANDS``."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            raise UsageError(f"no command {cmd_name!r}; {did_you_mean(cmd_name, COMMANDS)}")
        module = importlib.import_module(f"edgetune.cli.{cmd_name}")
        command = typer.main.get_command(module.app)
        command.name = cmd_name
        _simplify(command)
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _simplify(command: Any) -> None:
    """Plain help texts, and no options for shell completion."""
    command.rich_markup_mode = None
    command.params = [
        param for param in command.params if param.name not in ("install_completion", "show_completion")
    ]
    for child in getattr(command, "commands", {}).values():
        _simplify(child)


app = typer.Typer(
    cls=_LazyGroup,
    help="Hardware-aware tuning of ONNX models, on Apache TVM.",
    epilog="'edgetune COMMAND --help' explains a command.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from edgetune.versions import versions

        print(" ".join(f"{name} {version}" for name, version in versions().items()))
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the versions of edgetune, TVM, tvm-ffi and LLVM.",
        ),
    ] = False,
) -> None:
    """Options that stand before the command."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (default: the process's own) and return the exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    output.reset()
    try:
        try:
            code = typer.main.get_command(app)(args=args, prog_name="edgetune", standalone_mode=False)
            sys.stdout.flush()
            if code == INTERRUPTED and not output.result_printed():
                # typer turns Ctrl-C into this exit code, without a word.
                return _report(KeyboardInterrupt(), args)
            return code if isinstance(code, int) else 0
        except BrokenPipeError:
            return _closed_pipe()
        except BaseException as error:
            return _report(error, args)
    except BrokenPipeError:
        return _closed_pipe()


def _closed_pipe() -> int:
    """The reader of our output went away (``edgetune ... | head``): no traceback, not a success."""
    # Python flushes stdout once more at exit; with no reader it would complain.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 1


_UNPREFIXED = {"Interrupted", "InternalError", "NoArgsIsHelpError"}


def _report(error: BaseException, args: Sequence[str]) -> int:
    """Say on stderr what happened, with ``--json`` also as an object on stdout; return the exit code."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1
    kind, message, code = explain(error)
    if output.verbosity() >= output.DEBUG or "-vv" in args:
        traceback.print_exception(error)
    print(message if kind in _UNPREFIXED else f"error: {message}", file=sys.stderr)
    if "--json" in args and not output.result_printed():
        output.Output(json=True).write_json({"error": {"kind": kind, "message": message, "exit_code": code}})
    return code


def explain(error: BaseException) -> tuple[str, str, int]:
    """Kind, message and exit code for any exception: the one place where foreign errors are translated."""
    kind = type(error).__name__
    if isinstance(error, EdgetuneError):
        return kind, str(error), error.exit_code
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return "Interrupted", "interrupted", INTERRUPTED
    if isinstance(error, TyperException):
        if kind == "NoArgsIsHelpError":
            return kind, str(error.format_message()), error.exit_code
        return "UsageError", _usage_message(error), error.exit_code
    if isinstance(error, OSError) and (known := _os_error(error)):
        return OutputError.__name__, known, OutputError.exit_code
    if isinstance(error, MemoryError):
        return kind, "out of memory; close other programs, or use a smaller model or batch", 1
    where = traceback.extract_tb(error.__traceback__)
    place = f" at {os.path.basename(where[-1].filename)}:{where[-1].lineno}" if where else ""
    first_line = (str(error).strip().splitlines() or [""])[0]
    return (
        "InternalError",
        f"internal error: {kind}: {first_line}{place}\n"
        "This is a bug in edgetune. Run the same command with -vv for the traceback and report both, "
        "with the output of 'edgetune --version'.",
        1,
    )


def _usage_message(error: TyperException) -> str:
    ctx = getattr(error, "ctx", None)
    hint = f"\nTry '{ctx.command_path} --help'." if ctx is not None else ""
    return f"{error.format_message()}{hint}"


def _os_error(error: OSError) -> str | None:
    """A clear sentence for the file errors that are the machine's state and no bug; None for others."""
    name = error.filename or "a file"
    return {
        errno.ENOSPC: f"the disk is full: could not write {name}; free some space or choose another path",
        errno.EDQUOT: f"the disk quota is used up: could not write {name}; free some or choose another path",
        errno.EACCES: f"no permission for {name}; change its permissions or choose another path",
        errno.EPERM: f"no permission for {name}; change its permissions or choose another path",
        errno.EROFS: f"{name} is on a read-only file system; choose another path",
        errno.ENOENT: f"{name} does not exist; check the path",
        errno.EISDIR: f"{name} is a directory, a file was expected; check the path",
        errno.ENOTDIR: f"{name}: a part of the path is not a directory; check the path",
        errno.EMFILE: "too many open files; raise the limit with 'ulimit -n'",
    }.get(error.errno or 0)


if __name__ == "__main__":
    sys.exit(main())
