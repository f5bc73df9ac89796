"""Detection: features the kernel denies are not used, whatever the CPU's name implies."""

from __future__ import annotations

import os

import pytest

from edgetune.cpu import checkable_features, machine_features, missing_features
from edgetune.errors import TargetError
from edgetune.targets import detect_local, llvm
from edgetune.targets.detect import adjust

X86 = "x86_64-linux-gnu"
ARM = "aarch64-linux-gnu"


def test_local_uses_only_what_this_machine_has():
    target = detect_local()
    assert missing_features(target.required_features()) == ()
    assert target.threads == target.cores
    assert 1 <= target.threads <= len(os.sched_getaffinity(0))
    assert target.l1d_bytes >= 8192
    assert target.vector_bits == llvm.vector_shape(target.arch, target.features)[0]


def test_local_code_runs_here():
    import numpy as np
    import tvm
    from tvm import te

    a = te.placeholder((1000,), name="a")
    b = te.compute((1000,), lambda i: te.exp(a[i]) + a[i], name="b")
    function = te.create_prim_func([a, b]).with_attr("global_symbol", "main")
    module = tvm.tirx.build(tvm.IRModule({"main": function}), target=detect_local().tvm())
    values = np.linspace(-4, 4, 1000, dtype=np.float32)
    result = tvm.runtime.tensor(np.zeros(1000, np.float32))
    module["main"](tvm.runtime.tensor(values), result)
    np.testing.assert_allclose(result.numpy(), np.exp(values) + values, rtol=1e-5)


def test_threads_can_be_chosen():
    assert detect_local(threads=1).threads == 1
    assert detect_local(threads=7).threads == 7
    with pytest.raises(TargetError):
        detect_local(threads=0)


@pytest.mark.parametrize("mcpu", ["znver5", "sapphirerapids", "skylake-avx512"])
def test_a_hypervisor_that_hides_avx512(mcpu):
    everything = checkable_features("x86_64")
    visible = frozenset(name for name in everything if not name.startswith("avx512"))
    mattr = adjust(X86, mcpu, visible, everything)
    features = llvm.cpu_features(X86, mcpu, mattr)
    assert not [name for name in features if name.startswith("avx512")]
    assert {"avx2", "fma"} <= features
    assert llvm.vector_shape("x86_64", features) == (256, 16)
    assert "-avx512f" in mattr


def test_nothing_is_changed_where_all_is_there():
    everything = checkable_features("x86_64")
    features = llvm.cpu_features(X86, "znver4", ())
    assert adjust(X86, "znver4", features, everything) == ()


def test_an_unknown_cpu_still_gets_its_vectors():
    present = frozenset({"sse", "sse2", "sse3", "ssse3", "sse4.1", "sse4.2", "avx", "avx2", "fma", "f16c"})
    mattr = adjust(X86, "x86-64", present, checkable_features("x86_64"))
    features = llvm.cpu_features(X86, "x86-64", mattr)
    assert {"avx2", "fma", "f16c"} <= features
    assert "avx512f" not in features


def test_generic_arm_with_dot_products():
    present = frozenset({"fp-armv8", "neon", "dotprod", "fullfp16", "lse", "rdm"})
    mattr = adjust(ARM, "generic", present, checkable_features("aarch64"))
    assert {"dotprod", "fullfp16"} <= llvm.cpu_features(ARM, "generic", mattr)
    assert missing_features(llvm.cpu_features(ARM, "generic", mattr), present, "aarch64") == ()


def test_a_phone_kernel_that_hides_sve():
    everything = checkable_features("aarch64")
    visible = everything - {"sve", "sve2"}
    mattr = adjust(ARM, "cortex-a710", visible, everything)
    assert not {"sve", "sve2"} & llvm.cpu_features(ARM, "cortex-a710", mattr)


def test_this_machine_is_a_known_cpu():
    assert detect_local().mcpu in llvm.known_cpus(detect_local().mtriple)
    assert machine_features()
