"""Rewrite a Relax function into channel-blocked layout, weights packed on the way.

Every value has up to two forms: plain (``[N, C, H, W]``, as imported) and blocked (``[N, ceil(C / b), H * W, b]``).
A sequence ``[N, C, W]`` is an image of one row.
A rule per operator says how to compute the blocked form from blocked operands; an operator without a rule, or
whose rule declines, is computed plain. Conversions appear only where a form is asked for that does not exist yet,
so they end up at the edges of the graph. Channels that fill no whole block are padded: padded lanes hold finite
values that no result depends on, because the weights that would read them are zero.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tvm
from tvm import relax, te

from edgetune.graph.geometry import image_shape
from edgetune.graph.refusal import REFUSALS, reason
from edgetune.kernels.schedules import unflatten
from edgetune.kernels.tiles import RegisterFile
from edgetune.targets import Target

_LOGGER = logging.getLogger("edgetune.graph")


@dataclass(frozen=True)
class BlockedValue:
    """A blocked tensor: its expression ``[N, blocks, H * W, b]`` and what the shape hides.

    ``groups``: the channels are padded to whole blocks within each of so many groups, as grouped
    convolutions need it; 1 pads only at the end.
    """

    expr: Any
    channels: int
    height: int
    width: int
    groups: int = 1

    def like(self, expr: Any) -> BlockedValue:
        """Another tensor in the same form."""
        return replace(self, expr=expr)

    def padded(self, lanes: int) -> bool:
        """Whether some lanes hold no channel."""
        return (self.channels // self.groups) % lanes != 0


class Rewriter:
    """Rewrites one function; rules receive it as their context.

    Attributes:
        builder: emits into the new function.
        lanes: elements of one block.
        target: what is compiled for; ``lanes`` and ``registers`` are its.
    """

    def __init__(self, mod: tvm.IRModule, target: Target, rules: dict[str, Rule]) -> None:
        self.mod = mod
        kernels = {var: func for var, func in mod.functions.items() if var.name_hint != "main"}
        self.builder = relax.BlockBuilder(tvm.IRModule(kernels))
        self.target = target
        self.lanes = target.lanes("float32")
        self.registers = RegisterFile.of(target)
        self.rules = rules
        self._plain: dict[Any, Any] = {}
        self._blocked: dict[Any, BlockedValue] = {}
        self._calls: dict[Any, Any] = {}

    def run(self) -> tvm.IRModule:
        """The module with ``main`` rewritten; unchanged when main has control flow."""
        main = self.mod["main"]
        if not isinstance(main.body, relax.SeqExpr) or len(main.body.blocks) != 1:
            return self.mod
        bindings = list(main.body.blocks[0].bindings)
        if not all(_is_straight(b) for b in bindings):
            return self.mod
        builder = self.builder
        with builder.function("main", list(main.params), attrs=dict(main.attrs or {})):
            with builder.dataflow():
                for binding in bindings:
                    self._bind(binding)
                result = builder.emit_output(self.plain(main.body.body))
            builder.emit_func_output(result)
        mod = builder.get()
        return relax.transform.DeadCodeElimination()(mod)

    def _bind(self, binding: Any) -> None:
        var, value = binding.var, binding.value
        if isinstance(value, tvm.ir.Call) and isinstance(value.op, tvm.ir.Op):
            self._calls[var] = value
            folded = self._fold(value)
            if folded is not None:
                self._plain[var] = folded
                return
            result = self._apply_rule(value)
            if isinstance(result, BlockedValue):
                self._blocked[var] = result
                return
            if result is not None:
                self._plain[var] = result
                return
        self._plain[var] = self._emit(self._substitute(value))

    def _apply_rule(self, call: Any) -> Any:
        """What the operator's rule makes of a call; None where there is none, or it declines or fails."""
        rule = self.rules.get(call.op.name)
        if rule is None or _has_empty_tensor(call):
            return None
        try:
            return rule(self, call)
        except REFUSALS as error:
            _LOGGER.warning(
                "%s is computed in plain layout: %s: %s", call.op.name, type(error).__name__, reason(error)
            )
            return None

    def _fold(self, call: Any) -> Any:
        """Shape-only operators on constants (bias reshapes, weight transposes), folded with NumPy."""
        fold = _FOLDS.get(call.op.name)
        if fold is None:
            return None
        array = self.constant(call.args[0])
        if any(isinstance(argument, relax.Var) for argument in call.args[1:]):
            return None
        if array is None:
            return None
        folded = np.asarray(fold(array, call), order="C")
        return relax.const(folded, str(folded.dtype))

    def _emit(self, value: Any) -> Any:
        if isinstance(value, (tvm.ir.GenericConst, relax.Var, relax.ShapeExpr)):
            return value
        return self.builder.emit(value)

    def emit_te(self, function: Callable[..., te.Tensor], *args: Any, name: str, **kwargs: Any) -> Any:
        """Emit a kernel given as tensor expressions."""
        return self.builder.emit_te(function, *args, primfunc_name_hint=name, **kwargs)

    def emit(self, call: Any) -> Any:
        """Emit an operator call."""
        return self.builder.emit(call)

    def plain(self, expr: Any) -> Any:
        """The plain form of an expression of the old function."""
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self.plain(field) for field in expr.fields])
        if not isinstance(expr, relax.Var):
            return expr
        if expr not in self._plain and expr in self._blocked:
            self._plain[expr] = self.unblock(self._blocked[expr], tuple(int(d) for d in expr.ty.shape))
        return self._plain.get(expr, expr)

    def definition(self, expr: Any) -> Any:
        """The operator call of the old function that a variable stands for, else None."""
        return self._calls.get(expr) if isinstance(expr, relax.Var) else None

    def blocked_or_none(self, expr: Any) -> BlockedValue | None:
        """The blocked form of an expression, if it was computed so."""
        return self._blocked.get(expr) if isinstance(expr, relax.Var) else None

    def blocked(self, expr: Any, groups: int = 1) -> BlockedValue:
        """The blocked form of an image or a sequence, converted when needed."""
        known = self.blocked_or_none(expr)
        if known is not None and same_padding(known, groups, self.lanes):
            return known
        value = self.block(self.plain(expr), groups)
        if known is None and isinstance(expr, relax.Var):
            self._blocked[expr] = value
        return value

    def block(self, plain: Any, groups: int = 1) -> BlockedValue:
        """Emit the conversion of a plain ``[N, C, H, W]`` or ``[N, C, W]`` tensor."""
        batch, channels, height, width = image_shape(plain.ty.shape)
        is_sequence = len(plain.ty.shape) == 3
        lanes, per_group = self.lanes, channels // groups
        blocks = -(-per_group // lanes)

        def to_blocked(x: te.Tensor) -> te.Tensor:
            def element(n: te.Var, c: te.Var, f: te.Var, i: te.Var) -> te.PrimExpr:
                within = c * lanes + i if groups == 1 else (c % blocks) * lanes + i
                channel = within if groups == 1 else (c // blocks) * per_group + within
                value = x[(n, channel, *((f,) if is_sequence else unflatten(f, height, width)))]
                if per_group % lanes == 0:
                    return value
                return te.if_then_else(within < per_group, value, tvm.tirx.const(0, x.dtype))

            return te.compute((batch, groups * blocks, height * width, lanes), element, name="to_blocked")

        expr = self.emit_te(to_blocked, plain, name="to_blocked")
        return BlockedValue(expr, channels, height, width, groups)

    def unblock(self, value: BlockedValue, shape: tuple[int, ...]) -> Any:
        """Emit the conversion back to a plain tensor of a shape ``[N, C, H, W]`` or ``[N, C, W]``."""
        lanes, width = self.lanes, value.width
        if value.height * value.width == 1 and not value.padded(lanes):
            return self.emit(relax.op.reshape(value.expr, shape))
        per_group = value.channels // value.groups
        blocks = -(-per_group // lanes)

        def to_plain(x: te.Tensor) -> te.Tensor:
            def element(n: te.Var, c: te.Var, *place: te.Var) -> te.PrimExpr:
                f = place[0] if len(place) == 1 else place[0] * width + place[1]
                if value.groups == 1:
                    return x[n, c // lanes, f, c % lanes]
                within = c % per_group
                return x[n, (c // per_group) * blocks + within // lanes, f, within % lanes]

            return te.compute(shape, element, name="to_plain")

        return self.emit_te(to_plain, value.expr, name="to_plain")

    def constant(self, expr: Any) -> np.ndarray | None:
        """The value of an expression that is a constant, else None."""
        expr = self.plain(expr) if isinstance(expr, relax.Var) and expr in self._plain else expr
        return np.asarray(expr.value.numpy()) if isinstance(expr, tvm.ir.GenericConst) else None

    def _substitute(self, value: Any) -> Any:
        """The same call or tuple over the new function's variables, in plain form."""
        if isinstance(value, tvm.ir.Call):
            args = [self.plain(a) for a in value.args]
            return tvm.ir.Call(value.op, args, value.attrs, value.ty_args) if args else value
        if isinstance(value, relax.TupleGetItem):
            return relax.TupleGetItem(self.plain(value.tuple_value), value.index)
        return self.plain(value)


def same_padding(value: BlockedValue, groups: int, lanes: int) -> bool:
    """Whether padding within ``groups`` groups gives the form that the value has."""
    if value.groups == groups:
        return True
    return not value.padded(lanes) and (value.channels // groups) % lanes == 0


Rule = Callable[[Rewriter, Any], Any]


def _is_straight(binding: Any) -> bool:
    return isinstance(binding, relax.VarBinding) and not isinstance(binding.value, (relax.If, relax.Function))


def _has_empty_tensor(call: Any) -> bool:
    """Whether an operand or the result has no elements: nothing to make fast, and geometry divides by zero."""
    types = [expr.ty for expr in (call, *call.args) if isinstance(expr.ty, relax.TensorType)]
    return any(isinstance(d, tvm.tirx.IntImm) and int(d) == 0 for ty in types for d in ty.shape or ())


def _dequantized(array: np.ndarray, call: Any) -> np.ndarray:
    scale, zero = (np.asarray(a.value.numpy()) for a in call.args[1:])
    if scale.size > 1:
        shape = [-1 if axis == int(call.attrs.axis) % array.ndim else 1 for axis in range(array.ndim)]
        scale, zero = scale.reshape(shape), zero.reshape(shape if zero.size > 1 else ())
    return (array.astype(np.int32) - zero.astype(np.int32)).astype(np.float32) * scale.reshape(
        scale.shape or ()
    )


def _target_shape(call: Any) -> list[int]:
    return [int(d) for d in call.ty.shape]


_FOLDS: dict[str, Callable[[np.ndarray, Any], np.ndarray]] = {
    "relax.dequantize": _dequantized,
    "relax.reshape": lambda array, call: array.reshape(_target_shape(call)),
    "relax.expand_dims": lambda array, call: array.reshape(_target_shape(call)),
    "relax.squeeze": lambda array, call: array.reshape(_target_shape(call)),
    "relax.permute_dims": lambda array, call: array.transpose(
        [int(a) for a in call.attrs.axes] if call.attrs.axes is not None else None
    ),
}
