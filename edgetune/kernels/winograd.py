"""Winograd's minimal filtering for 3x3 convolutions of stride 1: its two transforms.

F(m x m, 3 x 3) computes a tile of m x m outputs from ``a x a`` inputs, a = m + 2, with a^2 multiplications where
the direct form needs 9 m^2: Y = A^T [(G g G^T) * (B^T d B)] A, summed over input channels in the transformed
domain, where the sum is a matrix product for each of the a^2 positions (``products.batched``). Matrices: Lavin and
Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016.

Tiles are counted through batch, rows and columns (``p``), and stored in groups of ``g``, which the product's
register tile is made of: ``[P/g, a^2, C/b, g, b]``. All that one step of the product reads lies together then.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm
from tvm import te
from tvm.s_tir import Schedule

from edgetune.kernels.schedules import (
    KERNEL_ATTR,
    block_names,
    extent_of,
    inline_into_last,
    spread,
    unflatten,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tvm.s_tir.schedule import SBlockRV

    from edgetune.kernels.schedules import Space
    from edgetune.targets import Target

KIND = "winograd"
TILES = (2, 4)
"""Sizes m of output tiles."""

_WIDTH_ATTR = "edgetune.width"
_B = {
    2: ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1)),
    4: (
        (4, 0, -5, 0, 1, 0), (0, -4, -4, 1, 1, 0), (0, 4, -4, -1, 1, 0),
        (0, -2, -1, 2, 1, 0), (0, 2, -1, -2, 1, 0), (0, 4, 0, -5, 0, 1),
    ),
}  # fmt: skip
_A = {
    2: ((1, 1, 1, 0), (0, 1, -1, -1)),
    4: ((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1)),
}
_G = {
    2: ((1, 0, 0), (1 / 2, 1 / 2, 1 / 2), (1 / 2, -1 / 2, 1 / 2), (0, 0, 1)),
    4: (
        (1 / 4, 0, 0), (-1 / 6, -1 / 6, -1 / 6), (-1 / 6, 1 / 6, -1 / 6),
        (1 / 24, 1 / 12, 1 / 6), (1 / 24, -1 / 12, 1 / 6), (0, 0, 1),
    ),
}  # fmt: skip
_IN, _OUT = ("gather", "in_rows", "in_columns"), ("out_rows", "out_columns")


def tiles(size: tuple[int, int], padding: tuple[int, int, int, int], m: int) -> tuple[int, int]:
    """Rows and columns of output tiles for an input of ``size`` with padding (top, left, bottom, right)."""
    height, width = _output_size(size, padding)
    return -(-height // m), -(-width // m)


def _output_size(size: tuple[int, int], padding: tuple[int, int, int, int]) -> tuple[int, int]:
    return size[0] + padding[0] + padding[2] - 2, size[1] + padding[1] + padding[3] - 2


def transform_weights(weight: np.ndarray, m: int) -> np.ndarray:
    """``G g G^T`` of weights ``[O, I, 3, 3]``, computed in float64: ``[a^2, O, I]``."""
    matrix = np.asarray(_G[m])
    transformed = np.einsum("ur,oirs,vs->uvoi", matrix, weight.astype(np.float64), matrix, optimize=True)
    return transformed.reshape(-1, *weight.shape[:2]).astype(weight.dtype)


def input_transform(
    x: te.Tensor, size: tuple[int, int], padding: tuple[int, int, int, int], m: int, columns: int, group: int
) -> te.Tensor:
    """``B^T d B`` of every tile.

    Args:
        x: ``[N, C/b, H*W, b]``.
        size: H and W.
        padding: top, left, bottom, right.
        m: size of an output tile.
        columns: tiles to write, a multiple of ``group``; those past the last hold zeros.
        group: tiles stored together.

    Returns:
        ``[columns/group, a^2, C/b, group, b]``.
    """
    batch, blocks, _, lanes = (int(d) for d in x.shape)
    height, width = size
    a = m + 2
    rows, across = tiles(size, padding, m)
    top, left = padding[:2]

    def gathered(c: te.Var, p: te.Var, r: te.Var, s: te.Var, i: te.Var) -> te.PrimExpr:
        y = p // across % rows * m + r - top
        z = p % across * m + s - left
        inside = te.all(p < batch * rows * across, y >= 0, y < height, z >= 0, z < width)
        return te.if_then_else(
            inside, x[p // (rows * across), c, y * width + z, i], tvm.tirx.const(0, x.dtype)
        )

    gather = te.compute((blocks, columns, a, a, lanes), gathered, name=_IN[0])
    by_rows = te.compute(
        (blocks, columns, a, a, lanes),
        lambda c, p, u, s, i: _row_of(_B[m], u, lambda r: gather(c, p, r, s, i)),
        name=_IN[1],
    )
    return te.compute(
        (columns // group, a * a, blocks, group, lanes),
        lambda q, e, c, k, i: _row_of(_B[m], e % a, lambda s: by_rows(c, q * group + k, e // a, s, i)),
        name=_IN[2],
        attrs={KERNEL_ATTR: KIND},
    )


def output_transform(
    x: te.Tensor, batch: int, size: tuple[int, int], padding: tuple[int, int, int, int], m: int
) -> te.Tensor:
    """``A^T x A`` of every tile, put together: ``[P/g, a^2, O/b, g, b]`` to ``[N, O/b, OH*OW, b]``.

    ``size`` and ``padding`` are those of the convolution's input.
    """
    groups, _, blocks, group, lanes = (int(d) for d in x.shape)
    a = m + 2
    rows, across = tiles(size, padding, m)
    out_h, out_w = _output_size(size, padding)
    by_rows = te.compute(
        (blocks, groups * group, m, a, lanes),
        lambda o, p, u, s, i: _row_of(_A[m], u, lambda r: x(p // group, r * a + s, o, p % group, i)),
        name=_OUT[0],
    )
    tile = te.compute(
        (blocks, groups * group, m, m, lanes),
        lambda o, p, u, v, i: _row_of(_A[m], v, lambda s: by_rows(o, p, u, s, i)),
        name=_OUT[1],
        attrs={KERNEL_ATTR: KIND, _WIDTH_ATTR: out_w},
    )

    def flat(n: te.Var, o: te.Var, f: te.Var, i: te.Var) -> te.PrimExpr:
        y, z = unflatten(f, out_h, out_w)
        return tile[o, (n * rows + y // m) * across + z // m, y % m, z % m, i]

    return te.compute((batch, blocks, out_h * out_w, lanes), flat, name="flatten")


def _row_of(
    matrix: Sequence[Sequence[int]], row: te.PrimExpr, value: Callable[[int], te.PrimExpr]
) -> te.PrimExpr:
    """Row ``row`` of a constant matrix times a vector; ``row`` becomes a constant when its loop is unrolled."""
    *others, result = [_product(coefficients, value) for coefficients in matrix]
    for index, product in reversed(list(enumerate(others))):
        result = tvm.tirx.Select(row == index, product, result)
    return result


def _product(coefficients: Sequence[int], value: Callable[[int], te.PrimExpr]) -> te.PrimExpr:
    """The sum of the terms whose factor is not zero; positive ones first, so that none needs a negation."""
    total: Any = None
    for position in sorted(range(len(coefficients)), key=lambda p: coefficients[p] < 0):
        factor = coefficients[position]
        if not factor:
            continue
        term = value(position)
        if abs(factor) != 1:
            term = term * tvm.tirx.const(float(abs(factor)), str(term.ty.dtype))
        if total is None:
            total = term
        else:
            total = total + term if factor > 0 else total - term
    return total


def spaces(mod: tvm.IRModule, target: Target) -> Iterator[Space]:
    """The schedule of a transform: one vector of channels at a time, the steps of a tile unrolled."""
    names = block_names(Schedule(mod))
    if _IN[0] in names:
        yield functools.partial(_schedule_input, Schedule(mod))
    else:
        yield functools.partial(_schedule_output, Schedule(mod), target)


def _schedule_input(sch: Schedule) -> Schedule:
    gather, by_rows, last = (sch.get_sblock(name) for name in _IN)
    q, e, c, k, i = sch.get_loops(last)
    sch.reorder(q, c, k, e, i)
    sch.parallel(sch.fuse(q, c))
    sch.unroll(e)
    sch.vectorize(i)
    for block in (by_rows, gather):
        sch.compute_at(block, k, preserve_unit_loops=True)
        _in_registers(sch, block)
    return sch


def _schedule_output(sch: Schedule, target: Target) -> Schedule:
    by_rows, tile = (sch.get_sblock(name) for name in _OUT)
    last = inline_into_last(sch, tile)
    if last is None:
        raise ValueError("an output transform has a block that flattens it")
    m = int(sch.get(tile).iter_vars[2].dom.extent)
    width = int(sch.get(tile).annotations[_WIDTH_ATTR])
    loops = sch.get_loops(last)
    if len(loops) == 4 and extent_of(sch, loops[2]) % width == 0:
        n, o, f, i = loops
        h, w = sch.split(f, [None, width])
        band, h = sch.split(h, [None, m])
        sch.reorder(n, band, o, h, w, i)
        outer = sch.fuse(n, band, o)
        sch.parallel(outer)
        sch.vectorize(i)
        # One row of tiles goes through a buffer that stays in the nearest cache.
        sch.compute_at(tile, outer, preserve_unit_loops=True)
    else:
        sch.parallel(sch.fuse(*sch.get_loops(tile)[:2]))
        spread(sch, last, target)
    _in_registers(sch, tile)
    sch.compute_at(by_rows, sch.get_loops(tile)[-4], preserve_unit_loops=True)
    _in_registers(sch, by_rows)
    return sch


def _in_registers(sch: Schedule, block: SBlockRV) -> None:
    """Unroll the two loops over a tile, so that the matrices' coefficients become constants."""
    *_, first, second, lanes = sch.get_loops(block)
    sch.unroll(first)
    sch.unroll(second)
    sch.vectorize(lanes)
