"""The direction of the imports, and how light the command line is at its start."""

from __future__ import annotations

import ast
import functools
import importlib
import json
import pkgutil
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import edgetune
from edgetune.cli import COMMANDS

PACKAGE = Path(edgetune.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))

LAYERS = [
    {"cli"},
    {"api"},
    {"workflow", "checking", "doctor"},
    {"placement", "proof"},
    {"watcher"},
    {"model", "graph", "kernels", "tuning", "choices", "verify", "benchmarking"},
    {"sides"},
    {"runtime"},
    {"vm_program"},
    {"standalone"},
    {"bundle"},
    {"logs", "devices"},
    {"cuda"},
    {"toolchain", "tvm_runtime"},
    {"targets"},
    {"config", "request", "results", "cpu", "machine", "metaschedule", "versions", "atomic", "elf", "ndk"},
    {"resources"},
    {"records"},
    {"narrow", "sizes", "tolerances"},
    {"dtypes"},
    {"bodies", "errors"},
]
"""From the top down: a part may import from the rows below its own, and from itself."""

ALSO_ALLOWED = {
    ("graph", "kernels"): "lowering and compiling are made of the kernels",
}
"""Pairs within one row, each with its reason."""

HEAVY = {
    "tvm",
    "tvm_ffi",
    "onnx",
    "onnxruntime",
    "onnxslim",
    "xgboost",
    "sqlalchemy",
    "alembic",
    "numpy",
    "rich",
}
"""What no help text may wait for."""


def part_of(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imports(tree: ast.AST, top_level_only: bool = False) -> set[str]:
    """Dotted names imported anywhere below ``tree``, or only those that importing the module runs."""
    found: set[str] = set()
    for node in ast.iter_child_nodes(tree):
        if is_type_checking(node):
            if not top_level_only:
                found |= imports(node)
            continue
        if top_level_only and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in line {node.lineno}"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        found |= imports(node, top_level_only)
    return found


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def level(part: str) -> int:
    return next(index for index, layer in enumerate(LAYERS) if part in layer)


def wrong_imports(path: Path) -> list[str]:
    own = part_of(path)
    if own == "__init__":
        return []
    wrong = []
    for name in imports(parsed(path)):
        root, _, rest = name.partition(".")
        if root != "edgetune" or not rest:
            continue
        other = rest.split(".")[0]
        if other.startswith("_") or other == own or (own, other) in ALSO_ALLOWED:
            continue
        if other not in set().union(*LAYERS):
            wrong.append(f"{own} imports {name} from the package's root")
        elif level(other) <= level(own):
            wrong.append(f"{own} imports {name}")
    return wrong


def test_every_part_has_a_layer() -> None:
    parts = {part_of(path) for path in MODULES} - {"__init__", "_data"}
    assert parts <= set().union(*LAYERS)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    assert wrong_imports(path) == []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_size(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            # The docstring and the signature do not count: what is measured is the logic.
            body = node.body[1:] if ast.get_docstring(node) else node.body
            lines = (node.end_lineno - body[0].lineno + 1) if body else 0
            assert lines <= 60, f"{node.name} has {lines} lines"


def test_runtime_needs_nothing_of_tuning() -> None:
    code = "import sys, json, edgetune.runtime; print(json.dumps(sorted(sys.modules)))"
    loaded = json.loads(subprocess.check_output([sys.executable, "-c", code]))
    parts = {name.split(".")[1] for name in loaded if name.startswith("edgetune.")}
    assert not parts & {"model", "graph", "kernels", "tuning", "logs", "workflow", "api", "cli"}


def test_every_module_imports_without_its_heavy_dependencies() -> None:
    """A broken or missing TVM must end in a message of ours: what runs before its version is checked does without."""
    light = [
        "edgetune." + ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        for path in MODULES
        if part_of(path)
        in {"cli", "api", "request", "watcher", "config", "results", "targets"}
        | {"toolchain", "versions", "resources"}
        and path.name != "__init__.py"
    ]
    blocked = sorted(HEAVY - {"numpy", "rich"})
    code = (
        "import sys, importlib\n"
        "class Blocker:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.split('.')[0] in {blocked!r}:\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Blocker())\n"
        "import edgetune\n"
        f"for name in {light!r}: importlib.import_module(name)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_every_module_imports() -> None:
    for module in pkgutil.walk_packages([str(PACKAGE)], "edgetune."):
        # alembic runs this one as a script, inside a migration.
        if module.name != "edgetune.logs.migrations.env":
            importlib.import_module(module.name)


def children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def help_run(*args: str) -> tuple[float, set[str]]:
    """Best of three times of ``edgetune ARGS --help`` in a fresh process, and the modules it loaded.

    The time is the processor's: what a clock shows on a machine that has nothing else to do.
    """
    code = (
        "import sys, json\n"
        "from edgetune.cli.main import main\n"
        f"code = main({[*args, '--help']!r})\n"
        "print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})), file=sys.stderr)\n"
        "sys.exit(code)"
    )
    best = float("inf")
    for _ in range(3):
        before = children_s()
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        best = min(best, children_s() - before)
        if best < 0.3:
            break
    assert "Usage: edgetune" in done.stdout
    return best, set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_is_light_and_quick(command: str) -> None:
    seconds, loaded = help_run(*([command] if command else []))
    assert loaded & HEAVY == set()
    assert seconds < 0.3
