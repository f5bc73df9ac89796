"""Arguments of kernels, and when results agree."""

import numpy as np
import pytest

from edgetune.tolerances import TOLERANCES
from edgetune.tuning.arguments import (
    ArgumentSpec,
    argument_specs,
    disagreement,
    poison,
    random_arguments,
)


def specs_of(task):
    import tvm

    return argument_specs(tvm.ir.load_json(task.ir)["main"])


def test_specs_tell_results_from_inputs(kernels):
    assert specs_of(kernels.matmul(8)) == (
        ArgumentSpec("float32", (8, 8), False),
        ArgumentSpec("float32", (8, 8), False),
        ArgumentSpec("float32", (8,), False),
        ArgumentSpec("float32", (8, 8), True),
    )
    assert [spec.written for spec in specs_of(kernels.conv())] == [False, False, True]
    assert specs_of(kernels.add((3, 5), dtype="int8"))[0].nbytes == 15


def test_dynamic_shapes_are_refused():
    import tvm
    from tvm import te

    n = tvm.tirx.Var("n", "int32")
    x = te.placeholder((n,))
    func = te.create_prim_func([x, te.compute((n,), lambda i: x[i] + 1.0)])
    with pytest.raises(ValueError, match="dynamic shape"):
        argument_specs(func)


@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64", "bool"]
)
def test_random_arguments(dtype):
    specs = (ArgumentSpec(dtype, (64, 32), False), ArgumentSpec(dtype, (64, 32), True))
    value, result = random_arguments(specs, "0123456789abcdef")
    again, _ = random_arguments(specs, "0123456789abcdef")
    other, _ = random_arguments(specs, "0123456789abcdee")
    np.testing.assert_array_equal(value, again)
    assert not np.array_equal(value, other)
    assert str(value.dtype) == dtype
    assert value.shape == (64, 32)
    assert len(np.unique(value)) > 1
    if dtype in ("int32", "int64"):
        assert set(np.unique(value)) == {0, 1}, "mostly indices: every axis has two places, or one"
    # What no kernel wrote is never taken for a result.
    if dtype != "bool":
        assert disagreement(value, result)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_rounding_passes_and_errors_do_not(dtype):
    generator = np.random.default_rng(0)
    expected = generator.standard_normal((50, 50)).astype(dtype)
    tolerance = TOLERANCES[dtype].kernel
    assert disagreement(expected, expected * (1 + tolerance / 4)) is None
    wrong = expected.copy()
    wrong[3, 4] += 10 * tolerance
    message = disagreement(expected, wrong)
    assert message
    assert "1 of 2500" in message
    assert "[3, 4]" in message


def test_another_order_of_a_long_sum_passes():
    terms = np.random.default_rng(0).standard_normal((64, 1 << 16)).astype(np.float32)
    forward = np.array([np.add.accumulate(row)[-1] for row in terms])
    assert disagreement(terms.sum(axis=1, dtype=np.float32), forward) is None


def test_nan_and_infinity_agree_with_themselves_only():
    special = np.array([np.nan, np.inf, -np.inf, 1.0], np.float32)
    assert disagreement(special, special) is None
    for position in range(3):
        other = special.copy()
        other[position] = 1.0
        assert disagreement(special, other)
    assert disagreement(np.ones(4, np.float32), special)
    assert disagreement(np.full(3, np.nan, np.float32), np.full(3, np.nan, np.float32)) is None


def test_integers_agree_exactly():
    expected = np.arange(10, dtype=np.int8)
    assert disagreement(expected, expected) is None
    assert disagreement(expected, expected + np.int8(1))


def test_zero_results_are_compared_too():
    zeros = np.zeros(5, np.float32)
    assert disagreement(zeros, zeros) is None
    assert disagreement(zeros, zeros + np.float32(1e-3))


def test_poison_is_never_right():
    assert np.isnan(poison(ArgumentSpec("float32", (3,), True))).all()
    assert (poison(ArgumentSpec("uint8", (3,), True)) == 0x5A).all()
    assert poison(ArgumentSpec("float32", (), True)).shape == ()
