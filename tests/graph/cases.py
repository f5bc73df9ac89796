"""Random small models, drawn through a function that chooses among options.

``choose`` is hypothesis's ``draw(sampled_from(options))`` or ``random.Random(seed).choice``. A case may come out
invalid, such as a window larger than its padded input: ``prepare`` then refuses the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx

from tests.graph.support import model, node, weights

Choose = Callable[[Sequence[Any]], Any]

SIZES = (1, 2, 3, 5, 7, 8, 11, 13, 16, 17)
CHANNELS = (1, 2, 3, 4, 5, 7, 8, 12, 15, 16, 17, 20, 24, 31, 32, 33, 40)
ACTIVATIONS = ("Relu", "Sigmoid", "Tanh", "HardSwish", "LeakyRelu", "Elu", "Clip", "Identity")


def activation(
    choose: Choose, source: str, result: str
) -> tuple[list[onnx.NodeProto], dict[str, np.ndarray]]:
    op = choose(ACTIVATIONS)
    if op == "Clip":
        names = {f"{result}_low": np.float32(choose((-1, 0))), f"{result}_high": np.float32(choose((1, 6)))}
        return [node(op, [source, *names], [result])], {k: np.asarray(v) for k, v in names.items()}
    return [node(op, [source], [result])], {}


def window(choose: Choose, rank: int, pads: Sequence[int] = (0, 0, 1, 2, 3)) -> dict[str, Any]:
    """Random strides, dilations and padding of a window."""
    attributes: dict[str, Any] = {}
    if choose((True, False)):
        attributes["strides"] = [choose((1, 2, 3)) for _ in range(rank)]
    if choose((True, False, False)):
        attributes["dilations"] = [choose((1, 2, 3)) for _ in range(rank)]
    padding = choose(("none", "pads", "pads", "SAME_UPPER", "SAME_LOWER", "VALID"))
    if padding == "pads":
        attributes["pads"] = [choose(pads) for _ in range(2 * rank)]
    elif padding != "none":
        attributes["auto_pad"] = padding
        attributes.pop("dilations", None)
    return attributes


def grouped_channels(choose: Choose) -> tuple[int, int, int]:
    """Input channels, output channels, groups."""
    kind = choose(("dense", "dense", "groups", "depthwise", "multiplier"))
    if kind == "dense":
        return choose(CHANNELS), choose(CHANNELS), 1
    if kind == "groups":
        groups = choose((2, 3, 4))
        return groups * choose((1, 2, 4, 8, 9, 16)), groups * choose((1, 2, 5, 8, 16)), groups
    channels = choose(CHANNELS)
    return channels, channels * (2 if kind == "multiplier" else 1), channels


def conv(choose: Choose, rank: int = 2) -> onnx.ModelProto:
    channels, out, groups = grouped_channels(choose)
    kernel = [choose((1, 1, 2, 3, 3, 4, 5, 6, 7)) for _ in range(rank)]
    sizes = [choose(SIZES) for _ in range(rank)]
    constants = {
        "w": weights(out, channels // groups, *kernel, scale=(channels // groups * np.prod(kernel)) ** -0.5)
    }
    inputs = ["x", "w"]
    if choose((True, False)):
        constants["b"] = weights(out)
        inputs.append("b")
    attributes = {"group": groups, **window(choose, rank)}
    tail, more = activation(choose, "conv", "y")
    return model(
        [node("Conv", inputs, ["conv"], **attributes), *tail],
        {"x": (choose((1, 1, 2, 3)), channels, *sizes)},
        constants | more,
    )


def conv1d(choose: Choose) -> onnx.ModelProto:
    return conv(choose, 1)


def conv3d(choose: Choose) -> onnx.ModelProto:
    return conv(choose, 3)


def conv_transpose(choose: Choose) -> onnx.ModelProto:
    rank = choose((1, 2, 2, 2, 2))
    groups = choose((1, 1, 1, 2, 3))
    channels, per_group = groups * choose((1, 3, 8, 16, 17)), choose((1, 2, 8, 16, 19))
    kernel = [choose((1, 2, 3, 4)) for _ in range(rank)]
    attributes: dict[str, Any] = {"group": groups}
    attributes["strides"] = kernel if choose((True, False)) else [choose((1, 2, 3)) for _ in range(rank)]
    if choose((True, False, False)):
        attributes["dilations"] = [choose((1, 2)) for _ in range(rank)]
    if choose((True, False)):
        attributes["pads"] = [choose((0, 1)) for _ in range(2 * rank)]
    if choose((True, False, False)):
        attributes["output_padding"] = [choose(range(s)) for s in attributes["strides"]]
    constants = {"w": weights(channels, per_group, *kernel, scale=channels**-0.5)}
    inputs = ["x", "w"]
    if choose((True, False)):
        constants["b"] = weights(groups * per_group)
        inputs.append("b")
    shape = (choose((1, 1, 2)), channels, *(choose((1, 3, 5, 8, 11)) for _ in range(rank)))
    tail, more = activation(choose, "conv", "y")
    return model(
        [node("ConvTranspose", inputs, ["conv"], **attributes), *tail], {"x": shape}, constants | more
    )


def pool(choose: Choose) -> onnx.ModelProto:
    """Pooling of a plain input, or of a convolution's blocked output."""
    op = choose(
        ("MaxPool", "MaxPool", "AveragePool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool")
    )
    after_conv = choose((True, True, False))
    rank = choose((1, 2, 2)) if after_conv else choose((1, 2, 2, 3))
    channels = choose(CHANNELS)
    attributes: dict[str, Any] = {}
    if not op.startswith("Global"):
        kernel = [choose((1, 2, 3, 4, 5)) for _ in range(rank)]
        attributes = {"kernel_shape": kernel, **window(choose, rank, (0, 1))}
        if "pads" in attributes:
            # Padding must be smaller than the kernel.
            attributes["pads"] = [min(p, k - 1) for p, k in zip(attributes["pads"], kernel * 2, strict=True)]
        if op == "LpPool":
            attributes["p"] = choose((1, 2, 3))
        if choose((True, False)):
            attributes["ceil_mode"] = 1
        if op == "AveragePool" and choose((True, False)):
            attributes["count_include_pad"] = 1
    # A window larger than its input has no output, which ONNX Runtime does not always say.
    spans = [
        d * (k - 1) + 1
        for k, d in zip(
            attributes.get("kernel_shape", [1] * rank), attributes.get("dilations", [1] * rank), strict=True
        )
    ]
    shape = (choose((1, 1, 2)), channels, *(max(choose(SIZES), span) for span in spans))
    nodes, constants, source = [], {}, "x"
    if after_conv:
        constants["w"] = weights(channels, channels, *[1] * rank)
        nodes.append(node("Conv", ["x", "w"], ["c"]))
        source = "c"
    return model(
        [*nodes, node(op, [source], ["y"], **attributes)],
        {"x": shape},
        constants,
        opset=19 if op != "LpPool" else 18,
    )


