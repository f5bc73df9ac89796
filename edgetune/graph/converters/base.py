"""What every converter receives: one node, its operands as Relax expressions, and the builder to emit into."""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
from tvm import relax, te
from tvm.relax.frontend.onnx import onnx_frontend  # ours build on TVM's

from edgetune.errors import UnsupportedModelError

Convert = Callable[["Node"], Any]
"""Gives the node's output, or a list of them (None for one that nobody can read)."""


_STOCK: dict[str, Any] = dict(onnx_frontend._get_convert_map())
"""TVM's own converters, kept before ours are put among them."""

_OPAQUE = 8
"""TVM's ``OpPatternKind`` of a kernel that nothing is known of."""


@dataclass
class Node:
    """One ONNX node while it is converted.

    Attributes:
        builder: emits into the function under construction.
        inputs: operands in order; None for one left out.
        attributes: by name, as the importer parsed them.
        outputs: how many outputs the node has, unnamed ones included.
        opset: version of the standard operator set.
        params: the importer's tables, handed on to its converters.
        kernels: calls of kernels that may be called again, see :meth:`te`.
    """

    builder: Any
    inputs: Sequence[Any]
    attributes: dict[str, Any]
    outputs: int
    opset: int
    params: Any = field(repr=False, default=None)
    kernels: dict[Hashable, Any] = field(repr=False, default_factory=dict)

    def input(self, index: int) -> Any:
        """The operand at ``index``, None where it was left out."""
        value = self.inputs[index] if index < len(self.inputs) else None
        if value is not None and tvm.ir.is_prim_expr(value):
            return relax.const(np.asarray(value.value, str(value.ty.dtype)))
        return value

    def needed(self, index: int) -> Any:
        """The operand at ``index``.

        Raises:
            UnsupportedModelError: it was left out.
        """
        value = self.input(index)
        if value is None:
            raise UnsupportedModelError(f"input {index} is required and was left out")
        return value

    def array(self, index: int) -> np.ndarray[Any, Any] | None:
        """The operand's value where it is a constant, else None."""
        return constant(self.input(index))

    def known(self, index: int, what: str) -> np.ndarray[Any, Any] | None:
        """The value of an operand that must be a constant; None where it was left out.

        Raises:
            UnsupportedModelError: it depends on the model's inputs.
        """
        if self.input(index) is None:
            return None
        value = self.array(index)
        if value is None:
            raise UnsupportedModelError(
                f"{what} must be known when the model is compiled: freeze the input it depends on"
            )
        return value

    def int(self, name: str, default: builtins.int) -> builtins.int:
        """An integer attribute."""
        return int(self.attributes.get(name, default))

    def float(self, name: str, default: builtins.float) -> builtins.float:
        """A floating-point attribute."""
        return float(self.attributes.get(name, default))

    def text(self, name: str, default: str) -> str:
        """A string attribute."""
        value = self.attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else str(value)

    def ints(self, name: str, default: Sequence[builtins.int] | None = None) -> list[builtins.int] | None:
        """A list of integers, or ``default``."""
        value = self.attributes.get(name)
        if value is None:
            return None if default is None else list(default)
        return [int(v) for v in value]

    def te(
        self, function: Callable[..., Any], *args: Any, name: str, alone: bool = False, same: Hashable = None
    ) -> Any:
        """Emit a kernel given as tensor expressions.

        Args:
            function: makes the tensors of the kernel from those of ``args``.
            args: operands.
            name: of the kernel.
            alone: keeps the kernel from being fused with others.
            same: kernels of one node with the same key, not None, are the same: the first one is called
                again. Building a kernel takes tens of milliseconds.
        """
        if same is not None and same in self.kernels:
            call = self.kernels[same]
            repeated = tvm.ir.Call(call.op, [call.args[0], relax.Tuple(list(args))], call.attrs, call.ty_args)
            return self.builder.emit(repeated)
        attrs = {"op_pattern": _OPAQUE} if alone else None
        result = self.builder.emit_te(function, *args, primfunc_name_hint=name, primfunc_attrs=attrs)
        if same is not None:
            self.kernels[same] = self.builder.lookup_binding(result)
        return result

    def emit(self, call: Any) -> Any:
        """Emit an operator call; the result has a type."""
        if isinstance(call, (relax.Var, tvm.ir.GenericConst)):
            return call
        return self.builder.emit(call)

    def by_importer(
        self, op_type: str, inputs: Sequence[Any], attributes: dict[str, Any], outputs: builtins.int = 1
    ) -> Any:
        """Convert another operator the importer's way."""
        converter = _STOCK[op_type].get_converter(self.opset)
        arguments = onnx_frontend.onnx_input()
        arguments.extend(inputs)
        given = {**attributes, "tvm_custom": {"name": op_type, "num_outputs": outputs}}
        return self.builder.normalize(converter(self.builder, arguments, given, self.params))


