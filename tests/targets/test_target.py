"""The description of a target, and what TVM makes of every shipped one."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from edgetune.errors import TargetError
from edgetune.targets import Target, list_targets, load_target

NAMES = [target.name for target in list_targets()]


@pytest.mark.parametrize(
    ("dtype", "lanes"),
    [("float32", 16), ("float16", 32), ("bfloat16", 32), ("int8", 64), ("bool", 64), ("float64", 8),
     ("float8_e4m3fn", 64), ("int64", 8)],
)  # fmt: skip
def test_lanes_of_avx512(dtype, lanes):
    assert load_target("zen4").lanes(dtype) == lanes


def test_a_wide_value_takes_one_lane_of_a_scalar_cpu():
    assert load_target("riscv64").lanes("float64") == 1


def test_fingerprint_ignores_words_and_heeds_what_changes_code():
    target = load_target("zen3")
    assert re.fullmatch(r"[0-9a-f]{16}", target.fingerprint)
    same = target.model_copy(
        update={"name": "other", "notes": "n", "description": "d", "sources": (), "cores": 1}
    )
    assert same.fingerprint == target.fingerprint
    changes = [
        {"threads": 3},
        {"mcpu": "znver4"},
        {"mattr": ("-avx2",)},
        {"l2_bytes": 1},
        {"vector_bits": 128},
    ]
    fingerprints = {target.model_copy(update=change).fingerprint for change in changes}
    assert len(fingerprints | {target.fingerprint}) == len(changes) + 1


def test_fingerprint_is_the_same_in_another_process():
    code = "from edgetune.targets import load_target; print(load_target('raspberry-pi-4').fingerprint)"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONHASHSEED": "7"}, capture_output=True, text=True, check=True
    )
    # Written down, because records in people's databases are found by it.
    assert done.stdout.strip() == load_target("raspberry-pi-4").fingerprint == "8456f3477c20cc4b"


def test_with_threads():
    target = load_target("zen3")
    assert target.with_threads(2).threads == 2
    assert int(target.with_threads(2).tvm().attrs["num-cores"]) == 2
    with pytest.raises(TargetError, match="give 1 or more"):
        target.with_threads(0)


def test_supports():
    assert load_target("raspberry-pi-5").supports("dotprod")
    assert not load_target("raspberry-pi-4").supports("dotprod")
    assert load_target("zen4").supports("avx512vnni")
    # AVX-512 is fused off there, whatever the AVX-VNNI beside it suggests.
    assert load_target("alderlake").supports("avxvnni")
    assert not load_target("alderlake").supports("avx512f")


def test_host_of_a_gpu_is_its_cpu():
    gpu = load_target("jetson-orin-cuda")
    assert gpu.host.kind == "llvm"
    assert gpu.host.fingerprint == load_target("jetson-orin").fingerprint
    assert gpu.fingerprint != gpu.host.fingerprint
    cpu = load_target("jetson-orin")
    assert cpu.host is cpu


def test_cuda_target_has_the_limits_metaschedule_asks_for():
    target = load_target("jetson-nano-cuda").tvm()
    assert str(target.kind.name) == "cuda"
    assert target.attrs["arch"] == "sm_53"
    assert int(target.attrs["max_threads_per_block"]) == 1024
    assert int(target.attrs["max_shared_memory_per_block"]) == 49152
    assert int(target.attrs["thread_warp_size"]) == 32
    assert target.host.attrs["mcpu"] == "cortex-a57"
    assert int(target.host.attrs["num-cores"]) == 4


def test_orin_is_not_the_carmel_of_tvms_tag():
    assert load_target("jetson-orin-nano-cuda").tvm().host.attrs["mcpu"] == "cortex-a78ae"


def test_metaschedule_accepts_the_target():
    import tvm
    from tvm import te
    from tvm.s_tir.meta_schedule.space_generator import PostOrderApply

    from edgetune.metaschedule import tune_context

    a = te.placeholder((64, 64), name="a")
    b = te.compute((64, 64), lambda i, j: a[i, j] * 2.0, name="b")
    module = tvm.IRModule({"main": te.create_prim_func([a, b]).with_attr("global_symbol", "main")})
    # The rules of ARM and of tensor cores first import every tensor intrinsic of TVM, for half a minute.
    for name in ("zen3", "riscv64", "jetson-nano-cuda"):
        context = tune_context(module, load_target(name).tvm(), PostOrderApply())
        assert context.generate_design_space()


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        ({"mcpu": "znver33"}, "znver3"),
        ({"mattr": ("+avx512_vnni",)}, "avx512vnni"),
        ({"mattr": ("+avx2x",)}, "avx2"),
        ({"mcpu": "cortex-a72"}, "it is one of aarch64-linux-gnu"),
        ({"mcpu": "pentium3"}, "LLVM knows no CPU"),  # 32 bits: LLVM would abort the process
        ({"vector_bits": 512}, "256 bits"),
    ],
)
def test_what_llvm_does_not_know_is_refused(change, hint):
    target = load_target("zen3").model_copy(update=change)
    with pytest.raises(TargetError, match=hint):
        target.tvm()


def test_a_feature_that_no_listed_cpu_has_is_accepted():
    arm = load_target("armv8-a").model_copy(update={"mattr": ("+sve2p1",)})
    arm.check()
    assert arm.supports("sve2p1")


BUILD_ALL = r"""
import json, os, re, sys
import tvm
from tvm.script import tirx as T
from pathlib import Path
from edgetune.targets import list_targets
from edgetune.toolchain import link_shared

