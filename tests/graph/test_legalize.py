"""The functions of ours against NumPy in float64, over the whole range of float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te

from edgetune.graph.legalize import exp, power, sigmoid, tanh
from edgetune.targets import Target

COUNT = 1 << 20
SMALLEST_NORMAL = float(np.finfo(np.float32).tiny)

Scalar = Callable[[Any], Any]


def compiled(function: Scalar, target: Target) -> Callable[[np.ndarray], np.ndarray]:
    """The function over a million values, in vectors."""
    x = te.placeholder((COUNT,), "float32", name="x")
    y = te.compute((COUNT,), lambda i: function(x(i)), name="y")
    sch = tvm.s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([x, y])}))
    (loop,) = sch.get_loops(sch.get_sblock("y"))
    sch.vectorize(sch.split(loop, [None, target.lanes("float32")])[1])
    library = tvm.tirx.build(sch.mod, target=target.tvm())

    def run(values: np.ndarray) -> np.ndarray:
        result = tvm.runtime.tensor(np.empty(COUNT, np.float32))
        library["main"](tvm.runtime.tensor(values), result)
        return result.numpy()

    return run


def every_magnitude() -> np.ndarray:
    """Evenly spaced bit patterns: every exponent, both signs, denormals, infinities, NaNs; the edges among them."""
    values = (np.arange(COUNT, dtype=np.uint64) * 4093 + 17).astype(np.uint32).view(np.float32)
    edges = np.array(
        [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, SMALLEST_NORMAL, 3.4e38, -3.4e38, 88.7, 88.8, -87.3, -88.0,
         0.625, -0.625, 0.6249999, 9.0, -9.0],
        np.float32,
    )  # fmt: skip
    values[: edges.size] = edges
    # Most bit patterns are huge or tiny; half of the values lie where the functions do something.
    values[COUNT // 2 :] = np.linspace(-110, 110, COUNT // 2, dtype=np.float32)
    return values


def units_in_the_last_place(got: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Error in units of the exact result's last place; below the smallest normal number, of that number's."""
    with np.errstate(all="ignore"):
        rounded = exact.astype(np.float32)
        spacing = np.spacing(np.maximum(np.abs(rounded), np.float32(SMALLEST_NORMAL))).astype(np.float64)
        error = np.abs(got.astype(np.float64) - exact) / spacing
        same = (got == rounded) | (np.isnan(got) & np.isnan(exact))
    return np.where(same, 0.0, np.where(np.isnan(error), np.inf, error))


@pytest.mark.parametrize(
    ("function", "exact", "bound"),
    [
        (exp, np.exp, 2),
        (sigmoid, lambda x: 1 / (1 + np.exp(-x)), 3),
        (tanh, np.tanh, 2),
        *((lambda x, p=p: power(x, p), lambda x, p=p: np.power(x, p), 5) for p in (3.0, -2.0, 0.0)),
    ],
    ids=["exp", "sigmoid", "tanh", "x^3", "x^-2", "x^0"],
)
def test_error_bounds(function: Scalar, exact: Callable, bound: float, local_target: Target) -> None:
    values = every_magnitude()
    with np.errstate(all="ignore"):
        expected = exact(values.astype(np.float64))
    got = compiled(function, local_target)(values)
    error = units_in_the_last_place(got, expected)
    # Results too small for a normal number may be zero: 2^23 units of the smallest.
    tiny = np.abs(expected) < SMALLEST_NORMAL
    assert np.all(np.abs(got[tiny]) <= 2 * SMALLEST_NORMAL)
    worst = np.where(tiny, 0.0, error)
    place = int(worst.argmax())
    assert worst[place] <= bound, (values[place], got[place], expected[place])


@pytest.mark.parametrize("exponent", [0.5, 0.75, -0.75, 1.25])
def test_error_bound_of_roots(exponent: float, local_target: Target) -> None:
    values = np.abs(every_magnitude())
    with np.errstate(all="ignore"):
        expected = np.power(values.astype(np.float64), exponent)
    got = compiled(lambda x: power(x, exponent), local_target)(values)
    error = np.where(np.abs(expected) < SMALLEST_NORMAL, 0.0, units_in_the_last_place(got, expected))
    assert error.max() <= 5


def test_infinite_exponents(local_target: Target) -> None:
    values = np.linspace(-2, 2, COUNT, dtype=np.float32)
    with np.errstate(all="ignore"):
        for exponent in (np.inf, -np.inf):
            got = compiled(lambda x, e=exponent: power(x, e), local_target)(values)
            np.testing.assert_array_equal(got, np.power(values, np.float32(exponent)))


def test_other_types_use_the_library(local_target: Target) -> None:
    x = te.placeholder((8,), "float64", name="x")
    y = te.compute((8,), lambda i: tanh(exp(x(i))), name="y")
    library = tvm.tirx.build(tvm.IRModule({"main": te.create_prim_func([x, y])}), target=local_target.tvm())
    values = np.linspace(-3, 3, 8)
    result = tvm.runtime.tensor(np.empty(8))
    library["main"](tvm.runtime.tensor(values), result)
    np.testing.assert_allclose(result.numpy(), np.tanh(np.exp(values)), rtol=1e-14)