def reduction(choose: Choose) -> onnx.ModelProto:
    op = choose(
        (
            "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
            "ReduceSumSquare", "ReduceLogSumExp", "Softmax", "Softmax", "LogSoftmax", "LayerNormalization",
            "ArgMax", "ArgMin", "Hardmax", "CumSum", "TopK", "InstanceNormalization", "LpNormalization",
        )
    )  # fmt: skip
    rank = choose((1, 2, 3, 4))
    shape = [choose((1, 2, 3, 5, 8, 16, 17, 33, 64, 100)) for _ in range(rank)]
    inputs, constants, attributes, outputs = ["x"], {}, {}, ["y"]
    if op.startswith("Reduce"):
        axes = [a for a in range(rank) if choose((True, False))]
        if axes:
            constants["axes"] = np.array([a - rank if choose((True, False)) else a for a in axes], np.int64)
            inputs.append("axes")
        attributes["keepdims"] = choose((0, 1))
    elif op in ("Softmax", "LogSoftmax", "Hardmax", "LpNormalization"):
        attributes["axis"] = choose(range(-rank, rank))
    elif op in ("ArgMax", "ArgMin"):
        attributes = {"axis": choose(range(-rank, rank)), "keepdims": choose((0, 1))}
    elif op == "CumSum":
        constants["axis"] = np.asarray(np.int64(choose(range(-rank, rank))))
        inputs.append("axis")
        attributes = {"exclusive": choose((0, 1)), "reverse": choose((0, 1))}
    elif op == "TopK":
        axis = choose(range(rank))
        constants["k"] = np.array([min(3, shape[axis])], np.int64)
        inputs.append("k")
        attributes = {"axis": axis, "largest": choose((0, 1))}
        outputs = ["y", "z"]
    elif op == "LayerNormalization":
        axis = choose(range(rank))
        attributes = {"axis": axis, "epsilon": 1e-3}
        constants = {"s": weights(*shape[axis:]), "b": weights(*shape[axis:])}
        inputs += ["s", "b"] if choose((True, False)) else ["s"]
    elif op == "InstanceNormalization":
        shape = [choose((1, 2)), choose(CHANNELS), choose(SIZES), choose(SIZES)]
        constants = {"s": weights(shape[1]), "b": weights(shape[1])}
        inputs += ["s", "b"]
    return model([node(op, inputs, outputs, **attributes)], {"x": tuple(shape)}, constants, outputs, opset=18)


