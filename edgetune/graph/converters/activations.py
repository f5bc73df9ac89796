"""The activation functions of recurrent operators, with their parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import te, tirx

from edgetune.errors import UnsupportedModelError
from edgetune.graph import legalize
from edgetune.graph.converters.base import Node

Scalar = Callable[[Any], Any]


def clipping(node: Node) -> Scalar:
    """The attribute ``clip``: what an activation is given lies within it."""
    limit = node.float("clip", 0.0)
    if limit <= 0:
        return lambda x: x
    return lambda x: te.max(
        te.min(x, tirx.const(limit, str(x.ty.dtype))), tirx.const(-limit, str(x.ty.dtype))
    )


_DEFAULTS: dict[str, tuple[float, ...]] = {
    "affine": (1.0, 0.0),
    "leakyrelu": (0.01,),
    "thresholdedrelu": (1.0,),
    "scaledtanh": (1.0, 1.0),
    "hardsigmoid": (0.2, 0.5),
    "elu": (1.0,),
}
"""The activations that take alpha, or alpha and beta, and their default values."""


def named_activations(node: Node, defaults: Sequence[str]) -> list[Scalar]:
    """The named activations with their parameters, which are dealt out in order to those that take one."""
    names = [
        v.decode() if isinstance(v, bytes) else str(v) for v in node.attributes.get("activations", defaults)
    ]
    if len(names) != len(defaults):
        raise UnsupportedModelError(f"{len(names)} activations are named, {len(defaults)} are needed")
    alphas = list(node.attributes.get("activation_alpha", ()))
    betas = list(node.attributes.get("activation_beta", ()))
    result = []
    for name in names:
        parameters = list(_DEFAULTS.get(name.lower(), ()))
        for i, given in enumerate((alphas, betas)):
            if i < len(parameters) and given:
                parameters[i] = float(given.pop(0))
        result.append(_activation(name.lower(), parameters))
    return result


def _activation(name: str, parameters: Sequence[float]) -> Scalar:
    if name not in _FORMULAS:
        raise UnsupportedModelError(f"the activation {name!r} is not one of the standard's")

    def apply(x: Any) -> Any:
        kind = str(x.ty.dtype)
        constants = [tirx.const(p, kind) for p in parameters]
        return legalize.shared(x, lambda x: _FORMULAS[name](x, *constants, one=tirx.const(1, kind)))

    return apply


def _zero(x: Any) -> Any:
    return tirx.const(0, str(x.ty.dtype))


_FORMULAS: dict[str, Callable[..., Any]] = {
    "sigmoid": lambda x, one: legalize.sigmoid(x),
    "tanh": lambda x, one: legalize.tanh(x),
    "relu": lambda x, one: legalize.relu(x),
    "affine": lambda x, a, b, one: a * x + b,
    "leakyrelu": lambda x, a, one: tirx.Select(x < _zero(x), a * x, x),
    "thresholdedrelu": lambda x, a, one: tirx.Select(x > a, x, _zero(x)),
    "scaledtanh": lambda x, a, b, one: a * legalize.tanh(b * x),
    "hardsigmoid": lambda x, a, b, one: te.max(te.min(a * x + b, one), _zero(x)),
    "elu": lambda x, a, one: tirx.Select(x < _zero(x), a * (legalize.exp(x) - one), x),
    "softsign": lambda x, one: x / (one + te.abs(x)),
    # log(1 + e^x) without overflow.
    "softplus": lambda x, one: te.max(x, _zero(x)) + te.log(one + legalize.exp(-te.abs(x))),
}
