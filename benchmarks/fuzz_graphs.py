"""Random and mutated ONNX models for ``fuzz.py``; the same seed gives the same model.

Four kinds: graphs of a few random nodes; ONNX's own node tests with fields changed; pieces of real models with
fields changed; any of these with bytes changed. Many are invalid on purpose, most are not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, TensorProto, helper, numpy_helper

SIZES = (1, 1, 2, 2, 3, 4, 5, 7)
RANDOM_OPERATORS = {
    "Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
}  # fmt: skip
"""Their values are not those of ONNX Runtime by definition."""
REAL_MODELS = ("ppocr-cls", "silero-vad", "squeezenet", "shufflenet")


def words(text: str) -> tuple[str, ...]:
    """The words of a text."""
    return tuple(text.split())


UNARY = words(
    "Abs Acos Acosh Asin Asinh Atan Atanh Ceil Celu Cos Cosh Elu Erf Exp Floor Gelu HardSigmoid HardSwish Hardmax "
    "Identity IsInf IsNaN LeakyRelu Log LogSoftmax LpNormalization MeanVarianceNormalization Mish Neg Reciprocal Relu "
    "Round Selu Shrink Sigmoid Sign Sin Sinh Softmax Softplus Softsign Sqrt Tan Tanh ThresholdedRelu"
)
ANY_UNARY = words("Abs Identity Neg Relu Sign Shape Size Flatten EyeLike Trilu NonZero Clip")
BINARY = words("Add Sub Mul Div Pow Max Min Mod PRelu Sum Mean")
COMPARE = words("Less Greater Equal LessOrEqual GreaterOrEqual")
REDUCE = words(
    "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceSumSquare"
)
TYPES = (np.float32,) * 10 + (
    np.int64,
    np.int64,
    np.int32,
    np.bool_,
    np.uint8,
    np.int8,
    np.float16,
    np.float64,
)


class Builder:
    """A graph under construction; ``values`` holds what was computed so far as (dtype, shape)."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.values: dict[str, tuple[Any, tuple[int, ...]]] = {}
        self.inputs: list[onnx.ValueInfoProto] = []
        self.constants: list[TensorProto] = []
        self.nodes: list[onnx.NodeProto] = []

    def pick(self, options: Any) -> Any:
        """One of the options."""
        return options[int(self.rng.integers(len(options)))]

    def chance(self, part: float) -> bool:
        """True in ``part`` of the cases."""
        return bool(self.rng.random() < part)

    def shape(self, rank: int | None = None) -> tuple[int, ...]:
        """A small shape, now and then a scalar's or one of no elements."""
        rank = int(self.rng.integers(0, 5)) if rank is None else rank
        return tuple(0 if self.chance(0.02) else self.pick(SIZES) for _ in range(rank))

    def array(self, dtype: Any, shape: tuple[int, ...], scale: float = 1.0) -> np.ndarray:
        """Values of a dtype; a few special ones among floats."""
        kind = np.dtype(dtype).kind
        if kind == "b":
            return self.rng.random(shape) < 0.5
        if kind in "iu":
            return self.rng.integers(0 if kind == "u" else -4, 5, shape).astype(dtype)
        return np.asarray(self.rng.standard_normal(shape) * scale).astype(dtype)

    def constant(self, array: Any) -> str:
        """An initializer."""
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def fresh(self, dtype: Any, shape: tuple[int, ...]) -> str:
        """A new input, or a constant."""
        if self.chance(0.3):
            name = self.constant(self.array(dtype, shape))
        else:
            name = f"x{len(self.inputs)}"
            self.inputs.append(
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)
            )
        self.values[name] = (np.dtype(dtype), shape)
        return name

    def operand(
        self, dtype: Any = None, rank: int | None = None, least: int = 0
    ) -> tuple[str, Any, tuple[int, ...]]:
        """A value that there is, or a new one: name, dtype, shape."""
        fitting = [
            name for name, (kind, shape) in self.values.items()
            if (dtype is None or kind == np.dtype(dtype)) and rank in (None, len(shape)) and len(shape) >= least
        ]  # fmt: skip
        if fitting and self.chance(0.75):
            name = fitting[-1] if self.chance(0.6) else self.pick(fitting)
        else:
            kind = self.pick(TYPES) if dtype is None else dtype
            rank = rank if rank is not None or not least else int(self.rng.integers(least, 5))
            name = self.fresh(kind, self.shape(rank))
        return (name, *self.values[name])

    def like(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A shape that broadcasts with another one."""
        cut = int(self.rng.integers(0, len(shape) + 1)) if self.chance(0.3) else 0
        return tuple(1 if self.chance(0.2) else size for size in shape[cut:])

    def node(self, op: str, inputs: list[str], outputs: int = 1, **attributes: Any) -> None:
        """Add a node whose outputs have the types that inference finds; one that it refuses seldom stays."""
        names = [f"t{len(self.nodes)}_{index}" for index in range(outputs)]
        made = helper.make_node(op, inputs, names, **attributes)
        self.nodes.append(made)
        try:
            graph = onnx.shape_inference.infer_shapes(self.model(), strict_mode=True, data_prop=True).graph
        except Exception:
            if not self.chance(0.03):
                self.nodes.pop()
            return
        for value in [*graph.value_info, *graph.output]:
            dims = value.type.tensor_type.shape.dim
            if value.name in names and all(d.HasField("dim_value") and d.dim_value >= 0 for d in dims):
                kind = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
                if np.prod([d.dim_value for d in dims] or [1]) <= 4096:
                    self.values[value.name] = (kind, tuple(d.dim_value for d in dims))

    def model(self, opset: int = 20) -> ModelProto:
        """What was built; every tensor that nobody reads is an output."""
        read = {name for node in self.nodes for name in node.input}
        made = [name for node in self.nodes for name in node.output if name]
        outputs = [name for name in made if name not in read] or made[-1:]
        infos = [helper.make_empty_tensor_value_info(name) for name in outputs]
        graph = helper.make_graph(self.nodes, "fuzz", self.inputs, infos, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def _elementwise(g: Builder) -> None:
    way = int(g.rng.integers(6))
    x, kind, shape = g.operand(None if way in (1, 2) else np.float32)
    if way == 0:
        g.node(g.pick(UNARY), [x])
    elif way == 1:
        g.node(g.pick(ANY_UNARY), [x])
    elif way == 2:
        g.node("Cast", [x], to=helper.np_dtype_to_tensor_dtype(np.dtype(g.pick(TYPES))))
    elif way == 3:
        g.node(g.pick(COMPARE), [x, g.fresh(kind, g.like(shape))])
    elif way == 4:
        g.node("Where", [g.fresh(np.bool_, g.like(shape)), x, g.fresh(kind, g.like(shape))])
    else:
        kind = g.pick((np.float32, np.float32, np.int64, np.int32, np.float64))
        x, kind, shape = g.operand(kind)
        op = g.pick(BINARY)
        g.node(
            op, [x, g.fresh(kind, g.like(shape))], **({"fmod": int(kind.kind == "f")} if op == "Mod" else {})
        )


def _logic(g: Builder) -> None:
    x, _, shape = g.operand(np.bool_)
    op = g.pick(("And", "Or", "Xor", "Not"))
    g.node(op, [x] if op == "Not" else [x, g.fresh(np.bool_, g.like(shape))])
    x, kind, shape = g.operand(g.pick((np.uint8, np.int32, np.int64)))
    g.node(g.pick(("BitwiseAnd", "BitwiseOr", "BitwiseXor")), [x, g.fresh(kind, g.like(shape))])


def _reduce(g: Builder) -> None:
    x, _, shape = g.operand(g.pick((np.float32, np.float32, np.int32, np.int64)))
    if g.chance(0.3) and shape:
        attributes = {
            "axis": int(g.rng.integers(-len(shape), len(shape))),
            "keepdims": int(g.rng.integers(2)),
        }
        g.node(g.pick(("ArgMax", "ArgMin")), [x], select_last_index=int(g.rng.integers(2)), **attributes)
        return
    axes = [int(a) for a in g.rng.permutation(len(shape))[: g.rng.integers(0, len(shape) + 1)]]
    operands = [x, g.constant(np.array([a - len(shape) if g.chance(0.3) else a for a in axes], np.int64))]
    if g.chance(0.2):
        operands = [x]
    g.node(
        g.pick(REDUCE), operands, keepdims=int(g.rng.integers(2)), noop_with_empty_axes=int(g.rng.integers(2))
    )


def _rearrange(g: Builder) -> None:
    x, kind, shape = g.operand(least=1)
    rank, ints = len(shape), lambda *v: g.constant(np.array(v, np.int64))
    axis = int(g.rng.integers(-rank, rank))
    op = g.pick(
        words("Reshape Transpose Squeeze Unsqueeze Concat Split Slice Expand Tile Pad CumSum TopK OneHot")
    )
    if op == "Reshape":
        sizes = [int(s) for s in g.rng.permutation(shape)]
        if g.chance(0.5):
            sizes[int(g.rng.integers(rank))] = -1
        g.node(op, [x, ints(*sizes)], allowzero=int(g.chance(0.3)))
    elif op == "Transpose":
        g.node(op, [x], **({"perm": [int(a) for a in g.rng.permutation(rank)]} if g.chance(0.8) else {}))
    elif op == "Squeeze":
        g.node(op, [x, ints(*[a for a in range(rank) if shape[a] == 1])])
    elif op == "Unsqueeze":
        g.node(op, [x, ints(int(g.rng.integers(-rank - 1, rank + 1)))])
    elif op == "Concat":
        other = tuple(g.pick(SIZES) if a == axis % rank else s for a, s in enumerate(shape))
        g.node(op, [x, g.fresh(kind, other), x][: int(g.rng.integers(1, 4))], axis=axis)
    elif op == "Split":
        g.node(op, [x], 2, axis=axis, num_outputs=2)
    elif op == "Slice":
        begin, end = (int(v) for v in g.rng.integers(-8, 9, 2))
        g.node(op, [x, ints(begin), ints(end), ints(axis), ints(int(g.pick((1, 1, 2, -1, -2))))])
    elif op == "Expand":
        g.node(op, [x, ints(*(g.pick(SIZES) if s == 1 else s for s in shape))])
    elif op == "Tile":
        g.node(op, [x, ints(*g.rng.integers(0 if g.chance(0.1) else 1, 3, rank))])
    elif op == "Pad":
        pads = g.rng.integers(-1 if g.chance(0.2) else 0, 3, 2 * rank)
        g.node(op, [x, ints(*pads)], mode=g.pick(("constant", "edge", "reflect", "wrap")))
    elif op == "CumSum":
        g.node(
            op,
            [x, g.constant(np.array(axis, np.int64))],
            reverse=int(g.rng.integers(2)),
            exclusive=int(g.rng.integers(2)),
        )
    elif op == "TopK":
        g.node(
            op,
            [x, ints(int(g.rng.integers(0, max(shape[axis], 1) + 1)))],
            2,
            axis=axis,
            largest=int(g.rng.integers(2)),
        )
    else:
        i = g.fresh(np.int64, shape)
        g.node(op, [i, ints(5), g.constant(np.array([0, 1], kind))], axis=axis)


def _gather(g: Builder) -> None:
    x, kind, shape = g.operand(least=1)
    axis = int(g.rng.integers(-len(shape), len(shape)))
    size = max(shape[axis], 1)
    op = g.pick(("Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND"))
    if op in ("GatherElements", "ScatterElements"):
        index = g.constant(g.rng.integers(-size, size, shape).astype(np.int64))
        rest = [g.fresh(kind, shape)] if op[0] == "S" else []
        more = {"reduction": g.pick(("none", "add", "max", "min", "mul"))} if op[0] == "S" else {}
        g.node(op, [x, index, *rest], axis=axis, **more)
    elif op == "Gather":
        g.node(op, [x, g.constant(g.rng.integers(-size, size, g.shape()).astype(np.int64))], axis=axis)
    else:
        index = g.constant(g.rng.integers(0, max(shape[0], 1), (2, 1)).astype(np.int64))
        g.node(op, [x, index, *([g.fresh(kind, (2, *shape[1:]))] if op[0] == "S" else [])])


def _window(g: Builder) -> None:
    rank = g.pick((1, 2, 2, 2, 3))
    x, _, shape = g.operand(np.float32, rank + 2)
    kernel = [int(v) for v in g.rng.integers(1, 4, rank)]
    attributes: dict[str, Any] = {"strides": [int(v) for v in g.rng.integers(1, 3, rank)]}
    if g.chance(0.3):
        attributes["auto_pad"] = g.pick(("SAME_UPPER", "SAME_LOWER", "VALID"))
    else:
        attributes["pads"] = [int(v) for v in g.rng.integers(0, 3, 2 * rank)]
    if g.chance(0.4):
        attributes["dilations"] = [int(v) for v in g.rng.integers(1, 3, rank)]
    op = g.pick(
        words(
            "Conv Conv ConvTranspose MaxPool AveragePool LpPool GlobalAveragePool GlobalMaxPool LRN DepthToSpace"
        )
    )
    if op.startswith("Conv"):
        group = g.pick([d for d in range(1, shape[1] + 1) if shape[1] % d == 0] or [1])
        out = group * g.pick((1, 2, 3))
        weight = (out, shape[1] // group) if op == "Conv" else (shape[1], out // group)
        bias = [g.constant(g.array(np.float32, (out,)))] if g.chance(0.5) else []
        g.node(
            op,
            [x, g.constant(g.array(np.float32, (*weight, *kernel), 0.3)), *bias],
            group=group,
            **attributes,
        )
    elif op.endswith("Pool") and not op.startswith("Global"):
        if op == "AveragePool":
            attributes["count_include_pad"] = int(g.rng.integers(2))
        outputs = 2 if op == "MaxPool" and g.chance(0.3) else 1
        g.node(op, [x], outputs, kernel_shape=kernel, ceil_mode=int(g.rng.integers(2)), **attributes)
    elif op == "LRN":
        g.node(op, [x], size=g.pick((1, 3, 5)))
    elif op == "DepthToSpace":
        g.node(g.pick((op, "SpaceToDepth")), [x], blocksize=2)
    else:
        g.node(op, [x])


def _network(g: Builder) -> None:
    op = g.pick(
        words(
            "MatMul Gemm Einsum BatchNormalization InstanceNormalization LayerNormalization Resize Quantize Recurrent"
        )
    )
    if op in ("MatMul", "Gemm", "Einsum"):
        x, kind, shape = g.operand(
            g.pick((np.float32, np.float32, np.int32)), 2 if op != "MatMul" else None, 1
        )
        y = g.fresh(kind, (shape[-1], g.pick(SIZES)))
        g.node(
            op,
            [x, y],
            **({"equation": "ij,jk->ki"} if op == "Einsum" else {"alpha": 0.5} if op == "Gemm" else {}),
        )
        return
    x, _, shape = g.operand(np.float32, None, 3)
    channel = [g.constant(np.abs(g.array(np.float32, (shape[1],))) + 0.1) for _ in range(4)]
    if op == "BatchNormalization":
        g.node(op, [x, *channel])
    elif op == "InstanceNormalization":
        g.node(op, [x, *channel[:2]])
    elif op == "LayerNormalization":
        axis = int(g.rng.integers(-len(shape), len(shape)))
        g.node(op, [x, g.constant(g.array(np.float32, shape[axis:]))], g.pick((1, 1, 3)), axis=axis)
    elif op == "Resize":
        scales = g.constant(
            np.array([1, 1, *g.rng.choice([0.5, 1, 1.5, 2, 2.3], len(shape) - 2)], np.float32)
        )
        rounding = g.pick(("floor", "ceil", "round_prefer_floor", "round_prefer_ceil"))
        coordinates = g.pick(("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"))
        more = {"nearest_mode": rounding, "coordinate_transformation_mode": coordinates}
        g.node(op, [x, "", scales], mode=g.pick(("nearest", "linear", "cubic")), **more)
    elif op == "Quantize":
        scale, zero = g.constant(np.float32(0.05)), g.constant(g.pick((np.uint8, np.int8))(3))
        g.node("QuantizeLinear", [x, scale, zero])
        g.node("DequantizeLinear", [g.nodes[-1].output[0] if g.nodes else x, scale, zero])
    else:
        x, _, shape = g.operand(np.float32, 3)
        op, gates = g.pick((("LSTM", 4), ("GRU", 3), ("RNN", 1)))
        ways, hidden = (2, 3) if g.chance(0.3) else (1, 2)
        w = g.constant(g.array(np.float32, (ways, gates * hidden, shape[2])))
        r = g.constant(g.array(np.float32, (ways, gates * hidden, hidden)))
        direction = "bidirectional" if ways == 2 else g.pick(("forward", "reverse"))
        g.node(op, [x, w, r], 2, hidden_size=hidden, direction=direction)


_STEPS: tuple[Callable[[Builder], None], ...] = (
    _elementwise, _elementwise, _elementwise, _logic, _reduce, _reduce, _rearrange, _rearrange, _rearrange, _gather,
    _window, _window, _network,
)  # fmt: skip


def random_graph(seed: int) -> ModelProto:
    """A graph of one to six random nodes."""
    g = Builder(seed)
    wanted = int(g.rng.integers(1, 7))
    while len(g.nodes) < wanted:
        g.pick(_STEPS)(g)
    return g.model(g.pick((20, 20, 20, 18, 17)))


@functools.cache
def node_tests() -> list[ModelProto]:
    """The models of ONNX's node tests, those with random operators left out."""
    import contextlib
    import io
    import warnings

    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        return [c.model for c in collect_testcases(None) if not _is_random(c.model)]


@functools.cache
def real_model(name: str) -> ModelProto:
    """A public model with the type and shape of every tensor."""
    from edgetune.model import registry
    from edgetune.model.prepare import parse, prepare

    entry = registry.get(name)
    return parse(prepare(registry.fetch(name), entry.shapes, entry.freeze))


def piece_of(model: ModelProto, rng: np.random.Generator) -> ModelProto:
    """A few nodes in a row of a model, as a model."""
    graph = model.graph
    first = int(rng.integers(len(graph.node)))
    nodes = list(graph.node)[first : first + int(rng.integers(1, 6))]
    made = {name for node in nodes for name in node.output}
    read = dict.fromkeys(name for node in nodes for name in node.input if name and name not in made)
    weights = [t for t in graph.initializer if t.name in read]
    known = {v.name: v for v in [*graph.input, *graph.value_info, *graph.output]}
    inputs = [known[n] for n in read if n in known and n not in {t.name for t in weights}]
    outputs = [known.get(n, helper.make_empty_tensor_value_info(n)) for n in nodes[-1].output if n]
    piece = helper.make_graph(nodes, "piece", inputs, outputs, weights)
    return helper.make_model(piece, opset_imports=model.opset_import, ir_version=model.ir_version)


def mutate_fields(model: ModelProto, rng: np.random.Generator) -> ModelProto:
    """A copy with one to three fields of its nodes, inputs, weights or operator set changed."""
    model = ModelProto.FromString(model.SerializeToString())
    for _ in range(int(rng.integers(1, 4))):
        node = model.graph.node[int(rng.integers(len(model.graph.node)))] if model.graph.node else None
        way = int(rng.integers(8))
        if way < 3 and node is not None and node.attribute:
            _mutate_attribute(node.attribute[int(rng.integers(len(node.attribute)))], rng)
        elif way == 3 and node is not None and len(node.input) > 1:
            i, j = (int(v) for v in rng.integers(0, len(node.input), 2))
            node.input[i], node.input[j] = node.input[j], node.input[i]
        elif way == 4 and node is not None and node.input:
            node.input[int(rng.integers(len(node.input)))] = ""
        elif way == 5 and model.graph.input:
            value = model.graph.input[int(rng.integers(len(model.graph.input)))].type.tensor_type
            if value.shape.dim:
                value.shape.dim[int(rng.integers(len(value.shape.dim)))].dim_value = int(
                    rng.choice([0, 1, 2, 3, 8])
                )
        elif way == 6 and model.graph.input:
            value = model.graph.input[int(rng.integers(len(model.graph.input)))].type.tensor_type
            value.elem_type = int(rng.integers(1, 17))
        elif model.opset_import:
            model.opset_import[0].version = max(1, model.opset_import[0].version + int(rng.integers(-6, 3)))
    return model


def _mutate_attribute(attribute: AttributeProto, rng: np.random.Generator) -> None:
    values = (0, 1, 2, 3, -1, -2, 5, 100, -(2**31), 2**40)
    if attribute.type == AttributeProto.INT:
        attribute.i = int(rng.choice(values))
    elif attribute.type == AttributeProto.INTS and attribute.ints:
        attribute.ints[int(rng.integers(len(attribute.ints)))] = int(rng.choice(values[:7]))
    elif attribute.type == AttributeProto.FLOAT:
        attribute.f = float(rng.choice([0.0, 1.0, -1.0, 1e-8, 1e30, np.inf, np.nan]))
    elif attribute.type == AttributeProto.STRING:
        attribute.s = bytes(rng.choice([b"", b"linear", b"SAME_UPPER", b"nonsense"]))
    elif attribute.ints:
        attribute.ints.pop()


def mutate_bytes(data: bytes, rng: np.random.Generator) -> bytes:
    """Bytes with a few of them changed, removed or repeated."""
    changed = bytearray(data)
    for _ in range(int(rng.integers(1, 6))):
        if not changed:
            break
        at = int(rng.integers(len(changed)))
        way = int(rng.integers(4))
        if way < 2:
            changed[at] = int(rng.integers(256))
        elif way == 2:
            del changed[at : at + int(rng.integers(1, 4))]
        else:
            changed[at:at] = changed[at : at + int(rng.integers(1, 9))]
    return bytes(changed)


def _is_random(model: ModelProto) -> bool:
    return any(node.op_type in RANDOM_OPERATORS for node in model.graph.node)


KINDS = {"random": 0.5, "node": 0.25, "piece": 0.17, "bytes": 0.08}
"""Kind of model -> its part of all."""


def case(seed: int, kind: str | None = None) -> bytes:
    """The model of a seed, as bytes that may be no model; of one kind where that is given."""
    rng = np.random.default_rng([seed, 1])
    kind = kind or str(rng.choice(list(KINDS), p=list(KINDS.values())))
    if kind == "random":
        return random_graph(seed).SerializeToString()
    tests = node_tests()
    if kind == "piece":
        model = piece_of(real_model(str(rng.choice(REAL_MODELS))), rng)
    else:
        model = tests[int(rng.integers(len(tests)))]
    if kind == "bytes":
        return mutate_bytes(model.SerializeToString(), rng)
    return mutate_fields(model, rng).SerializeToString()
