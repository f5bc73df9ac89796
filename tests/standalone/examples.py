"""The examples of the documentation and of the wrappers, ready to be run."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tests.standalone.conftest import HERE, run, system_compiler, tool

ROOT = HERE.parents[1]

DOCUMENT = ROOT / "docs" / "standalone.md"


def example(language: str) -> str:
    """The first block of a language in the documentation."""
    return re.findall(rf"```{language}\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)[0]


def java_example(bundle: Path, folder: Path) -> list[str | Path]:
    """The command of the example in Java, which is compiled into a folder."""
    javac, java = tool("javac", "java")
    home = Path(javac).resolve().parents[1]
    sources = ROOT / "wrappers/java"
    headers = [f"-I{bundle}", f"-I{home}/include", f"-I{home}/include/linux"]
    strict = [system_compiler(), "-std=c99", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", *headers]
    run([*strict, sources / "edgetune_jni.c", "-o", folder / "libedgetune_jni.so", "-ldl"])
    run([javac, "-d", folder, *(sources / "src/org/edgetune").glob("*.java"), sources / "Example.java"])
    return [java, "-cp", folder, f"-Djava.library.path={folder}", "-Xcheck:jni", "Example"]


def rust_example(folder: Path) -> Path:
    """The example in Rust, compiled into a folder."""
    (cargo,) = tool("cargo")
    command = [cargo, "build", "--quiet", "--offline", "--example", "run_model", "--manifest-path"]
    environment = os.environ | {"CARGO_TARGET_DIR": str(folder), "RUSTFLAGS": "-D warnings"}
    run([*command, ROOT / "wrappers/rust/Cargo.toml"], env=environment)
    return folder / "debug/examples/run_model"
