"""Convolutions with small windows by Winograd's minimal filtering, where that costs less than the direct form."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax

from edgetune.graph.blocked import BlockedValue, Rewriter
from edgetune.graph.geometry import Geometry
from edgetune.kernels import products, tiles, winograd
from edgetune.targets import Target

# Fitted to measurements on an AVX2 CPU with two cores; what they decide depends on their proportions only.
_PRODUCTS_A_CYCLE = 1.8
"""Vector multiply-adds of a core in a contraction: two units, a tenth lost."""
_INPUT_CYCLES, _OUTPUT_CYCLES = 8.0, 12.0
"""Cycles for each vector of a tile's positions: its transform; its transform and its part in the product."""
_NEAR_BYTES, _FAR_BYTES = 12.0, 6.0
"""Bytes a cycle: each core from the caches, all cores together from memory."""
_PASSES = 2.5
"""How often an intermediate result is moved: written, read, and partly read before it is written."""
_MARGIN = 0.85
"""An estimate that is not clearly lower is not worth the digits that Winograd costs."""
_OPAQUE, _PRODUCT_LIKE = 8, 4
"""Relax's fusion patterns (``OpPatternKind``): fused with nothing; takes elementwise work after it."""


def best_form(
    target: Target, shape: tuple[int, int, int], geometry: Geometry, groups: int
) -> winograd.Form | None:
    """The form that is estimated to be fastest; None where the direct convolution is, or must be used.

    Args:
        target: whose vectors and caches count.
        shape: batch, input and output channels.
        geometry: of the convolution.
        groups: of the convolution.
    """
    batch, channels, outputs = shape
    forms = winograd.forms(geometry.kernel)
    if not forms or groups != 1 or geometry.stride != (1, 1) or geometry.dilation != (1, 1):
        return None
    lanes = target.lanes("float32")
    out_blocks, in_blocks = -(-outputs // lanes), -(-channels // lanes)
    pixels = batch * geometry.output[0] * geometry.output[1]

    def moving(weights: float, intermediate: float) -> float:
        cached = weights + intermediate <= target.l3_bytes + target.l2_bytes
        moved = weights + _PASSES * intermediate
        return moved / _NEAR_BYTES if cached else moved * target.threads / _FAR_BYTES

    window = math.prod(geometry.kernel)
    products = pixels * window * channels * out_blocks
    direct = products / _PRODUCTS_A_CYCLE + moving(4 * window * channels * outputs, 0)

    def cost(form: winograd.Form) -> float:
        rows, across = winograd.tiles(geometry.size, geometry.padding, form)
        vectors = form.positions * batch * rows * across
        products = vectors * channels * out_blocks
        transforms = vectors * (in_blocks * _INPUT_CYCLES + out_blocks * _OUTPUT_CYCLES)
        memory = moving(4 * form.positions * channels * outputs, 4 * vectors * (channels + outputs))
        return products / _PRODUCTS_A_CYCLE + transforms + memory

    best = min(forms, key=cost)
    return best if cost(best) < _MARGIN * direct else None


def convolve(
    rewriter: Rewriter, value: BlockedValue, weight: np.ndarray, geometry: Geometry, form: winograd.Form
) -> Any:
    """Emit the convolution of a blocked value with ``weight [O, I, r, r']`` in a form for its window.

    Returns:
        What it is bound to: ``[N, O/b, OH*OW, b]``.
    """
    lanes = rewriter.lanes
    out_channels = weight.shape[0]
    batch = int(value.expr.ty.shape[0])
    rows, across = winograd.tiles(geometry.size, geometry.padding, form)
    out_blocks = -(-out_channels // lanes)
    columns = tiles.padded_columns(out_blocks, batch * rows * across, rewriter.registers)
    group = tiles.register_tiles(out_blocks, columns, rewriter.registers)[0][2]
    where = geometry.size, geometry.padding
    transformed = rewriter.emit_te(
        lambda x: winograd.input_transform(x, *where, form, columns, group), value.expr,
        name="winograd_input", primfunc_attrs={"op_pattern": _OPAQUE},
    )  # fmt: skip
    packed = _pack(winograd.transform_weights(weight, form), lanes)
    product = rewriter.emit_te(
        products.batched, transformed, relax.const(packed, "float32"), group,
        name="winograd_product", primfunc_attrs={"op_pattern": _OPAQUE},
    )  # fmt: skip
    return rewriter.emit_te(
        lambda x: winograd.output_transform(x, batch, *where, form), product,
        name="winograd_output", primfunc_attrs={"op_pattern": _PRODUCT_LIKE},
    )  # fmt: skip


def _pack(weight: np.ndarray, lanes: int) -> np.ndarray:
    """``[positions, O, I]`` to ``[positions, O/b, I/b, b (in), b (out)]``, channels padded with zeros."""
    positions, outputs, inputs = weight.shape
    padded = np.pad(weight, [(0, 0), (0, -outputs % lanes), (0, -inputs % lanes)])
    blocked: Any = padded.reshape(positions, -1, lanes, padded.shape[2] // lanes, lanes)
    return np.ascontiguousarray(blocked.transpose(0, 1, 3, 4, 2))
