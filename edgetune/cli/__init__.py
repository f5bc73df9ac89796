"""The command line: parse, one call, print. One module a command.

How a command is written:

* ``cli/NAME.py`` holds ``app = typer.Typer(...)`` with one command, or with several for a group
  such as ``targets list``; its line in :data:`COMMANDS` is all that ``edgetune --help`` reads,
  so that no module is imported before it is asked for.
* ``@command(app)`` (``cli/command.py``) stands above its function, and adds ``--json``, ``-v`` and ``-q``.
* The function's first parameter is an ``Output`` (``cli/output.py``), which prints: results with
  ``out.result(payload, human=...)``, notes and progress with ``out.note(...)``.
* Options that several commands share come from ``cli/options.py`` and are parsed there.
* Problems are raised as :class:`edgetune.errors.EdgetuneError`; ``cli/main.py`` prints them and
  picks the exit code. ``raise typer.Exit(code)`` only after a result has been printed.
* Imports of stages stand inside the command's function: help must not wait for them.
"""

from __future__ import annotations

COMMANDS: dict[str, str] = {
    "check": "Say whether a model can be compiled, and why not.",
    "tune": "Tune a model for a target and write a verified bundle.",
    "compile": "Compile a model from the tuning logs alone: no device, no trials.",
    "run": "Run a bundle once and describe its outputs.",
    "compare": "Compare a bundle's outputs with ONNX Runtime's.",
    "benchmark": "Time a bundle, and ONNX Runtime or others beside it.",
    "profile": "Show where a bundle spends its time, kernel by kernel.",
    "bundle": "Sign, verify and merge bundles.",
    "targets": "List, show and detect targets: what kernels are compiled for.",
    "devices": "Add, list, probe, test and remove devices: what kernels are measured on and bundles run on.",
    "tracker": "Start an RPC tracker: where runners register and devices are leased.",
    "runner": "Start a runner on this machine and register it with a tracker.",
    "logs": "Inspect, move and clean the tuning logs, where every measured candidate is kept.",
    "models": "List and fetch the public models of the tests and benchmarks.",
    "config": "Show the settings and where each came from.",
}
"""Command name -> one-line help, in the order of use."""
