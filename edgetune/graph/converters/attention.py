"""Attention, MultiHeadAttention and RotaryEmbedding of com.microsoft, out of products and softmax."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from tvm import relax

from edgetune.errors import UnsupportedModelError
from edgetune.graph.converters.base import Node, const, converter, dtype, shape
from edgetune.graph.converters.fused import number

MASK_VALUE = -10000.0
"""What ONNX Runtime adds to the score of a masked position unless the model says otherwise."""


def attention(node: Node) -> Any:
    """Attention: projections of one input, then attention; outputs the result and the present keys and values."""
    if node.int("do_rotary", 0) or node.int("past_present_share_buffer", 0):
        raise UnsupportedModelError("Attention with rotary embedding or a shared buffer is not implemented")
    x, weights, bias = node.needed(0), node.needed(1), node.input(2)
    heads = int(node.attributes["num_heads"])
    width = shape(weights)[1]
    sizes = node.ints("qkv_hidden_sizes") or [width // 3] * 3
    projected = node.emit(relax.op.matmul(x, weights))
    if bias is not None:
        projected = node.emit(relax.op.add(projected, bias))
    ends = [0, *(int(e) for e in np.cumsum(sizes))]
    q, k, v = (
        _split_heads(
            node,
            node.emit(relax.op.strided_slice(projected, axes=[2], begin=[begin], end=[end])),
            heads,
        )
        for begin, end in itertools.pairwise(ends)
    )
    present = None
    past = node.input(4)
    if past is not None:
        k, v = (_after(node, _half(node, past, i), side) for i, side in enumerate((k, v)))
    if node.outputs > 1:
        if shape(k) != shape(v):
            raise UnsupportedModelError(
                "Attention with values of another width than its keys cannot give both as one tensor: export the "
                "model without the output 'present'"
            )
        present = node.emit(relax.op.stack([k, v], 0))
    length, keys = shape(x)[1], shape(k)[2]
    mask = _mask(node, node.input(3), length, keys, keys - length)
    return [_attend(node, q, k, v, [mask, node.input(5)]), present]


def multi_head_attention(node: Node) -> Any:
    """MultiHeadAttention: attention of given queries, keys and values; outputs the result, present keys and values."""
    query, key, value, bias = (node.input(i) for i in range(4))
    heads = int(node.attributes["num_heads"])
    if key is None or value is None or len(shape(query)) != 3:
        raise UnsupportedModelError(
            "MultiHeadAttention with packed queries, keys and values is not implemented"
        )
    sides = [query, key, value]
    begin = 0
    for i, side in enumerate(sides):
        if len(shape(side)) == 4:
            continue
        width = shape(side)[2]
        if bias is not None:
            part = node.emit(relax.op.strided_slice(bias, axes=[0], begin=[begin], end=[begin + width]))
            side = node.emit(relax.op.add(side, part))
        begin += width
        sides[i] = _split_heads(node, side, heads)
    if bias is not None and any(len(shape(x)) == 4 for x in (key, value)):
        raise UnsupportedModelError(
            "MultiHeadAttention with a bias and keys that are split already is not implemented"
        )
    q, k, v = sides
    own = shape(k)[2]
    if node.input(6) is not None:
        k, v = _after(node, node.input(6), k), _after(node, node.needed(7), v)
    if node.input(8) is not None:
        raise UnsupportedModelError("MultiHeadAttention with a shared buffer is not implemented")
    mask = _mask(node, node.input(4), shape(q)[2], shape(k)[2], shape(k)[2] - own)
    return [_attend(node, q, k, v, [mask, node.input(5)]), k, v]


def _split_heads(node: Node, x: Any, heads: int) -> Any:
    """``[B, S, N * H]`` to ``[B, N, S, H]``."""
    batch, length, width = shape(x)
    split = relax.op.reshape(x, (batch, length, heads, width // heads))
    return node.emit(relax.op.permute_dims(split, [0, 2, 1, 3]))


def _half(node: Node, past: Any, index: int) -> Any:
    taken = node.emit(relax.op.strided_slice(past, axes=[0], begin=[index], end=[index + 1]))
    return node.emit(relax.op.squeeze(taken, [0]))


def _after(node: Node, past: Any, new: Any) -> Any:
    """Keys or values of earlier steps, then those of this one; an empty past adds none."""
    return new if shape(past)[2] == 0 else node.emit(relax.op.concat([past, new], 2))


def _mask(node: Node, mask: Any, queries: int, keys: int, past: int) -> Any:
    """What is added to the scores, ``[B or 1, 1, S or 1, T]``; None where nothing is masked.

    ``past`` of the ``keys`` are of earlier steps.
    """
    total = None
    value = node.float("mask_filter_value", MASK_VALUE)
    if mask is not None:
        sizes = shape(mask)
        if len(sizes) == 1:
            total = _length_mask(node, mask, keys, value)
        elif len(sizes) in (2, 3) and sizes[-1] == keys:
            shown = relax.op.astype(relax.op.not_equal(mask, relax.const(0, dtype(mask))), "float32")
            hidden = relax.op.multiply(
                relax.op.subtract(relax.const(1.0), shown), relax.const(value, "float32")
            )
            middle = [1, 1] if len(sizes) == 2 else [1, sizes[1]]
            total = node.emit(relax.op.reshape(hidden, (sizes[0], *middle, keys)))
        else:
            raise UnsupportedModelError(f"an attention mask of shape {list(sizes)} is not implemented")
    if node.int("unidirectional", 0):
        if keys - past > queries:
            raise UnsupportedModelError(
                "causal attention to more keys than there are queries is not implemented: ONNX Runtime hides later "
                "keys from all queries but the last; give the mask as an input"
            )
        before = np.arange(keys)[None, :] <= np.arange(queries)[:, None] + past
        causal = const(np.where(before, 0, np.finfo(np.float32).min).astype(np.float32)[None, None])
        # The lower of the two, not their sum, which would overflow.
        total = causal if total is None else node.emit(relax.op.minimum(total, causal))
    return total


def _length_mask(node: Node, lengths: Any, keys: int, value: float) -> Any:
    """A mask from the number of valid positions of each sequence."""
    batch = shape(lengths)[0]
    if batch != shape(node.needed(0))[0]:
        raise UnsupportedModelError("an attention mask of starts and ends is not implemented")
    column = relax.op.reshape(lengths, (batch, 1, 1, 1))
    position = const(np.arange(keys, dtype=dtype(lengths)).reshape(1, 1, 1, keys))
    hidden = relax.op.astype(relax.op.greater_equal(position, column), "float32")
    return node.emit(relax.op.multiply(hidden, relax.const(value, "float32")))


def _attend(node: Node, q: Any, k: Any, v: Any, added: list[Any]) -> Any:
    """Softmax of scaled scores plus masks, times the values; ``[B, S, N * H]``."""
    batch, heads, length, depth = shape(q)
    scale = node.float("scale", 0.0) or 1 / math.sqrt(depth)
    scores = node.emit(relax.op.matmul(q, relax.op.permute_dims(k, [0, 1, 3, 2])))
    scores = node.emit(relax.op.multiply(scores, number(scale, scores)))
    for term in added:
        if term is not None:
            scores = node.emit(relax.op.add(scores, term))
    weights = node.emit(relax.op.nn.softmax(scores, -1))
    mixed = relax.op.permute_dims(node.emit(relax.op.matmul(weights, v)), [0, 2, 1, 3])
    return node.emit(relax.op.reshape(mixed, (batch, length, heads * shape(v)[3])))


def rotary_embedding(node: Node) -> Any:
    """RotaryEmbedding: pairs of features turned by an angle of their position."""
    if node.int("is_packed_batching", 0) or node.float("scale", 1.0) != 1.0:
        raise UnsupportedModelError("RotaryEmbedding of packed batches or with a scale is not implemented")
    x, positions, cos, sin = (node.needed(i) for i in range(4))
    sizes = shape(x)
    turned = 2 * shape(cos)[1]
    if len(sizes) == 3:
        batch, length, width = sizes
        partial = node.int("rotary_embedding_dim", 0)
        depth = width // node.int("num_heads", 0) if partial or node.int("num_heads", 0) else turned
        x = node.emit(relax.op.reshape(x, (batch, length, width // depth, depth)))
    else:
        batch, _, length, depth = sizes
        x = node.emit(relax.op.permute_dims(x, [0, 2, 1, 3]))
    if int(np.prod(shape(positions))) == 1:
        steps = const(np.arange(length, dtype=np.int64)[None])
        positions = node.emit(relax.op.add(steps, relax.op.reshape(positions, (1, 1))))
    tables = []
    for table in (cos, sin):
        rows = relax.op.take(table, positions, axis=0, mode="clip")
        tables.append(node.emit(relax.op.expand_dims(node.emit(rows), 2)))
    head = x if turned == depth else _features(node, x, 0, turned)
    result = _rotate(node, head, tables, bool(node.int("interleaved", 0)))
    if turned < depth:
        result = node.emit(relax.op.concat([result, _features(node, x, turned, depth)], 3))
    if len(sizes) == 4:
        result = node.emit(relax.op.permute_dims(result, [0, 2, 1, 3]))
    return node.emit(relax.op.reshape(result, sizes))


def _features(node: Node, x: Any, begin: int, end: int) -> Any:
    return node.emit(relax.op.strided_slice(x, axes=[3], begin=[begin], end=[end]))


def _rotate(node: Node, x: Any, tables: list[Any], interleaved: bool) -> Any:
    """Turn the pairs of ``[B, S, N, D]``: neighbours where interleaved, else one of each half."""
    batch, length, heads, depth = shape(x)
    cos, sin = tables
    if interleaved:
        pairs = node.emit(relax.op.reshape(x, (batch, length, heads, depth // 2, 2)))
        a, b = (
            node.emit(relax.op.squeeze(node.emit(relax.op.strided_slice(pairs, [4], [i], [i + 1])), [4]))
            for i in (0, 1)
        )
    else:
        a, b = _features(node, x, 0, depth // 2), _features(node, x, depth // 2, depth)
    first = node.emit(relax.op.subtract(relax.op.multiply(a, cos), relax.op.multiply(b, sin)))
    second = node.emit(relax.op.add(relax.op.multiply(a, sin), relax.op.multiply(b, cos)))
    if interleaved:
        return node.emit(relax.op.reshape(relax.op.stack([first, second], 4), (batch, length, heads, depth)))
    return node.emit(relax.op.concat([first, second], 3))


CONVERTERS: dict[str, type] = {
    "com.microsoft.Attention": converter(attention),
    "com.microsoft.MultiHeadAttention": converter(multi_head_attention),
    "com.microsoft.RotaryEmbedding": converter(rotary_embedding),
}
