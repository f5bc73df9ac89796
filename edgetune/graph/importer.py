"""ONNX to Relax, with converters of our own where TVM's hide an operator from later passes.

TVM's importer turns some operators into loops at once (Clip, variadic Sum/Max/Min through ``stack``), after
which no pass can see what they were. Those are imported as plain operators here.
"""

from __future__ import annotations

import contextlib
import functools
import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax, te
from tvm.relax.frontend.onnx import from_onnx, onnx_frontend

from edgetune.errors import UnsupportedModelError, last_line
from edgetune.graph.converters import CONVERTERS
from edgetune.graph.legalize import power
from edgetune.graph.narrow_types import hold_in_bytes

Converter = Callable[..., Any]


def import_onnx(model: bytes) -> tvm.IRModule:
    """Import a prepared model with its weights as constants.

    Raises:
        UnsupportedModelError: TVM cannot import a node; the message is TVM's reason.
    """
    proto = onnx.load_from_string(model)
    _name_domains(proto.graph)
    # The importer prints the node it fails at.
    with _own_converters(), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            _check_flags(proto.graph)
            hold_in_bytes(proto)
            return from_onnx(proto, shape_dict=_empty_inputs(proto), keep_params_in_input=False)
        except Exception as error:  # TVM raises every kind of exception from converters
            raise UnsupportedModelError(
                f"the model cannot be imported: {last_line(error)}. "
                "`edgetune check` names every node that stands in the way."
            ) from error


def operators() -> frozenset[str]:
    """Names of the operators that can be imported; of another domain than the standard's: ``domain.Name``."""
    stock = set(onnx_frontend._get_convert_map()) - _OTHER_DOMAINS
    return frozenset(stock | set(_CONVERTERS) | set(CONVERTERS) | {"If", "Constant"})


_FLAGS = frozenset(
    {
        *(
            "align_corners",
            "allowzero",
            "antialias",
            "ceil_mode",
            "channels_last",
            "count_include_pad",
            "exclusive",
        ),
        *("exclude_outside", "fmod", "input_forget", "inverse", "is_causal", "keepdims", "largest", "layout"),
        *("linear_before_reset", "noop_with_empty_axes", "onesided", "periodic", "reverse", "saturate"),
        *("select_last_index", "sorted", "storage_order", "training_mode", "transA", "transB", "upper"),
    }
)
"""Attributes that are 0 or 1. Others compare them with 1, or with 0: of 2 each makes something else."""


def _check_flags(graph: onnx.GraphProto) -> None:
    for node in graph.node:
        for attribute in node.attribute:
            if (
                attribute.type == onnx.AttributeProto.INT
                and attribute.name in _FLAGS
                and attribute.i not in (0, 1)
            ):
                raise UnsupportedModelError(
                    f"attribute {attribute.name} of {node.op_type} is {attribute.i}, and the standard knows 0 and 1"
                )
            for inner in (attribute.g, *attribute.graphs):
                _check_flags(inner)


def _name_domains(graph: onnx.GraphProto) -> None:
    """Write the domain into the operator's name, in place: the importer looks at nothing else."""
    for node in graph.node:
        if node.domain not in ("", "ai.onnx"):
            node.op_type = f"{node.domain}.{node.op_type}"
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                _name_domains(inner)


def _empty_inputs(proto: onnx.ModelProto) -> dict[str, list[int]]:
    """Shapes of inputs with a dimension of zero, which the importer takes for an unknown one."""
    shapes = {}
    for value in proto.graph.input:
        dims = value.type.tensor_type.shape.dim
        if any(d.HasField("dim_value") and d.dim_value == 0 for d in dims):
            shapes[value.name] = [int(d.dim_value) for d in dims]
    return shapes


@contextmanager
def _own_converters() -> Iterator[None]:
    """Put our converters into TVM's table for the time of one import."""
    original = onnx_frontend._get_convert_map

    def table() -> dict[str, Any]:
        stock = {name: convert for name, convert in original().items() if name not in _OTHER_DOMAINS}
        return {**stock, **_CONVERTERS, **CONVERTERS}

    onnx_frontend._get_convert_map = table
    try:
        yield
    finally:
        onnx_frontend._get_convert_map = original


