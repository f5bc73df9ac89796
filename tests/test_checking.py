"""Check: every reason at once, by node, in seconds; and exit codes and JSON of the command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx.parser import parse_model

from edgetune.checking import CheckResult, check
from edgetune.errors import ModelError, TargetError, UsageError
from edgetune.model import registry


def model_of(text: str, domains: str = '"": 17') -> onnx.ModelProto:
    return parse_model(f"<ir_version: 8, opset_import: [{domains}]> g {text}")


def reasons(result: CheckResult) -> dict[str, str]:
    return {node.op: node.reason for node in result.unsupported}


def test_a_real_model() -> None:
    entry = registry.get("ppocr-cls")
    result = check(registry.fetch(entry.name), entry.shapes)
    assert result.supported
    assert result.unsupported == result.dynamic_dims == ()
    assert result.tasks
    assert 20 < result.tasks < 100
    # 0.5 MB of float32 weights
    assert 100_000 < result.params < 150_000
    assert result.inputs[0].dims == (1, 3, 48, 192)
    assert result.outputs[0].dims == (1, 2)


def test_open_dimensions() -> None:
    result = check(registry.fetch("ppocr-cls"))
    assert not result.supported
    assert [(dim.input, dim.axis) for dim in result.dynamic_dims] == [("x", 0), ("x", 2), ("x", 3)]
    assert "--shape x:1x3x" in result.message
    assert result.tasks is None
    assert result.flops is None
    assert result.params > 100_000


def test_types_that_numpy_lacks_are_taken() -> None:
    result = check(model_of("(float[4] x) => (bfloat16[4] y) { y = Cast<to = 16>(x) }"))
    assert result.supported
    assert [value.dtype for value in result.outputs] == ["bfloat16"]


def test_every_missing_operator_is_named_in_every_graph() -> None:
    model = model_of(
        """(float[2] x, bool c, float[2, 2, 4] z) => (float[2] y, float[2, 2, 4] u) {
            a = other.Frobnicate(x)
            y = If (c) <
                then_branch = t () => (float[2] p) { p = other.Twist(x) },
                else_branch = e () => (float[2] q) { q = Relu(a) }
            >
            u = other.Frobnicate(z)
        }""",
        '"": 17, "other": 1',
    )
    result = check(model)
    assert not result.supported
    assert [(node.node, node.op) for node in result.unsupported] == [
        ("(makes a)", "other.Frobnicate"),
        ("(makes p)", "other.Twist"),
        ("(makes u)", "other.Frobnicate"),
    ]
    assert "3 nodes cannot be compiled (other.Frobnicate, other.Twist)" in result.message


def test_a_domain_does_not_lend_its_names() -> None:
    """The importer would take any domain's ``Relu`` for the standard's."""
    assert not check(
        model_of("(float[2] x) => (float[2] y) { y = other.Relu(x) }", '"": 17, "other": 1')
    ).supported


def test_the_same_name_in_two_domains() -> None:
    text = "(float[2, 3] x, float[3] b) => (float[2, 3] y) {{ y = {}(x, b) }}"
    assert check(model_of(text.format("com.microsoft.BiasGelu"), '"": 17, "com.microsoft": 1')).supported


def test_a_size_that_depends_on_values() -> None:
    result = check(model_of("(float[6] x) => (int64[1, n] y) { a = Relu(x) i = NonZero(a) y = Neg(i) }"))
    assert not result.supported
    assert [node.op for node in result.unsupported] == ["NonZero"]
    assert "depends on the input's values" in result.unsupported[0].reason


def test_what_the_importer_refuses_is_pinned_to_its_node() -> None:
    # The importer wants axes that it can read at compile time.
    result = check(
        model_of(
            """(float[2, 3] x, int64[1] k) => (float[2, n] y, int64[2, n] i) {
                a = Relu(x) b = Neg(a) y, i = TopK(b, k)
            }"""
        )
    )
    assert not result.supported
    assert [node.op for node in result.unsupported] == ["TopK"]


def test_bad_files_and_arguments(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        check(tmp_path / "none.onnx")
    model = model_of("(float[n] x) => (float[n] y) { y = Relu(x) }")
    with pytest.raises(UsageError, match="did you mean"):
        check(model, {"xx": (1,)})
    with pytest.raises(TargetError):
        check(model, {"x": (4,)}, target="no-such-machine")


def command(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "edgetune.cli.main", "check", *args],
        capture_output=True,
        text=True,
        check=False,
    )


class TestCommand:
    def test_json_of_a_model_that_compiles(self, tmp_path: Path) -> None:
        path = tmp_path / "relu.onnx"
        onnx.save(model_of("(float[n, 4] x) => (float[n, 4] y) { y = Relu(x) }"), path)
        done = command(str(path), "--shape", "x:[2,4]", "--json")
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout)
        assert result["supported"] is True
        assert result["inputs"] == [{"name": "x", "dtype": "float32", "shape": [2, 4]}]
        assert result["outputs"] == [{"name": "y", "dtype": "float32", "shape": [2, 4]}]
        assert (result["tasks"], result["flops"], result["params"]) == (1, 8, 0)
        assert result["unsupported"] == result["dynamic_dims"] == []

    def test_exit_code_and_table_of_one_that_does_not(self, tmp_path: Path) -> None:
        path = tmp_path / "odd.onnx"
        onnx.save(model_of("(float[2] x) => (float[2] y) { y = other.Odd(x) }", '"": 17, "other": 1'), path)
        done = command(str(path))
        assert done.returncode == 1
        assert "other.Odd" in done.stdout
        assert "Traceback" not in done.stderr
        done = command(str(path), "--json")
        assert done.returncode == 1
        assert json.loads(done.stdout)["unsupported"][0]["op"] == "other.Odd"

    def test_open_dimensions_end_with_the_instruction(self, tmp_path: Path) -> None:
        path = tmp_path / "open.onnx"
        onnx.save(model_of("(float[n, 4] x) => (float[n, 4] y) { y = Relu(x) }"), path)
        done = command(str(path), "--json")
        assert done.returncode == 1
        assert json.loads(done.stdout)["dynamic_dims"] == [{"input": "x", "axis": 0, "symbol": "n"}]
        assert "--shape x:1x4" in json.loads(done.stdout)["message"]

    def test_a_file_that_is_no_model(self, tmp_path: Path) -> None:
        path = tmp_path / "text.onnx"
        path.write_text("not a model")
        done = command(str(path))
        assert (done.returncode, done.stdout) == (1, "")
        assert len(done.stderr.strip().splitlines()) == 1
