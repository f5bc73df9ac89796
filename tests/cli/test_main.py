"""One boundary turns every exception into a message and an exit code."""

from __future__ import annotations

import errno
import importlib
import json
import subprocess
import sys

import pytest
import typer

from edgetune import errors
from edgetune.cli import COMMANDS, main

OWN_ERRORS = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, errors.EdgetuneError)
]


def edgetune(*args: str, **kwargs) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "edgetune.cli.main", *args], capture_output=True, text=True, **kwargs
    )


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch):
    """Makes ``config show`` raise what a test wants: the boundary is what is tested, not the command."""

    def arrange(error: BaseException) -> None:
        def fail(*args: object, **kwargs: object) -> None:
            raise error

        monkeypatch.setattr("edgetune.config.load_settings", fail)

    return arrange


@pytest.mark.parametrize("kind", OWN_ERRORS, ids=lambda kind: kind.__name__)
def test_own_errors(kind, failing, capfd) -> None:
    failing(kind("what happened; what to do"))
    assert main.main(["config", "show"]) == kind.exit_code
    printed = capfd.readouterr()
    assert printed.out == ""
    assert printed.err == "error: what happened; what to do\n"


@pytest.mark.parametrize("kind", OWN_ERRORS, ids=lambda kind: kind.__name__)
def test_own_errors_as_json(kind, failing, capfd) -> None:
    failing(kind("what happened; what to do"))
    assert main.main(["config", "show", "--json"]) == kind.exit_code
    printed = capfd.readouterr()
    assert json.loads(printed.out) == {
        "error": {
            "kind": kind.__name__,
            "message": "what happened; what to do",
            "exit_code": kind.exit_code,
        }
    }
    assert "what happened" in printed.err


FOREIGN = [
    (KeyboardInterrupt(), 130, "interrupted"),
    (typer.Abort(), 130, "interrupted"),
    (
        OSError(errno.ENOSPC, "No space left on device", "/out/x.so"),
        1,
        "disk is full: could not write /out/x.so",
    ),
    (PermissionError(errno.EACCES, "Permission denied", "/out"), 1, "no permission for /out"),
    (OSError(errno.EROFS, "Read-only file system", "/out"), 1, "read-only"),
    (OSError(errno.EDQUOT, "Disk quota exceeded", "/out"), 1, "quota"),
    (FileNotFoundError(errno.ENOENT, "No such file", "m.onnx"), 1, "m.onnx does not exist"),
    (IsADirectoryError(errno.EISDIR, "Is a directory", "m.onnx"), 1, "m.onnx is a directory"),
    (NotADirectoryError(errno.ENOTDIR, "Not a directory", "a/b"), 1, "a/b"),
    (OSError(errno.EMFILE, "Too many open files"), 1, "ulimit -n"),
    (MemoryError(), 1, "out of memory"),
    (ValueError("surprise\nsecond line"), 1, "internal error: ValueError: surprise"),
    (OSError(errno.EXDEV, "Cross-device link"), 1, "internal error: OSError"),
]


@pytest.mark.parametrize("error, code, text", FOREIGN, ids=lambda value: repr(value)[:40])
def test_foreign_errors(error, code, text, failing, capfd) -> None:
    failing(error)
    assert main.main(["config", "show"]) == code
    printed = capfd.readouterr()
    assert text in printed.err
    assert "Traceback" not in printed.err
    assert printed.out == ""


def test_a_bug_says_how_to_report_it(failing, capfd) -> None:
    failing(ValueError("surprise"))
    main.main(["config", "show"])
    message = capfd.readouterr().err
    assert "-vv" in message
    assert "edgetune --version" in message
    assert len(message.splitlines()) == 2


def test_vv_shows_the_traceback(failing, capfd) -> None:
    failing(ValueError("surprise"))
    assert main.main(["config", "show", "-vv"]) == 1
    assert "Traceback" in capfd.readouterr().err


@pytest.mark.parametrize(
    "args, text",
    [
        (["frobnicate"], "known: check, tune"),
        (["tun"], "did you mean tune"),
        (["config", "show", "--jsn"], "--json"),
        (["config", "show", "surplus"], "surplus"),
        (["--frob"], "--frob"),
    ],
)
def test_usage_errors(args: list[str], text: str) -> None:
    done = edgetune(*args)
    assert done.returncode == 2
    assert text in done.stderr
    assert done.stdout == ""


def test_usage_error_as_json() -> None:
    done = edgetune("config", "show", "--jsn", "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["kind"] == "UsageError"


def test_without_arguments_the_help() -> None:
    done = edgetune()
    assert done.returncode == 2
    assert done.stderr.startswith("Usage: edgetune")


def test_version_names_what_matters() -> None:
    done = edgetune("--version")
    assert done.returncode == 0
    for part in ("edgetune", "tvm 0.27.0.post1", "tvm-ffi 0.1.14", "llvm"):
        assert part in done.stdout.lower()


def test_the_table_of_commands_is_true() -> None:
    """``edgetune --help`` prints COMMANDS without importing the modules: the two must agree."""
    for name, summary in COMMANDS.items():
        app = importlib.import_module(f"edgetune.cli.{name}").app
        help_text = typer.main.get_command(app).help or ""
        assert help_text.split("\n\n")[0].replace("\n", " ") == summary, name


def test_config_show_says_what_an_unset_value_comes_to(capfd: pytest.CaptureFixture[str]) -> None:
    from edgetune.logs import default_path

    assert main.main(["config", "show"]) == 0
    shown = {line.split()[0]: line for line in capfd.readouterr().out.splitlines()}
    assert str(default_path()) in shown["logs"]
    assert "edgetune-out/MODEL-TARGET" in shown["out"]
    assert not [line for line in shown.values() if " - " in line and "(" not in line]