@T.prim_func(s_tir=True)
def main(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
    T.func_attr({"global_symbol": "main", "tirx.noalias": True})
    for i in range(4):
        for j in T.vectorized(16):
            B[i * 16 + j] = A[i * 16 + j] * A[i * 16 + j] + T.float32(1)

built = {}
for target in list_targets():
    target.tvm()
    module = tvm.tirx.build(tvm.IRModule({"main": main}), target=target.host.tvm())
    path = Path(sys.argv[1]) / f"{target.name}.o"
    module.write_to_file(str(path))
    page = target.toolchain.page_size_bytes
    link_shared([path], path.with_suffix(".so"), target.mtriple, page_size_bytes=page)
    built[target.name] = sorted(set(re.findall(r"\b(zmm|ymm|vsetivli)", module.inspect_source("asm"))))
print(json.dumps(built))
"""


def test_every_shipped_target_builds_and_links_without_a_word_from_llvm(tmp_path):
    # TVMScript reads its source: it must come from a file.
    script = tmp_path / "build_all.py"
    script.write_text(BUILD_ALL)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    # TVM says that it cannot run the code of another architecture here, which nobody asks of it.
    said = [line for line in done.stderr.splitlines() if "Architecture mismatch" not in line]
    assert said == []
    built = json.loads(done.stdout)
    assert list(built) == NAMES
    widest = {512: "zmm", 256: "ymm"}
    for target in list_targets():
        assert (tmp_path / f"{target.name}.so").stat().st_size > 0
        if target.arch == "x86_64":
            assert widest[target.vector_bits] in built[target.name], target.name
            assert target.vector_bits == 512 or "zmm" not in built[target.name]
        if target.arch == "riscv64":
            assert ("vsetivli" in built[target.name]) == target.supports("v")


@pytest.mark.parametrize("name", NAMES)
def test_shipped_target_is_documented_and_consistent(name):
    from edgetune.targets import llvm

    target = load_target(name)
    assert target.description
    assert target.sources
    assert target.threads <= target.cores
    assert (target.vector_bits, target.vector_registers) == llvm.vector_shape(target.arch, target.features)


def test_targets_are_told_apart():
    assert len({target.fingerprint for target in list_targets()}) == len(NAMES)


def test_validation_of_fields_in_code():
    fields = load_target("zen3").model_dump()
    assert Target.model_validate(fields) == load_target("zen3")
