"""Random chains of operators along random axes: what the proof accepts, ONNX Runtime must confirm."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnxruntime
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from edgetune.model.rowwise.proof import rows
from edgetune.sizes import Dimension, Sizes

SIZES = Sizes((2, 3, 8))
ROWS, FEWER = 8, 5
KINDS = (
    *("elementwise", "softmax", "reduce", "move", "beside", "product"),
    *("join", "cut", "pick", "sum", "flat", "split"),
)
seen: Counter[bool] = Counter()


class Chain:
    """A model of nodes one after the other; ``shape`` is that of the last one's output with eight rows."""

    def __init__(self, axis: int) -> None:
        dims: list[int | str] = [3, 2, 4]
        dims.insert(axis, "size0")
        self.axis = axis
        self.shape = tuple(ROWS if dim == "size0" else int(dim) for dim in dims)
        self.graph = helper.make_graph([], "chain", [_value("x", dims)], [_value("y", None)])
        self.last = "x"

    def add(self, kind: str, *operands: np.ndarray, first: bool = True, **attributes: object) -> None:
        count = len(self.graph.node)
        names = [f"c{count}_{index}" for index in range(len(operands))]
        self.graph.initializer.extend(map(numpy_helper.from_array, operands, names))
        own = [self.last, self.last] if kind == "Concat" else [self.last]
        inputs = [*own, *names] if first else [*names, *own]
        self.graph.node.append(helper.make_node(kind, inputs, [f"t{count}"], **attributes))
        self.last = f"t{count}"
        self.shape = self.run(ROWS).shape

    def model(self) -> onnx.ModelProto:
        graph = onnx.GraphProto()
        graph.CopyFrom(self.graph)
        graph.node.append(helper.make_node("Identity", [self.last], ["y"]))
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    def run(self, count: int) -> np.ndarray:
        dims = [dim.dim_value or count for dim in self.graph.input[0].type.tensor_type.shape.dim]
        x = np.random.default_rng(0).standard_normal(
            [ROWS if axis == self.axis else size for axis, size in enumerate(dims)]
        )
        x = x.take(np.arange(count), self.axis).astype(np.float32)
        session = onnxruntime.InferenceSession(
            self.model().SerializeToString(), providers=["CPUExecutionProvider"]
        )
        return np.asarray(session.run(None, {"x": x})[0])


def _value(name: str, dims: list[int | str] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)


def _add_node(chain: Chain, draw: st.DrawFn) -> None:
    rank = len(chain.shape)
    axis = draw(st.integers(0, rank - 1))
    index = np.array([axis], np.int64)
    kind = draw(st.sampled_from(KINDS))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    if kind == "elementwise":
        chain.add(draw(st.sampled_from(["Relu", "Tanh", "Abs"])))
    elif kind == "softmax":
        chain.add("Softmax", axis=axis)
    elif kind == "reduce" and rank > 2:
        chain.add("ReduceMax", axes=[axis], keepdims=draw(st.integers(0, 1)))
    elif kind == "move":
        chain.add("Transpose", perm=draw(st.permutations(range(rank))))
    elif kind == "beside":
        dims = [size if draw(st.booleans()) else 1 for size in chain.shape[draw(st.integers(0, rank)) :]]
        chain.add("Add", rng.standard_normal(dims).astype(np.float32), first=draw(st.booleans()))
    elif kind == "product":
        chain.add("MatMul", 0.3 * rng.standard_normal((chain.shape[-1], 3)).astype(np.float32))
    elif kind == "join" and np.prod(chain.shape) < 2000:
        chain.add("Concat", axis=axis)
    elif kind == "cut":
        start = draw(st.integers(0, chain.shape[axis] - 1))
        chain.add("Slice", np.array([start]), np.array([2**31]), index)
    elif kind == "pick":
        picked = rng.integers(0, chain.shape[axis], (2,))
        chain.add("Gather", picked, axis=axis)
    elif kind == "sum":
        chain.add("CumSum", np.array(axis, np.int64))
    elif kind == "flat":
        chain.add("Flatten", axis=axis)
    elif kind == "split" and rank < 5:
        dims = list(chain.shape)
        dims[axis : axis + 1] = [-1, 2] if draw(st.booleans()) and dims[axis] % 2 == 0 else [1, -1]
        chain.add("Reshape", np.array(dims, np.int64))


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    chain = Chain(draw(st.integers(0, 3)))
    for _ in range(draw(st.integers(1, 4))):
        _add_node(chain, draw)
    return chain


@settings(max_examples=150, deadline=None, derandomize=True)
@given(chains())
def check(chain: Chain) -> None:
    found = rows(chain.model(), Dimension("n", SIZES, (("x", chain.axis),)))
    seen[not found.problem] += 1
    if found.problem:
        return
    whole, part = chain.run(ROWS), chain.run(FEWER)
    ((name, axis),) = found.outputs
    assert name == "y"
    np.testing.assert_allclose(whole.take(np.arange(FEWER), axis), part, rtol=1e-5, atol=1e-6)


def test_what_is_accepted_is_exact() -> None:
    check()
    assert min(seen[True], seen[False]) >= 20
