"""One module for all sizes of a model: a function for each, kernels shared where they are equal.

Before: a module for each size, every one with its ``main`` and its kernels. After: one module with ``main``
for the largest size, ``main1``, ``main2``, ... for the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from edgetune.graph.workload import SURROUNDINGS, workload_hash


class Merger:
    """Takes one module after the other; ``functions`` holds the result.

    Args:
        mod: the first module, whose names stay.
    """

    def __init__(self, mod: tvm.IRModule) -> None:
        self._builder = relax.BlockBuilder(mod)
        self._kernels: dict[str, list[tuple[tvm.IRModule, Any]]] = {}
        self._names = {var.name_hint for var in mod.functions}
        for var, func in mod.functions.items():
            if isinstance(func, tvm.tirx.PrimFunc):
                kernel = as_kernel(func)
                self._kernels.setdefault(workload_hash(kernel), []).append((kernel, var))

    @property
    def mod(self) -> tvm.IRModule:
        """Everything taken so far."""
        return self._builder.get()

    def add(self, mod: tvm.IRModule) -> str:
        """Take in a module, and return the new name of its function ``main``."""
        renamed = {
            var.name_hint: self._kernel(func, var.name_hint)
            for var, func in mod.functions.items()
            if isinstance(func, tvm.tirx.PrimFunc)
        }
        name = self._fresh("main")
        main = _renamed(mod, renamed).with_attr("global_symbol", name)
        self._builder.add_func(main, name)
        return name

    def _kernel(self, func: tvm.tirx.PrimFunc, hint: str) -> Any:
        """The variable of a kernel: that of an equal one, or a new one."""
        kernel = as_kernel(func)
        known = self._kernels.setdefault(workload_hash(kernel), [])
        for other, var in known:
            # Equal workloads may differ in the values of constants.
            if tvm_ffi.structural_equal(kernel, other):
                return var
        name = self._fresh(hint)
        if func.attrs and "global_symbol" in func.attrs:
            func = func.with_attr("global_symbol", name)
        var = self._builder.add_func(func, name)
        known.append((kernel, var))
        return var

    def _fresh(self, hint: str) -> str:
        number = 1
        while f"{hint}{number}" in self._names:
            number += 1
        self._names.add(f"{hint}{number}")
        return f"{hint}{number}"


def as_kernel(func: tvm.tirx.PrimFunc) -> tvm.IRModule:
    """A PrimFunc alone in a module as ``main``, without what only its surroundings need."""
    for attribute in SURROUNDINGS:
        if func.attrs and attribute in func.attrs:
            func = func.without_attr(attribute)
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


def _renamed(mod: tvm.IRModule, renamed: Mapping[str, Any]) -> relax.Function:
    """``main`` with other kernels in the place of its own."""

    @relax.expr_functor.mutator
    class Rename(relax.PyExprMutator):
        def visit_global_var_(self, op: Any) -> Any:
            return renamed.get(op.name_hint, op)

    main = mod["main"]
    body = Rename(mod).visit_expr(main.body)
    return relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