def product(choose: Choose) -> onnx.ModelProto:
    """MatMul of ranks 1 to 4 or Gemm, with a constant or computed right side."""
    rows, depth, columns = (choose((1, 2, 3, 5, 8, 16, 17, 31, 64, 100)) for _ in range(3))
    constant = choose((True, True, False))
    if choose((True, False, False)):
        return _gemm(choose, rows, depth, columns, constant)
    lead = [choose((1, 2, 3)) for _ in range(choose((0, 0, 1, 2)))]
    left = (*lead, rows, depth) if choose((True, True, True, False)) else (depth,)
    right_lead = choose(((), (), tuple(lead), (1,) * len(lead)))
    right = (*right_lead, depth, columns) if choose((True, True, True, False)) else (depth,)
    return _with_right("MatMul", left, right, constant, {}, choose)


def _with_right(
    op: str,
    left: Sequence[int],
    right: Sequence[int],
    constant: bool,
    attributes: dict[str, Any],
    choose: Choose,
) -> onnx.ModelProto:
    inputs = {"x": tuple(left)}
    constants = {}
    if constant:
        constants["w"] = weights(*right)
    else:
        inputs["w"] = tuple(right)
    tail, more = activation(choose, "p", "y")
    return model([node(op, ["x", "w"], ["p"], **attributes), *tail], inputs, constants | more)


def _gemm(choose: Choose, rows: int, depth: int, columns: int, constant: bool) -> onnx.ModelProto:
    attributes: dict[str, Any] = {"transA": choose((0, 1)), "transB": choose((0, 1))}
    if choose((True, False)):
        attributes |= {"alpha": 0.5, "beta": 0.25}
    left = (depth, rows) if attributes["transA"] else (rows, depth)
    right = (columns, depth) if attributes["transB"] else (depth, columns)
    bias = choose((None, (), (1,), (columns,), (1, columns), (rows, 1), (rows, columns)))
    if bias is None:
        return _with_right("Gemm", left, right, constant, attributes, choose)
    inputs: dict[str, Any] = {"x": left}
    constants = {"b": weights(*bias)}
    if constant:
        constants["w"] = weights(*right)
    else:
        inputs["w"] = right
    return model([node("Gemm", ["x", "w", "b"], **attributes)], inputs, constants)


# Continuous ones: a step would turn a rounding error into a difference of one.
UNARY = (
    "Relu", "Sigmoid", "Tanh", "Exp", "Abs", "Neg", "Erf", "Softplus", "Softsign",
    "HardSigmoid", "HardSwish", "LeakyRelu", "Elu", "Selu", "Sin", "Cos", "Mish", "Gelu",
    "Atan",
)  # fmt: skip
BINARY = ("Add", "Sub", "Mul", "Max", "Min", "Div", "PRelu")


def elementwise(choose: Choose) -> onnx.ModelProto:
    """A chain of unary and broadcast binary operators, plain or on a convolution's blocked output."""
    blocked = choose((True, True, False))
    rank = choose((3, 4, 4)) if blocked else choose((0, 1, 2, 3, 4, 5))
    shape = [choose((1, 2)), choose(CHANNELS), choose(SIZES), choose(SIZES)][:rank] + [
        choose((1, 3)) for _ in range(rank - 4)
    ]
    nodes, constants, values = [], {}, ["x"]
    if blocked:
        constants["w"] = weights(shape[1], shape[1], *[1] * (rank - 2), scale=0.3)
        nodes.append(node("Conv", ["x", "w"], ["c"]))
        values.append("c")
    for step in range(choose((1, 2, 3, 4, 5))):
        result = f"v{step}"
        source = values[-1] if choose((True, True, False)) else choose(values)
        if choose((True, False)):
            nodes.append(node(choose(UNARY), [source], [result]))
        else:
            op = choose(BINARY)
            other = choose((*values, "constant", "constant"))
            if other == "constant" or op == "PRelu":
                other = f"k{step}"
                broadcast = [d if choose((True, False)) else 1 for d in shape][choose((0, 0, *range(rank))) :]
                constants[other] = np.abs(weights(*broadcast)) + np.float32(0.5)
            elif op == "Div":
                op = "Add"
            pair = (
                [source, other] if choose((True, True, False)) or op in ("PRelu", "Div") else [other, source]
            )
            nodes.append(node(op, pair, [result]))
        values.append(result)
    outputs = [values[-1]]
    if choose((True, False, False)):
        outputs.append(choose([v for v in values if v not in ("x", outputs[0])] or outputs))
    return model(nodes, {"x": tuple(shape)}, constants, sorted(set(outputs)), opset=20)


