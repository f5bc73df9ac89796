"""The pinned packages, and the versions that are told without importing TVM."""

import importlib.metadata
import subprocess
import sys

import pytest

from edgetune import versions
from edgetune.errors import ToolchainError


def test_the_pins_hold_here_and_are_those_of_pyproject():
    versions.check_pins()
    wanted = {f"{package}=={version}" for package, version in versions.PINS.items()}
    assert wanted <= set(importlib.metadata.requires("edgetune") or ())


def test_a_wrong_pin_says_how_to_mend_it(monkeypatch):
    monkeypatch.setitem(versions.PINS, "apache-tvm-ffi", "0.1.99")
    with pytest.raises(ToolchainError, match=r"pip install apache-tvm==.* apache-tvm-ffi==0\.1\.99"):
        versions.check_pins()


def test_versions_are_those_of_tvm_itself():
    code = (
        "import sys; from edgetune.versions import versions; print(versions()['llvm'], 'tvm' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    from tvm.target import codegen

    assert done.stdout.split() == [str(codegen.llvm_version_major()), "False"]
    found = versions.versions()
    assert found["llvm"] == str(codegen.llvm_version_major())
    assert found["tvm"] == importlib.metadata.version("apache-tvm")
    assert set(found) == {"edgetune", "tvm", "tvm-ffi", "llvm"}
