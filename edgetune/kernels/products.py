"""Convolutions and matrix products as one register-tiled contraction.

Data layout: activations are ``[N, ceil(C / b), H * W, b]`` ("blocked"): ``b`` is the number of vector lanes,
so that one load fills a register with neighbouring channels, and the two spatial dimensions are one, so that a
pointwise convolution can tile across rows. Weights are packed once, at compile time, in the order in which the
inner loops read them. The inner loops keep a tile of ``blocks x columns`` accumulators in registers, which is
how Goto and van de Geijn's matrix product ("Anatomy of High-Performance Matrix Multiplication", ACM TOMS 34(3),
2008) and the direct convolution of Georganas et al. ("Anatomy of High-Performance Deep Learning Convolutions on
SIMD Architectures", SC 2018) are built.
"""

from __future__ import annotations

import tvm
from tvm import te

from edgetune.kernels.schedules import KERNEL_ATTR, unflatten
from edgetune.kernels.tiles import RegisterFile, padded_columns

KIND = "contraction"
"""The family that schedules these (``kernels.contraction``)."""
STAGE = "contraction"
"""Name of the block that multiplies and adds."""
AXES = ("n", "o", "h", "w", "i", "rc", "kh", "kw", "ri")
"""Its axes: batch, output block, row, column, output lane; input block, window, input lane."""


