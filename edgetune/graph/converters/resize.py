"""Resize along any axes, in every mode of the standard.

Each axis is resized by itself: an output element is a weighted sum of a few inputs, whose positions and weights
are constants computed here in float64. The importer's way is kept where it is right and later passes know it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import te, tirx

from edgetune.errors import UnsupportedModelError
from edgetune.graph.converters.base import Node, const, converter, dtype, positive_axis, shape


@dataclass(frozen=True)
class Axis:
    """One axis to resize: its position, sizes, scale, and the region of interest as fractions of the input."""

    position: int
    size: int
    wanted: int
    scale: float
    begin: float
    end: float


def resize(node: Node) -> Any:
    """Resize with known scales or sizes."""
    x = node.needed(0)
    if node.opset < 11:
        return node.by_importer("Resize", list(node.inputs), node.attributes)
    if dtype(x) not in ("float32", "float16", "float64", "uint8", "int8", "int32"):
        raise UnsupportedModelError(f"resizing {dtype(x)} is not implemented")
    axes = _axes(node, x)
    if _importer_is_right(node, x, axes):
        inputs = [x, None, None, const(np.array(_sizes(x, axes), np.int64))]
        return node.by_importer("Resize", inputs, _importer_attributes(node))
    outside = node.float("extrapolation_value", 0.0)
    for axis in axes:
        if axis.size != axis.wanted or axis.scale != 1.0 or node.text(*_COORDINATES) == "tf_crop_and_resize":
            x = _along(node, x, axis, outside)
    return x


_COORDINATES = ("coordinate_transformation_mode", "half_pixel")


def _sizes(x: Any, axes: list[Axis]) -> list[int]:
    sizes = list(shape(x))
    for axis in axes:
        sizes[axis.position] = axis.wanted
    return sizes


def _importer_attributes(node: Node) -> dict[str, Any]:
    dropped = ("axes", "keep_aspect_ratio_policy", "antialias")
    return {name: value for name, value in node.attributes.items() if name not in dropped}


def _importer_is_right(node: Node, x: Any, axes: list[Axis]) -> bool:
    """Whether TVM's resize of images in float32 gives the standard's values: whole ratios, plain modes."""
    plain = {"nearest": ("asymmetric", "half_pixel"), "linear": ("asymmetric", "half_pixel", "align_corners")}
    mode, coordinates = node.text("mode", "nearest"), node.text(*_COORDINATES)
    spatial = all(a.position >= 2 or (a.size == a.wanted and a.scale == 1.0) for a in axes)
    exact = all(a.wanted % a.size == 0 and a.scale == a.wanted / a.size for a in axes)
    rounding = mode != "nearest" or (coordinates, node.text("nearest_mode", "round_prefer_floor")) in (
        ("asymmetric", "floor"),
        ("half_pixel", "round_prefer_floor"),
    )
    return (
        len(shape(x)) == 4
        and dtype(x) == "float32"
        and spatial
        and exact
        and rounding
        and coordinates in plain.get(mode, ())
        and not node.int("antialias", 0)
    )


def _axes(node: Node, x: Any) -> list[Axis]:
    sizes = shape(x)
    rank = len(sizes)
    chosen = [positive_axis(a, rank) for a in node.ints("axes") or range(rank)]
    roi = node.known(1, "the region of interest")
    scales, wanted = node.known(2, "the scales"), node.known(3, "the sizes")
    if node.text(*_COORDINATES) != "tf_crop_and_resize" or roi is None or roi.size == 0:
        roi = np.array([0.0] * len(chosen) + [1.0] * len(chosen))
    regions = [(float(roi[i]), float(roi[len(chosen) + i])) for i in range(len(chosen))]
    if scales is not None and scales.size:
        factors = [float(s) for s in scales]
        _refuse_ambiguous(node, [sizes[a] * f for a, f in zip(chosen, factors, strict=True)])
        # The standard's text has the region's part of the size here with tf_crop_and_resize; its own reference
        # implementation and ONNX Runtime leave that out.
        targets = [math.floor(sizes[a] * f) for a, f in zip(chosen, factors, strict=True)]
    elif wanted is not None and wanted.size:
        targets = [int(s) for s in wanted]
        factors = [t / sizes[a] for a, t in zip(chosen, targets, strict=True)]
        policy = node.text("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            factor = min(factors) if policy == "not_larger" else max(factors)
            factors = [factor] * len(chosen)
            targets = [math.floor(sizes[a] * factor + 0.5) for a in chosen]
    else:
        raise UnsupportedModelError("Resize needs scales or sizes")
    return [
        Axis(a, sizes[a], t, f, *region)
        for a, t, f, region in zip(chosen, targets, factors, regions, strict=True)
    ]


def _refuse_ambiguous(node: Node, targets: list[float]) -> None:
    """Aligned corners of a size that is no whole number: the standard keeps the fraction, ONNX Runtime drops it."""
    aligned = node.text(*_COORDINATES) == "align_corners" and node.text("mode", "nearest") != "nearest"
    if aligned and any(abs(t - round(t)) > 1e-4 for t in targets):
        raise UnsupportedModelError(
            "Resize with align_corners by scales that give no whole size: ONNX and ONNX Runtime read it "
            "differently; export the model with sizes in place of scales"
        )


def _along(node: Node, x: Any, axis: Axis, outside: float) -> Any:
    """``x`` resized along one axis."""
    positions, weights, extrapolated = taps(node, axis)
    kind, place = dtype(x), axis.position
    count = positions.shape[1]
    integral = kind not in ("float32", "float16", "float64")
    wide = "float64" if kind == "float64" else "float32"
    one = bool(np.all(weights == 1.0) and count == 1 and not extrapolated.any())

    def kernel(x: te.Tensor, where: te.Tensor, weight: te.Tensor, beyond: te.Tensor) -> te.Tensor:
        def at(*index: Any) -> Any:
            i = index[place]
            total: Any = None
            for k in range(count):
                value = x(*index[:place], where(i, k), *index[place + 1 :])
                if one:
                    return value
                term = value.astype(wide) * weight(i, k).astype(wide)
                total = term if total is None else total + term
            if integral:
                total = te.nearbyint(total) if node.int("antialias", 0) else te.trunc(total)
            filled = total
            if extrapolated.any():
                filled = tirx.Select(beyond(i) > 0, tirx.const(outside, wide), total)
            return filled.astype(kind)

        sizes = [*x.shape]
        sizes[place] = axis.wanted
        return te.compute(sizes, at, name="resize")

    tables = [
        const(positions.astype(np.int32)),
        const(weights.astype(wide)),
        const(extrapolated.astype(np.int32)),
    ]
    return node.te(kernel, x, *tables, name="resize")


def taps(node: Node, axis: Axis) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """For each output element the positions ``[O, K]`` it reads, their weights, and whether it lies outside."""
    mode, coordinates = node.text("mode", "nearest"), node.text(*_COORDINATES)
    source = np.array([_source(coordinates, axis, i) for i in range(axis.wanted)], np.float64)
    beyond = np.zeros(axis.wanted, bool)
    if coordinates == "tf_crop_and_resize":
        beyond = (source < 0) | (source > axis.size - 1)
    if mode == "nearest":
        nearest = _rounded(source, node.text("nearest_mode", "round_prefer_floor"))
        positions = np.clip(nearest, 0, axis.size - 1)[:, None].astype(np.int64)
        return positions, np.ones(positions.shape), beyond
    stretch = max(1.0, 1 / axis.scale) if node.int("antialias", 0) else 1.0
    reach = (1 if mode == "linear" else 2) * stretch
    a = node.float("cubic_coeff_a", -0.75)
    first = np.floor(source - reach).astype(np.int64) + 1
    count = math.ceil(2 * reach) + (1 if stretch > 1 else 0)
    positions = first[:, None] + np.arange(count)[None, :]
    distance = np.abs(positions - source[:, None]) / stretch
    weights = np.maximum(1 - distance, 0) if mode == "linear" else _cubic(distance, a)
    outside = (positions < 0) | (positions >= axis.size)
    if node.int("exclude_outside", 0):
        weights = np.where(outside, 0, weights)
    weights = weights / weights.sum(axis=1, keepdims=True)
    return np.clip(positions, 0, axis.size - 1), weights, beyond


def _source(mode: str, axis: Axis, index: int) -> float:
    """Where output element ``index`` lies on the input's axis."""
    length = axis.scale * axis.size
    match mode:
        case "half_pixel":
            return (index + 0.5) / axis.scale - 0.5
        case "pytorch_half_pixel":
            return (index + 0.5) / axis.scale - 0.5 if axis.wanted > 1 else 0.0
        case "align_corners":
            return 0.0 if axis.wanted == 1 else index * (axis.size - 1) / (axis.wanted - 1)
        case "asymmetric":
            return index / axis.scale
        case "half_pixel_symmetric":
            adjustment = axis.wanted / length
            offset = axis.size / 2 * (1 - adjustment)
            return offset + (index + 0.5) / axis.scale - 0.5
        case "tf_crop_and_resize":
            if axis.wanted > 1:
                step = (axis.end - axis.begin) * (axis.size - 1) / (axis.wanted - 1)
                return axis.begin * (axis.size - 1) + index * step
            return 0.5 * (axis.begin + axis.end) * (axis.size - 1)
    raise UnsupportedModelError(f"the coordinate transformation {mode!r} is not one of the standard's")


def _rounded(source: np.ndarray[Any, Any], mode: str) -> np.ndarray[Any, Any]:
    # ONNX Runtime computes coordinates in float32: a half that float64 misses by a rounding stays a half.
    source = source.astype(np.float32)
    match mode:
        case "round_prefer_floor":
            return np.ceil(source - np.float32(0.5))
        case "round_prefer_ceil":
            return np.floor(source + np.float32(0.5))
        case "floor":
            return np.floor(source)
        case "ceil":
            return np.ceil(source)
    raise UnsupportedModelError(f"the rounding {mode!r} is not one of the standard's")


def _cubic(distance: np.ndarray[Any, Any], a: float) -> np.ndarray[Any, Any]:
    """The weights of cubic convolution (Keys 1981)."""
    d = distance
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0))


CONVERTERS: dict[str, type] = {"Resize": converter(resize)}
