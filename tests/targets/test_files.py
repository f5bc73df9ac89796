"""Target files: what is accepted, and what each mistake says."""

from __future__ import annotations

import subprocess
import sys
import tomllib

import pytest

from edgetune.errors import OutputError, TargetError
from edgetune.targets import detect_local, list_targets, load_target, to_toml, write_target

GOOD = """
kind = "llvm"
mtriple = "aarch64-linux-gnu"
mcpu = "cortex-a76"
cores = 4
threads = 4
vector_bits = 128
vector_registers = 32
l1d_bytes = 65536
l2_bytes = 524288
"""


@pytest.fixture
def write(tmp_path):
    def write(text, name="mine.toml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def test_a_file_is_named_by_its_stem(write):
    target = load_target(write(GOOD))
    assert target.name == "mine"
    assert target.mattr == ()
    assert target.l3_bytes == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD.replace("mcpu =", "mcpuu ="), "unknown field 'mcpuu', did you mean mcpu"),
        (GOOD.replace('mcpu = "cortex-a76"\n', ""), "field 'mcpu' is missing"),
        (GOOD.replace("cores = 4", "cores = 0"), "field 'cores': .*greater than 0, not 0"),
        (GOOD.replace("cores = 4", 'cores = "4"'), "field 'cores': .*integer, not '4'"),
        (
            GOOD.replace("cores = 4", "cores = 9223372036854775808"),
            "field 'cores': .*less than 9223372036854775808",
        ),
        (GOOD.replace("aarch64-", "mips-"), "field 'mtriple': the architecture must be one of"),
        (GOOD.replace('"llvm"', '"opencl"'), "field 'kind': .*'llvm' or 'cuda'"),
        (GOOD.replace('"llvm"', '"cuda"'), r"needs a \[gpu\] table"),
        (GOOD + 'mattr = ["dotprod"]\n', "field 'mattr.0'"),
        (GOOD + "[gpu]\nsm = 87\n", "unknown field 'gpu.sm'"),
        (GOOD + '[toolchain]\ncuda_mix = "1"\n', "unknown field 'toolchain.cuda_mix', did you mean cuda_m"),
        (GOOD + 'host = "zen9"\n', "must name a shipped CPU target, not 'zen9'; did you mean zen"),
        (GOOD + 'host = "jetson-nano-cuda"\n', "must name a shipped CPU target"),
        (GOOD + "kind = 1\n", "is not valid TOML"),
        (GOOD.replace("cortex-a76", "cortex-a767"), "did you mean .*cortex-a76"),
        (GOOD.replace("bits = 128", "bits = 256"), "vectors of 128 bits"),
    ],
)
def test_mistakes_name_file_and_field(write, text, message):
    with pytest.raises(TargetError, match=message) as caught:
        load_target(write(text))
    assert "mine" in str(caught.value)
    assert "\n" not in str(caught.value).replace("\n\n", "\n") or "TOML" in str(caught.value)


def test_all_mistakes_at_once(write):
    with pytest.raises(TargetError, match=r"'cores'.*'threads'"):
        load_target(write(GOOD.replace("= 4", "= -4")))


def test_a_gpu_file_takes_its_cpu_from_a_shipped_target(write):
    text = 'kind = "cuda"\nhost = "raspberry-pi-5"\n[gpu]\narch = "sm_87"\nmultiprocessors = 1\n'
    target = load_target(write(text))
    assert target.gpu.arch == "sm_87"
    assert target.mcpu == "cortex-a76"
    assert target.host.fingerprint == load_target("raspberry-pi-5").fingerprint


def test_a_gpu_file_may_change_its_cpu(write):
    text = 'kind = "cuda"\nhost = "jetson-orin"\nthreads = 2\n[gpu]\narch = "sm_87"\nmultiprocessors = 1\n'
    assert load_target(write(text)).threads == 2


def test_missing_file_and_unknown_name(tmp_path):
    with pytest.raises(TargetError, match=r"cannot read the target file .*No such file"):
        load_target(tmp_path / "none.toml")
    with pytest.raises(TargetError, match="unknown target 'raspberry-pi4'; did you mean raspberry-pi-4"):
        load_target("raspberry-pi4")


def test_binary_file(tmp_path):
    path = tmp_path / "x.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TargetError, match="not valid TOML"):
        load_target(path)


@pytest.mark.parametrize("target", list_targets(), ids=lambda target: target.name)
def test_written_and_read_again(target, tmp_path):
    path = tmp_path / f"{target.name}.toml"
    write_target(target, path)
    assert load_target(path) == target


def test_strange_characters_survive(tmp_path):
    target = load_target("zen3").model_copy(
        update={"notes": 'a "quote", a \\ and\n\x7f\x01 ünïcode \U0001f600', "description": 'tab\t"'}
    )
    assert tomllib.loads(to_toml(target))["notes"] == target.notes
    path = tmp_path / "zen3.toml"
    write_target(target, path)
    assert load_target(path) == target


def test_unwritable_place(tmp_path):
    with pytest.raises(OutputError, match="cannot write the target file"):
        write_target(load_target("zen3"), tmp_path / "none" / "x.toml")
    assert list(tmp_path.iterdir()) == []


def test_local_is_this_machine():
    assert load_target("local") == detect_local()


def test_listing_needs_no_tvm():
    code = (
        "import sys; from edgetune.targets import list_targets; list_targets(); print('tvm' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
