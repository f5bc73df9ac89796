"""Winograd's minimal filtering for small convolutions of stride 1: its two transforms.

F(m, r) computes m neighbouring outputs of a window of r from ``a = m + r - 1`` inputs with ``a`` multiplications where
the direct form needs ``m r``: y = A^T [(G g) * (B^T d)]. Along rows and columns of an image it is
Y = A^T [(G g G^T) * (B^T d B)] A, summed over input channels in the transformed domain, where the sum is a matrix
product for each of the positions (``products.batched``). Winograd, "Arithmetic Complexity of Computations", SIAM
1980; for convolutional networks Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016.

Tiles are counted through batch, rows and columns (``p``), and stored in groups of ``g``, which the product's
register tile is made of: ``[P/g, positions, C/b, g, b]``. All that one step of the product reads lies together then.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from fractions import Fraction
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

_WIDTH_ATTR = "edgetune.width"
_IN, _OUT = ("gather", "in_rows", "in_columns"), ("out_rows", "out_columns")
_POINTS = tuple(Fraction(n) for n in ("0", "1", "-1", "2", "-2", "1/2", "-1/2"))
"""Where the polynomials are evaluated, besides infinity: those that lose the fewest digits (Barabasz et al., "Error
Analysis and Improving the Accuracy of Winograd Convolution for Deep Neural Networks", ACM TOMS 46(4), 2020)."""
_MOST_POSITIONS = 36
"""Those of F(4x4, 3x3): with more of them, too many digits are lost."""

Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Form:
    """F(m x m', r x r').

    Attributes:
        outputs: rows and columns of a tile's outputs, m and m'.
        window: rows and columns of the convolution's window, r and r'.
    """

    outputs: tuple[int, int]
    window: tuple[int, int]

    @property
    def inputs(self) -> tuple[int, int]:
        """Rows and columns of the inputs that a tile reads."""
        return self.outputs[0] + self.window[0] - 1, self.outputs[1] + self.window[1] - 1

    @property
    def positions(self) -> int:
        """Multiplications for a tile: one for each input."""
        return math.prod(self.inputs)


def forms(window: tuple[int, int]) -> list[Form]:
    """The forms for a window of ``(rows, columns)``; none where nothing is saved, or too many digits are lost."""
    if max(window) == 1 or not all(size in (1, 3, 5) for size in window):
        return []
    sizes = [tuple(m if size > 1 else 1 for size in window) for m in (2, 4)]
    found = [Form((rows, columns), window) for rows, columns in sizes]
    return [form for form in found if form.positions <= _MOST_POSITIONS]


@functools.cache
def matrices(m: int, r: int) -> tuple[Matrix, Matrix, Matrix]:
    """A^T ``[m, a]``, B^T ``[a, a]`` and G ``[a, r]`` of F(m, r), a = m + r - 1.

    The transpose of Toom and Cook's product of polynomials: with a - 1 points x_j and infinity, row j of G evaluates
    the filter at x_j and divides it by N_j = prod (x_j - x_l), row j of B^T holds the coefficients of
    prod (x - x_l), l != j in both, and column j of A^T the powers of x_j.
    """
    points = _POINTS[: m + r - 2]
    a_t = [[x**i for x in points] + [Fraction(i == m - 1)] for i in range(m)]
    g = [
        [x**k / math.prod((x - y for y in points if y != x), start=Fraction(1)) for k in range(r)]
        for x in points
    ]
    g.append([Fraction(k == r - 1) for k in range(r)])
    b_t = [_polynomial([y for y in points if y != x]) + [Fraction(0)] for x in points] + [_polynomial(points)]
    a_rows, b_rows, g_rows = (tuple(tuple(float(v) for v in row) for row in rows) for rows in (a_t, b_t, g))
    return a_rows, b_rows, g_rows


def _polynomial(roots: Sequence[Fraction]) -> list[Fraction]:
    """Coefficients of ``prod (x - root)``, that of 1 first."""
    coefficients = [Fraction(1)]
    for root in roots:
        shifted, scaled = [Fraction(0), *coefficients], [-root * c for c in coefficients] + [Fraction(0)]
        coefficients = [a + b for a, b in zip(shifted, scaled, strict=True)]
    return coefficients


def tiles(size: tuple[int, int], padding: tuple[int, int, int, int], form: Form) -> tuple[int, int]:
    """Rows and columns of output tiles for an input of ``size`` with padding (top, left, bottom, right)."""
    height, width = _output_size(size, padding, form)
    return -(-height // form.outputs[0]), -(-width // form.outputs[1])


def _output_size(size: tuple[int, int], padding: tuple[int, int, int, int], form: Form) -> tuple[int, int]:
    return (
        size[0] + padding[0] + padding[2] - form.window[0] + 1,
        size[1] + padding[1] + padding[3] - form.window[1] + 1,
    )


def transform_weights(weight: np.ndarray, form: Form) -> np.ndarray:
    """``G g G^T`` of weights ``[O, I, r, r']``, computed in float64: ``[positions, O, I]``."""
    rows, columns = (np.asarray(matrices(*sizes)[2]) for sizes in zip(form.outputs, form.window, strict=True))
    transformed = np.einsum("ur,oirs,vs->uvoi", rows, weight.astype(np.float64), columns, optimize=True)
    return transformed.reshape(-1, *weight.shape[:2]).astype(weight.dtype)


def input_transform(
    x: te.Tensor,
    size: tuple[int, int],
    padding: tuple[int, int, int, int],
    form: Form,
    columns: int,
    group: int,
) -> te.Tensor:
    """``B^T d B`` of every tile.

    Args:
        x: ``[N, C/b, H*W, b]``.
        size: H and W.
        padding: top, left, bottom, right.
        form: sizes of tile and window.
        columns: tiles to write, a multiple of ``group``; those past the last hold zeros.
        group: tiles stored together.

    Returns:
        ``[columns/group, positions, C/b, group, b]``.
    """
    batch, blocks, _, lanes = (int(d) for d in x.shape)
    height, width = size
    (m_h, m_w), (a_h, a_w) = form.outputs, form.inputs
    b_h, b_w = (matrices(*sizes)[1] for sizes in zip(form.outputs, form.window, strict=True))
    rows, across = tiles(size, padding, form)
    top, left = padding[:2]

    def gathered(c: te.Var, p: te.Var, r: te.Var, s: te.Var, i: te.Var) -> te.PrimExpr:
        y = p // across % rows * m_h + r - top
        z = p % across * m_w + s - left
        inside = te.all(p < batch * rows * across, y >= 0, y < height, z >= 0, z < width)
        return te.if_then_else(
            inside, x[p // (rows * across), c, y * width + z, i], tvm.tirx.const(0, x.dtype)
        )

    gather = te.compute((blocks, columns, a_h, a_w, lanes), gathered, name=_IN[0])
    by_rows = te.compute(
        (blocks, columns, a_h, a_w, lanes),
        lambda c, p, u, s, i: _row_of(b_h, u, lambda r: gather(c, p, r, s, i)),
        name=_IN[1],
    )
    return te.compute(
        (columns // group, form.positions, blocks, group, lanes),
        lambda q, e, c, k, i: _row_of(b_w, e % a_w, lambda s: by_rows(c, q * group + k, e // a_w, s, i)),
        name=_IN[2],
        attrs={KERNEL_ATTR: KIND},
    )


def output_transform(
    x: te.Tensor, batch: int, size: tuple[int, int], padding: tuple[int, int, int, int], form: Form
) -> te.Tensor:
    """``A^T x A`` of every tile, put together: ``[P/g, positions, O/b, g, b]`` to ``[N, O/b, OH*OW, b]``.

    ``size`` and ``padding`` are those of the convolution's input.
    """
    groups, _, blocks, group, lanes = (int(d) for d in x.shape)
    (m_h, m_w), a_w = form.outputs, form.inputs[1]
    at_h, at_w = (matrices(*sizes)[0] for sizes in zip(form.outputs, form.window, strict=True))
    rows, across = tiles(size, padding, form)
    out_h, out_w = _output_size(size, padding, form)
    by_rows = te.compute(
        (blocks, groups * group, m_h, a_w, lanes),
        lambda o, p, u, s, i: _row_of(at_h, u, lambda r: x(p // group, r * a_w + s, o, p % group, i)),
        name=_OUT[0],
    )
    tile = te.compute(
        (blocks, groups * group, m_h, m_w, lanes),
        lambda o, p, u, v, i: _row_of(at_w, v, lambda s: by_rows(o, p, u, s, i)),
        name=_OUT[1],
        attrs={KERNEL_ATTR: KIND, _WIDTH_ATTR: out_w},
    )

    def flat(n: te.Var, o: te.Var, f: te.Var, i: te.Var) -> te.PrimExpr:
        y, z = unflatten(f, out_h, out_w)
        return tile[o, (n * rows + y // m_h) * across + z // m_w, y % m_h, z % m_w, i]

    return te.compute((batch, blocks, out_h * out_w, lanes), flat, name="flatten")


def _row_of(matrix: Matrix, row: te.PrimExpr, value: Callable[[int], te.PrimExpr]) -> te.PrimExpr:
    """Row ``row`` of a constant matrix times a vector; ``row`` becomes a constant when its loop is unrolled."""
    *others, result = [_product(coefficients, value) for coefficients in matrix]
    for index, product in reversed(list(enumerate(others))):
        result = tvm.tirx.Select(row == index, product, result)
    return result


def _product(coefficients: Sequence[float], value: Callable[[int], te.PrimExpr]) -> te.PrimExpr:
    """The sum of the terms whose factor is not zero; positive ones first, so that none needs a negation."""
    total: Any = None
    for position in sorted(range(len(coefficients)), key=lambda p: coefficients[p] < 0):
        factor = coefficients[position]
        if not factor:
            continue
        term = value(position)
        if abs(factor) != 1:
            term = term * tvm.tirx.const(abs(factor), str(term.ty.dtype))
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