def conv2d(
    x: te.Tensor,
    weight: te.Tensor,
    size: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int, int, int],
    dilation: tuple[int, int],
    groups: int,
    plain_input: bool,
    registers: RegisterFile,
) -> te.Tensor:
    """Direct 2-d convolution with blocked output.

    Args:
        x: ``[N, C/b, H*W, b]``, or ``[N, C, H, W]`` when ``plain_input`` (few input channels).
        weight: ``[O/b, I/b, KH, KW, b, b]`` (output channel innermost); ``[O/b, I, KH, KW, 1, b]`` for plain input.
        size: height and width of the input.
        stride, padding, dilation: as in ONNX Conv; padding is top, left, bottom, right.
        groups: number of groups; blocks must not straddle them.
        plain_input: whether ``x`` is in NCHW.
        registers: of the target, which decide how many columns are computed.

    Returns:
        ``[N, O/b, OH*OW, b]``.
    """
    height, width = size
    batch = x.shape[0]
    out_blocks, in_blocks, kernel_h, kernel_w, inner, lanes = (int(d) for d in weight.shape)
    top, left, bottom, right = padding
    out_h = (height + top + bottom - dilation[0] * (kernel_h - 1) - 1) // stride[0] + 1
    out_w = (width + left + right - dilation[1] * (kernel_w - 1) - 1) // stride[1] + 1
    blocks_per_group = out_blocks // groups
    if kernel_h == kernel_w == 1 and tuple(stride) == (1, 1) and not any(padding) and not plain_input:
        # Rows need not be told apart: one row of H*W columns tiles better.
        height, width, out_h, out_w = 1, height * width, 1, height * width
    columns = padded_columns(out_blocks // groups, out_w, registers)
    right += (columns - out_w) * stride[1]

    def read(n: te.Var, c: te.PrimExpr, y: te.PrimExpr, z: te.PrimExpr, i: te.PrimExpr) -> te.PrimExpr:
        return x[n, c, y, z] if plain_input else x[n, c, y * width + z, i]

    source = read
    if any((top, left, bottom, right)):
        padded = te.compute(
            (batch, int(x.shape[1]), height + top + bottom, width + left + right, inner),
            lambda n, c, y, z, i: te.if_then_else(
                te.all(y >= top, y < top + height, z >= left, z < left + width),
                read(n, c, y - top, z - left, i),
                tvm.tirx.const(0, x.dtype),
            ),
            name="padding",
        )

        def source(n: te.Var, c: te.PrimExpr, y: te.PrimExpr, z: te.PrimExpr, i: te.PrimExpr) -> te.PrimExpr:
            return padded[n, c, y, z, i]

    rc = te.reduce_axis((0, in_blocks), "rc")
    kh = te.reduce_axis((0, kernel_h), "kh")
    kw = te.reduce_axis((0, kernel_w), "kw")
    ri = te.reduce_axis((0, inner), "ri")

    def channel(o: te.Var) -> te.PrimExpr:
        return rc if groups == 1 else (o // blocks_per_group) * in_blocks + rc

    result = te.compute(
        (batch, out_blocks, out_h, columns, lanes),
        lambda n, o, h, w, i: te.sum(
            source(n, channel(o), h * stride[0] + kh * dilation[0], w * stride[1] + kw * dilation[1], ri)
            * weight[o, rc, kh, kw, ri, i],
            axis=[rc, kh, kw, ri],
        ),
        name=STAGE,
        attrs={KERNEL_ATTR: KIND},
    )
    return te.compute(
        (batch, out_blocks, out_h * out_w, lanes),
        lambda n, o, f, i: result[(n, o, *unflatten(f, out_h, out_w), i)],
        name="flatten",
    )


def pointwise_shuffled(x: te.Tensor, weight: te.Tensor, groups: int, shuffle: int) -> te.Tensor:
    """Grouped pointwise convolution of channels that lie as they did before they were shuffled.

    Args:
        x: ``[N, C/b, H*W, b]``, channels in whole blocks within each of ``shuffle`` groups.
        weight: ``[O/b, 1, 1, 1, I, b]``, output channel innermost, no input channel padded.
        groups: of the convolution.
        shuffle: groups of the shuffle: its channel ``s`` is channel ``s // shuffle`` of group ``s % shuffle``.

    Returns:
        ``[N, O/b, H*W, b]``.
    """
    batch, blocks, columns, lanes = (int(d) for d in x.shape)
    out_blocks, _, _, _, depth, _ = (int(d) for d in weight.shape)
    rc, kh, kw, ri = (
        te.reduce_axis((0, extent), name) for extent, name in zip((1, 1, 1, depth), AXES[5:], strict=True)
    )

    def read(n: te.Var, o: te.Var, w: te.Var) -> te.PrimExpr:
        channel = o // (out_blocks // groups) * depth + ri
        within = channel // shuffle
        return x[n, channel % shuffle * (blocks // shuffle) + within // lanes, w, within % lanes]

    result = te.compute(
        (batch, out_blocks, 1, columns, lanes),
        lambda n, o, h, w, i: te.sum(read(n, o, w) * weight[o, rc, kh, kw, ri, i], axis=[rc, kh, kw, ri]),
        name=STAGE,
        attrs={KERNEL_ATTR: KIND},
    )
    return te.compute(
        (batch, out_blocks, columns, lanes), lambda n, o, f, i: result[n, o, 0, f, i], name="flatten"
    )


def dense(x: te.Tensor, weight: te.Tensor, columns: int) -> te.Tensor:
    """Matrix product with a packed constant right-hand side.

    Args:
        x: ``[..., M, K]`` with leading dimensions of one.
        weight: ``[ceil(N / b), 1, 1, 1, K, b]``.
        columns: N.

    Returns:
        ``[..., M, N]``.
    """
    out_blocks, _, _, _, depth, lanes = (int(d) for d in weight.shape)
    lead = [0] * (len(x.shape) - 2)
    rows = x.shape[-2]
    rc = te.reduce_axis((0, 1), "rc")
    kh = te.reduce_axis((0, 1), "kh")
    kw = te.reduce_axis((0, 1), "kw")
    ri = te.reduce_axis((0, depth), "ri")
    result = te.compute(
        (1, out_blocks, 1, rows, lanes),
        lambda n, o, h, w, i: te.sum(x[(*lead, w, ri)] * weight[o, rc, kh, kw, ri, i], axis=[rc, kh, kw, ri]),
        name=STAGE,
        attrs={KERNEL_ATTR: KIND},
    )
    return te.compute(
        (*x.shape[:-1], columns),
        lambda *index: result[0, index[-1] // lanes, 0, index[-2], index[-1] % lanes],
        name="flatten",
    )


def batched(x: te.Tensor, weight: te.Tensor, group: int) -> te.Tensor:
    """Products of matrices that each have a packed constant side, as Winograd's convolution needs them.

    Args:
        x: ``[P/group, E, C/b, group, b]``: E matrices of P columns (``kernels.winograd``).
        weight: ``[E, O/b, C/b, b, b]``, output channel innermost.
        group: columns stored together.

    Returns:
        ``[P/group, E, O/b, group, b]``.
    """
    count, out_blocks, in_blocks, inner, lanes = (int(d) for d in weight.shape)
    groups = int(x.shape[0])
    rc, kh, kw, ri = (
        te.reduce_axis((0, extent), name)
        for extent, name in zip((in_blocks, 1, 1, inner), AXES[5:], strict=True)
    )
    result = te.compute(
        (count, out_blocks, 1, groups * group, lanes),
        lambda n, o, h, w, i: te.sum(
            x[w // group, n, rc, w % group, ri] * weight[n, o, rc, ri, i], axis=[rc, kh, kw, ri]
        ),
        name=STAGE,
        attrs={KERNEL_ATTR: KIND},
    )
    return te.compute(
        (groups, count, out_blocks, group, lanes),
        lambda q, n, o, k, i: result[n, o, 0, q * group + k, i],
        name="flatten",
    )
