"""Element by element, where TVM's importer gives other values than the standard asks, or none."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from edgetune.errors import UnsupportedModelError
from edgetune.graph import legalize
from edgetune.graph.converters.base import Node, const, converter, dtype, element, shape
from edgetune.graph.converters.quantization import element_type

_FLOATS = ("float16", "float32", "float64")


def broadcast(node: Node, function: Callable[..., Any], *operands: Any, name: str) -> Any:
    """A kernel of ``function``, applied to elements of broadcast operands."""
    sizes = tuple(int(s) for s in np.broadcast_shapes(*(shape(x) for x in operands)))

    def kernel(*tensors: te.Tensor) -> te.Tensor:
        return te.compute(sizes, lambda *i: function(*(element(t, i) for t in tensors)), name=name)

    return node.te(kernel, *operands, name=name)


def is_inf(node: Node) -> Any:
    """IsInf: of either sign, or of one."""
    x = node.needed(0)
    wanted = node.int("detect_negative", 1), node.int("detect_positive", 1)
    if all(wanted):
        return relax.op.isinf(x)
    if not any(wanted):
        return const(np.zeros(shape(x), bool))
    limit = number(-math.inf if wanted[0] else math.inf, x)
    return relax.op.equal(x, limit)


def number(value: float, like: Any) -> Any:
    """A scalar constant of the type of ``like``."""
    return relax.const(value, dtype(like))


def mod(node: Node) -> Any:
    """Mod: for floating-point numbers the C library's fmod, whose sign is made the divisor's where fmod=0."""
    a, b = node.needed(0), node.needed(1)
    if dtype(a) not in _FLOATS:
        return node.by_importer("Mod", [a, b], node.attributes)
    truncated = node.int("fmod", 0) != 0
    own = dtype(a)
    # The C library has no fmod of half precision.
    wide = "float32" if own == "float16" else own

    def remainder(x: Any, y: Any) -> Any:
        x, y = x.astype(wide), y.astype(wide)
        # An intrinsic of TVM's that no target lowers: the function of the C library itself.
        suffix = "f" if wide == "float32" else ""
        rest = tirx.call_pure_extern(wide, f"fmod{suffix}", x, y)
        zero = tirx.const(0, wide)
        if truncated:
            return rest.astype(own)
        # A rest of zero takes the divisor's sign, another rest of the wrong sign the divisor itself.
        signed = te.if_then_else(rest * y < zero, rest + y, rest)
        nothing = tirx.call_pure_extern(wide, f"copysign{suffix}", zero, y)
        return te.if_then_else(rest == zero, nothing, signed).astype(own)

    return broadcast(node, remainder, a, b, name="remainder")


def bit_shift(node: Node) -> Any:
    """BitShift: a distance below zero or of all bits shifts everything out."""
    x, distance = node.needed(0), node.needed(1)
    left = node.text("direction", "LEFT") == "LEFT"
    kind = dtype(x)
    width = np.iinfo(kind).bits
    signed = kind.startswith("int")

    def shift(value: Any, by: Any) -> Any:
        zero = tirx.const(0, kind)
        beyond = by >= tirx.const(width, kind)
        if signed:
            beyond = te.any(beyond, by < zero)
        safe = tirx.Select(beyond, zero, by)
        gone = zero if left or not signed else tirx.Select(value < zero, tirx.const(-1, kind), zero)
        return tirx.Select(beyond, gone, value << safe if left else value >> safe)

    return broadcast(node, shift, x, distance, name="bit_shift")


def power(node: Node) -> Any:
    """Pow: the result has the type of the base."""
    x, y = node.needed(0), node.needed(1)
    kinds = dtype(x), dtype(y)
    if kinds == ("float32", "float32"):
        return node.by_importer("Pow", [x, y], node.attributes)
    wide = "float32" if kinds[0] in ("float16", "float32") else "float64"
    if kinds[0] not in _FLOATS and kinds[1] not in _FLOATS:
        return broadcast(node, lambda a, b: _integer_power(a, b, kinds[0]), x, y, name="integer_power")

    def raised(a: Any, b: Any) -> Any:
        return te.power(a.astype(wide), b.astype(wide)).astype(kinds[0])

    return broadcast(node, raised, x, y, name="mixed_power")


def _integer_power(base: Any, exponent: Any, kind: str) -> Any:
    """By the C library in float64, as ONNX Runtime does: exact below 2^53."""
    return te.power(base.astype("float64"), exponent.astype("float64")).astype(kind)


def elu(node: Node) -> Any:
    """Elu in the type of its operand."""
    x = node.needed(0)
    alpha, kind = node.float("alpha", 1.0), dtype(x)

    def one(value: Any) -> Any:
        negative = tirx.const(alpha, kind) * (legalize.exp(value) - tirx.const(1, kind))
        return tirx.Select(value < tirx.const(0, kind), negative, value)

    return broadcast(node, lambda v: legalize.shared(v, one), x, name="elu")


def selu(node: Node) -> Any:
    """Selu in the type of its operand."""
    x = node.needed(0)
    # The defaults of the standard.
    alpha, gamma = (
        node.float("alpha", 1.67326319217681884765625),
        node.float("gamma", 1.05070102214813232421875),
    )
    kind = dtype(x)
    wide = "float32" if kind == "float16" else kind

    def one(value: Any) -> Any:
        value = value.astype(wide)
        negative = tirx.const(alpha, wide) * (legalize.exp(value) - tirx.const(1, wide))
        scaled = tirx.const(gamma, wide) * tirx.Select(value <= tirx.const(0, wide), negative, value)
        return scaled.astype(kind)

    return broadcast(node, lambda v: legalize.shared(v, one), x, name="selu")


def thresholded_relu(node: Node) -> Any:
    """ThresholdedRelu: zero, not zero times the operand, up to the threshold."""
    x, alpha = node.needed(0), node.float("alpha", 1.0)
    kind = dtype(x)

    def one(value: Any) -> Any:
        return tirx.Select(value > tirx.const(alpha, kind), value, tirx.const(0, kind))

    return broadcast(node, lambda v: legalize.shared(v, one), x, name="thresholded_relu")


def sign(node: Node) -> Any:
    """Sign: NaN stays NaN."""
    x = node.needed(0)
    if dtype(x) not in _FLOATS:
        return node.by_importer("Sign", [x], node.attributes)
    return node.emit(relax.op.where(relax.op.isnan(x), x, node.by_importer("Sign", [x], node.attributes)))


def dropout(node: Node) -> Any:
    """Dropout: nothing is dropped; its mask is all true."""
    training = node.array(2)
    ratio = node.array(1)
    if (
        node.input(2) is not None
        and (training is None or bool(training))
        and (ratio is None or float(ratio) != 0)
    ):
        raise UnsupportedModelError(
            "Dropout in training mode draws random numbers: export the model for inference"
        )
    x = node.needed(0)
    kind = bool if node.opset >= 10 else np.float32
    return [x, const(np.ones(shape(x), kind))] if node.outputs > 1 else x


def eye_like(node: Node) -> Any:
    """EyeLike: a constant."""
    x = node.needed(0)
    code = node.int("dtype", 0)
    rows, columns = shape(x)
    return const(np.eye(rows, columns, node.int("k", 0)), element_type(code) if code else dtype(x))


def bit_cast(node: Node) -> Any:
    """BitCast to a type of the same width."""
    x, kind = node.needed(0), element_type(int(node.attributes["to"]))
    if np.dtype(kind).itemsize != np.dtype(dtype(x)).itemsize or "bool" in (kind, dtype(x)):
        raise UnsupportedModelError(f"BitCast from {dtype(x)} to {kind} is not implemented")
    return broadcast(node, lambda v: tirx.reinterpret(kind, v), x, name="bit_cast")


CONVERTERS: dict[str, type] = {
    "IsInf": converter(is_inf),
    "Mod": converter(mod),
    "BitShift": converter(bit_shift),
    "Pow": converter(power),
    "Elu": converter(elu),
    "Selu": converter(selu),
    "Sign": converter(sign),
    "ThresholdedRelu": converter(thresholded_relu),
    "Dropout": converter(dropout),
    "EyeLike": converter(eye_like),
    "BitCast": converter(bit_cast),
}