def converter(convert: Convert) -> type:
    """``convert`` in the form of the importer's table: a class that gives a function for an opset."""

    class Converter:
        __doc__ = convert.__doc__

        @classmethod
        def get_converter(cls, opset: int) -> Callable[..., Any]:
            return functools.partial(_call, opset)

    def _call(opset: int, builder: Any, inputs: Any, attributes: Any, params: Any) -> Any:
        given = {name: value for name, value in attributes.items() if name != "tvm_custom"}
        outputs = int(attributes["tvm_custom"]["num_outputs"])
        operands = [builder.normalize(x) if isinstance(x, relax.Expr) else x for x in inputs]
        node = Node(builder, operands, given, outputs, opset, params)
        result = convert(node)
        if isinstance(result, (list, tuple)):
            fields = [relax.const(np.zeros((), np.float32)) if item is None else item for item in result]
            fields = [builder.normalize(item) for item in fields]
            return fields[0] if len(fields) == 1 else relax.Tuple(fields)
        return result

    return Converter


def constant(value: Any) -> np.ndarray[Any, Any] | None:
    """The value of an expression that is a constant, else None."""
    return np.asarray(value.value.numpy()) if isinstance(value, tvm.ir.GenericConst) else None


def const(array: Any, dtype: str | None = None) -> Any:
    """A constant; ``dtype`` as NumPy names it, by default the array's own."""
    array = np.asarray(array) if dtype is None else np.asarray(array).astype(dtype)
    return relax.const(np.ascontiguousarray(array).reshape(array.shape), str(array.dtype))


def shape(value: Any) -> tuple[int, ...]:
    """The static shape of an expression.

    Raises:
        UnsupportedModelError: a size is not known.
    """
    sizes = getattr(value.ty, "shape", None)
    if sizes is None:
        raise UnsupportedModelError("the shape of an operand is not known")
    try:
        return tuple(int(size) for size in sizes)
    except TypeError as error:
        raise UnsupportedModelError("the shape of an operand depends on the input's values") from error


def dtype(value: Any) -> str:
    """NumPy's name of an expression's element type."""
    return str(value.ty.dtype)


def element(tensor: te.Tensor, index: Sequence[Any]) -> Any:
    """``tensor`` at ``index``, broadcast: leading indices it lacks are dropped, axes of size one read at 0."""
    own = list(index)[len(index) - len(tensor.shape) :] if len(tensor.shape) else []
    return tensor(*(0 if int(size) == 1 else i for size, i in zip(tensor.shape, own, strict=True)))


def along(tensor: te.Tensor, axis: int, index: Sequence[Any]) -> Any:
    """A scalar, or a vector along ``axis``, at ``index``."""
    if len(tensor.shape) == 0:
        return tensor()
    return tensor(0) if int(tensor.shape[0]) == 1 else tensor(index[axis])


def positive_axis(axis: int, rank: int) -> int:
    """``axis`` counted from the front.

    Raises:
        UnsupportedModelError: it is out of range.
    """
    if not -rank <= axis < max(rank, 1):
        raise UnsupportedModelError(f"axis {axis} is out of range for {rank} dimensions")
    return axis % rank if rank else 0
