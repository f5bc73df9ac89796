"""Limits on fusion: chains of functions that compile in seconds.

A function that uses its argument more than once binds it (``tirx.Let``). TVM's code generator replaces bound variables
by their values all the same where it simplifies (``arith::Analyzer::Bind``), so that its time grows exponentially with
the length of a chain of fused functions: 0.2 s for 7 ReLUs, 10 s for 9; a second for four sigmoids, minutes for six. So
a longer chain becomes several kernels.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx

MAX_BINDINGS = 8
"""On any way through a fused kernel of several functions. A ReLU has 1, a sigmoid 4, a tanh 7."""

_INJECTIVE, _REDUCTION, _OPAQUE = 2, 3, 8
"""Relax's fusion patterns (``OpPatternKind``): up to the second, what comes before is fused into a kernel."""


def limit_chains(mod: tvm.IRModule) -> tvm.IRModule:
    """``mod``, its kernels annotated, with those marked as not to be fused that would make a chain too long."""
    return _Limiter(mod).run()


@relax.expr_functor.mutator
class _Limiter(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self._mod = mod
        self._counts: dict[Any, int] = {}
        self._lengths: dict[Any, int] = {}
        """Bindings on the longest way to a value since it was last in memory."""

    def run(self) -> tvm.IRModule:
        for var, func in self._mod.functions.items():
            if isinstance(func, relax.Function):
                self.builder_.update_func(var, self.visit_expr(func))
        return self.builder_.get()

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        value = binding.value
        if isinstance(value, relax.Call) and getattr(value.op, "name", "") == "relax.call_tir":
            alone = self._is_too_long(binding.var, value)
            if alone:
                func = self._mod[value.args[0]].with_attr("op_pattern", _OPAQUE)
                kernel = self.builder_.add_func(func, value.args[0].name_hint)
                value = relax.Call(value.op, [kernel, *value.args[1:]], value.attrs, value.ty_args)
                binding = relax.VarBinding(binding.var, value)
        elif not isinstance(value, relax.Call):
            self._lengths[binding.var] = self._length(value)
        super().visit_var_binding_(binding)

    def _is_too_long(self, var: Any, call: relax.Call) -> bool:
        func = self._mod[call.args[0]]
        pattern = int(func.attrs.get("op_pattern", _OPAQUE)) if func.attrs else _OPAQUE
        before = self._length(call.args[1])
        total = before + self._bindings(call.args[0])
        too_long = pattern <= _REDUCTION and before > 0 and total > MAX_BINDINGS
        self._lengths[var] = total if pattern <= _INJECTIVE and not too_long else 0
        return too_long

    def _length(self, value: Any) -> int:
        if isinstance(value, relax.Tuple):
            return max(map(self._length, value.fields), default=0)
        if isinstance(value, relax.TupleGetItem):
            return self._length(value.tuple_value)
        return self._lengths.get(value, 0)

    def _bindings(self, kernel: Any) -> int:
        if kernel not in self._counts:
            found: list[tirx.Let] = []
            tvm_ffi.structural_walk(self._mod[kernel].body, (tirx.Let, found.append))
            self._counts[kernel] = len(found)
        return self._counts[kernel]