def movement(choose: Choose) -> onnx.ModelProto:
    """A convolution, then operators that move its values about, then perhaps another convolution."""
    channels = choose((2, 4, 8, 12, 16, 17, 32, 48))
    height, width = choose((2, 4, 6, 7)), choose((2, 4, 5, 8))
    c = {"w": weights(channels, 3, 1, 1), "v": weights(16, channels, 3, 3)}
    nodes = [node("Conv", ["x", "w"], ["a"])]
    for step in range(choose((1, 2))):
        moved, more = _move(choose, channels, "a" if step == 0 else "m0", f"m{step}", step)
        nodes, c = nodes + moved, c | more
    last = nodes[-1].output[0]
    if choose((True, False)):
        # The second convolution needs as many channels as shape inference finds.
        made = model(nodes, {"x": (choose((1, 2)), 3, height, width)}, c, [last], opset=18)
        dims = [d.dim_value for d in made.graph.output[0].type.tensor_type.shape.dim]
        if len(dims) == 4 and all(dims):
            c["v"] = weights(choose((5, 16)), dims[1], 3, 3)
            nodes.append(node("Conv", [last, "v"], ["y"], pads=[1, 1, 1, 1]))
            last = "y"
    return model(nodes, {"x": (1, 3, height, width)}, c, [last], opset=18)


def _move(
    choose: Choose, channels: int, source: str, result: str, step: int
) -> tuple[list[onnx.NodeProto], dict[str, np.ndarray]]:
    op = choose(
        (
            "Concat", "Concat", "Transpose", "Pad", "Resize", "Resize", "Slice", "Split", "Shuffle",
            "Flatten", "SqueezeExcite", "DepthToSpace", "SpaceToDepth", "Tile", "Gather", "Expand", "Upsample",
        )
    )  # fmt: skip
    k = f"k{step}"
    ints = {k: np.array([1], np.int64)}
    if op == "Concat":
        axis = choose((0, 1, 1, 1, 2, 3))
        parts = [source, f"{source}r", source][: choose((2, 3))]
        return [node("Relu", [source], [f"{source}r"]), node("Concat", parts, [result], axis=axis)], {}
    if op == "Transpose":
        return [
            node("Transpose", [source], [result], perm=choose(((0, 2, 3, 1), (0, 1, 3, 2), (1, 0, 2, 3))))
        ], {}
    if op == "Pad":
        mode = choose(("constant", "reflect", "edge"))
        return [node("Pad", [source, k], [result], mode=mode)], {
            k: np.array([0, 0, 1, 0, 0, 0, 0, 1], np.int64)
        }
    if op in ("Resize", "Upsample"):
        attributes = {
            "mode": choose(("nearest", "nearest", "linear", "cubic")),
            "coordinate_transformation_mode": choose(
                ("asymmetric", "half_pixel", "align_corners", "pytorch_half_pixel")
            ),
        }
        if attributes["mode"] == "nearest":
            attributes["nearest_mode"] = choose(("floor", "ceil", "round_prefer_floor", "round_prefer_ceil"))
        scales = np.array([1, 1, choose((1, 2, 3, 1.5, 0.5)), choose((1, 2, 3, 1.5, 0.5))], np.float32)
        return [node("Resize", [source, "", k], [result], **attributes)], {k: scales}
    if op == "Slice":
        axis = choose((1, 2, 3))
        ints = {
            f"{k}{n}": np.array([v], np.int64)
            for n, v in zip("seat", (choose((0, 1, -2)), 100, axis, choose((1, 2))), strict=True)
        }
        return [node("Slice", [source, *ints], [result])], ints
    if op == "Split":
        return [
            node("Split", [source], [f"{k}a", f"{k}b"], axis=choose((1, 3)), num_outputs=2),
            node("Concat", [f"{k}b", f"{k}a"], [result], axis=choose((1, 2))),
        ], {}
    if op == "Shuffle":
        shapes = {f"{k}p": np.array([0, 2, -1, 0, 0], np.int64)}
        shapes = {f"{k}s": np.array([0, 0, 1, -1], np.int64)} if choose((True, False)) else shapes
        if f"{k}s" in shapes:
            return [node("Reshape", [source, f"{k}s"], [result])], shapes
        height_width = {f"{k}q": np.array([0, -1, 2, 2], np.int64)}
        return [
            node("Reshape", [source, f"{k}q"], [f"{k}t"]),
            node("Transpose", [f"{k}t"], [result], perm=[0, 2, 1, 3]),
        ], height_width
    if op == "Flatten":
        return [node("Flatten", [source], [result])], {}
    if op == "SqueezeExcite":
        return [
            node("GlobalAveragePool", [source], [f"{k}g"]),
            node("Sigmoid", [f"{k}g"], [f"{k}h"]),
            node("Mul", [source, f"{k}h"] if choose((True, False)) else [f"{k}h", source], [result]),
        ], {}
    if op in ("DepthToSpace", "SpaceToDepth"):
        attributes = {"mode": choose(("DCR", "CRD"))} if op == "DepthToSpace" else {}
        return [node(op, [source], [result], blocksize=2, **attributes)], {}
    if op == "Tile":
        return [node("Tile", [source, k], [result])], {k: np.array([1, choose((1, 2)), 1, 2], np.int64)}
    if op == "Gather":
        return [node("Gather", [source, k], [result], axis=choose((1, 2, 3)))], {
            k: np.array([1, 0, -1], np.int64)
        }
    return [
        node("GlobalMaxPool", [source], [f"{k}g"]),
        node("Add", [f"{k}g", source], [f"{k}h"]),
        node("Sub", [f"{k}h", f"{k}g"], [result]),
    ], {}


