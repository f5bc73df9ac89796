"""Converters of our own, a file for each family of operators.

The keys are operator names; those of another domain than the standard's have it in front (``com.microsoft.Gelu``).
"""

from typing import Any

from edgetune.graph.converters import (
    attention,
    elementwise,
    fused,
    indexing,
    integer,
    narrow,
    pooling,
    qlinear,
    quantization,
    rearranging,
    recurrent,
    reductions,
    refused,
    regions,
    resize,
    selecting,
)

CONVERTERS: dict[str, Any] = {
    **recurrent.CONVERTERS,
    **quantization.CONVERTERS,
    **integer.CONVERTERS,
    **narrow.CONVERTERS,
    **qlinear.CONVERTERS,
    **fused.CONVERTERS,
    **attention.CONVERTERS,
    **elementwise.CONVERTERS,
    **pooling.CONVERTERS,
    **reductions.CONVERTERS,
    **rearranging.CONVERTERS,
    **resize.CONVERTERS,
    **regions.CONVERTERS,
    **selecting.CONVERTERS,
    **indexing.CONVERTERS,
    **refused.CONVERTERS,
}