class _Clip(onnx_frontend.Clip):
    """Clip with constant scalar bounds is one operator; others go the importer's way."""

    @classmethod
    def _impl_v1(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        if not _is_float32(inputs[0]):
            return _keeping_nan(bb, inputs[0], super()._impl_v1(bb, inputs, attr, params))
        return relax.op.clip(inputs[0], float(attr.get("min", -np.inf)), float(attr.get("max", np.inf)))

    @classmethod
    def _impl_v13(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        # A bound left out is the type's own, so that infinity becomes the largest number, as in ONNX Runtime.
        limits = np.finfo(np.float32)
        low = float(limits.min) if inputs[1] is None else _scalar(inputs[1])
        high = float(limits.max) if inputs[2] is None else _scalar(inputs[2])
        if not _is_float32(inputs[0]) or low is None or high is None or np.isnan(low) or np.isnan(high):
            return _keeping_nan(bb, inputs[0], super()._impl_v13(bb, inputs, attr, params))
        # Of bounds the wrong way round the standard takes the upper one.
        return relax.op.clip(inputs[0], float(min(low, high)), float(high))


def _keeping_nan(bb: Any, x: Any, clipped: Any) -> Any:
    """``clipped``, and NaN where ``x`` is."""
    if "float" not in str(x.ty.dtype):
        return clipped

    def kernel(x: te.Tensor, y: te.Tensor) -> te.Tensor:
        return te.compute(
            x.shape, lambda *i: te.if_then_else(tvm.tirx.isnan(x(*i)), x(*i), y(*i)), name="kept"
        )

    return bb.emit_te(kernel, x, bb.normalize(clipped), primfunc_name_hint="clip")


def _variadic(base: type, binary: Converter) -> type:
    """A converter that folds any number of inputs with a binary operator."""

    class Variadic(base):
        @classmethod
        def _impl_v1(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
            operands = [x for x in inputs if x is not None]
            if any(isinstance(x, relax.ShapeExpr) or tvm.ir.is_prim_expr(x) for x in operands):
                return super()._impl_v1(bb, inputs, attr, params)
            return functools.reduce(lambda a, b: bb.normalize(binary(a, b)), operands)

    return Variadic


class _BatchNormalization(onnx_frontend.BatchNormalization):
    """Inference with constant statistics is one multiply and one add."""

    @classmethod
    def _fold(cls, inputs: Any, attr: Any) -> Any:
        arrays = [
            np.asarray(x.value.numpy(), np.float64) for x in inputs[1:5] if isinstance(x, tvm.ir.GenericConst)
        ]
        if attr["tvm_custom"]["num_outputs"] > 1 or len(arrays) < 4 or not _is_float32(inputs[0]):
            return None
        gamma, beta, mean, variance = arrays
        scale = gamma / np.sqrt(variance + float(attr.get("epsilon", 1e-5)))
        shape = (1, -1, *(1,) * (len(inputs[0].ty.shape) - 2))
        terms = [np.ascontiguousarray(a.reshape(shape), np.float32) for a in (scale, beta - mean * scale)]
        product = relax.op.multiply(inputs[0], relax.const(terms[0], "float32"))
        return relax.op.add(product, relax.const(terms[1], "float32"))

    @classmethod
    def _impl_v15(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        folded = cls._fold(inputs, attr)
        return folded if folded is not None else super()._impl_v15(bb, inputs, attr, params)


class _Lrn(onnx_frontend.LocalResponseNormalization):
    """Local response normalisation over neighbouring channels, as one kernel."""

    @classmethod
    def _impl_v13(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        if not _is_float32(inputs[0]):
            return super()._impl_v13(bb, inputs, attr, params)
        size = int(attr["size"])
        alpha, beta, bias = (
            float(attr.get(k, d)) for k, d in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0))
        )

        def lrn(x: te.Tensor) -> te.Tensor:
            channels, before = x.shape[1], (size - 1) // 2

            def square(*index: te.Var) -> te.PrimExpr:
                value = x(*index)
                return value * value

            squares = te.compute(x.shape, square, name="squares")
            k = te.reduce_axis((0, size), "k")

            def window(n: te.Var, c: te.Var, *rest: te.Var) -> te.PrimExpr:
                inside = te.all(c + k - before >= 0, c + k - before < channels)
                return te.sum(te.if_then_else(inside, squares(n, c + k - before, *rest), 0.0), axis=k)

            total = te.compute(x.shape, window, name="window_sum")
            return te.compute(
                x.shape, lambda *i: x(*i) * power(total(*i) * (alpha / size) + bias, -beta), name="lrn"
            )

        return bb.emit_te(lrn, inputs[0], primfunc_name_hint="lrn")


def _scalar(bound: Any) -> float | None:
    """The value of a constant of one element."""
    if isinstance(bound, tvm.ir.GenericConst):
        array = np.asarray(bound.value.numpy())
        if array.size == 1:
            return float(array.reshape(()))
    return None


def _is_float32(x: Any) -> bool:
    return str(x.ty.dtype) == "float32"


_OTHER_DOMAINS = frozenset(
    {
        "Attention",
        "BiasGelu",
        "EmbedLayerNormalization",
        "FastGelu",
        "MatMulInteger16",
        "SkipLayerNormalization",
    }
)
"""Under these names the importer has operators of ``com.microsoft``."""

_CONVERTERS: dict[str, Any] = {
    "BatchNormalization": _BatchNormalization,
    "Clip": _Clip,
    "LRN": _Lrn,
    "Sum": _variadic(onnx_frontend.Sum, relax.op.add),
    "Max": _variadic(onnx_frontend.Max, relax.op.maximum),
    "Min": _variadic(onnx_frontend.Min, relax.op.minimum),
}