def network(choose: Choose, rank: int = 2) -> onnx.ModelProto:
    """A few convolutions, poolings and residuals over blocked values of changing padding."""
    channels = choose(CHANNELS)
    spatial = (choose((4, 7, 8, 9, 13)), choose((4, 5, 8, 11)))[:rank]
    nodes, constants = (
        [node("Conv", ["x", "w"], ["v0"], pads=[1, 1] * rank)],
        {"w": weights(channels, 3, *[3] * rank, scale=0.3)},
    )
    values = [("v0", channels)]
    for step in range(1, choose((2, 3, 4, 5))):
        result = f"v{step}"
        source, count = choose(values[-2:])
        kind = choose(("conv", "conv", "depthwise", "grouped", "pool", "residual", "concat", "act", "gate"))
        k = f"k{step}"
        same = [v for v, n in values if n == count]
        if kind in ("conv", "depthwise", "grouped"):
            groups = {
                "conv": 1,
                "depthwise": count,
                "grouped": next(g for g in (4, 3, 2, 1) if count % g == 0),
            }[kind]
            out = {"conv": choose(CHANNELS), "depthwise": count, "grouped": groups * choose((1, 5, 8, 16))}[
                kind
            ]
            size = choose((1, 3))
            constants[k] = weights(out, count // groups, *[size] * rank, scale=0.3)
            nodes.append(node("Conv", [source, k], [result], group=groups, pads=[size // 2] * 2 * rank))
            count = out
        elif kind == "pool":
            nodes.append(
                node(
                    choose(("MaxPool", "AveragePool")),
                    [source],
                    [result],
                    kernel_shape=[3] * rank,
                    pads=[1, 1] * rank,
                )
            )
        elif kind == "residual":
            nodes.append(node(choose(("Add", "Mul", "Max")), [source, choose(same)], [result]))
        elif kind == "concat":
            other, more = choose(values)
            nodes.append(node("Concat", [source, other], [result], axis=1))
            count += more
        elif kind == "gate":
            nodes.append(node("GlobalAveragePool", [source], [f"{k}g"]))
            nodes.append(node("Mul", [choose(same), f"{k}g"], [result]))
        else:
            tail, more_constants = activation(choose, source, result)
            nodes, constants = nodes + tail, constants | more_constants
        values.append((result, count))
    outputs = {values[-1][0], choose(values)[0]}
    return model(nodes, {"x": (choose((1, 1, 2)), 3, *spatial)}, constants, sorted(outputs))


def sequences(choose: Choose) -> onnx.ModelProto:
    """The same over sequences, whose convolutions have one dimension."""
    return network(choose, 1)


FAMILIES: dict[str, Callable[[Choose], onnx.ModelProto]] = {
    case.__name__: case
    for case in (
        conv,
        conv1d,
        conv3d,
        conv_transpose,
        pool,
        reduction,
        product,
        elementwise,
        movement,
        network,
        sequences,
    )
}
