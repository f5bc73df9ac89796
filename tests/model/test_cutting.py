"""Cutting a model in two: both parts together are the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model

from edgetune.errors import OutputError, UsageError
from edgetune.model import cutting
from edgetune.model.loading import SourceModel, load_model
from edgetune.model.prepare import parse, prepare
from edgetune.model.session import Session
from edgetune.model.variants import served

BRANCHES = """
    <ir_version: 8, opset_import: ["" : 17, "own" : 1]>
    two_parts (float[n, 4] x, float[n, 4] late, float[1] scale, bool flag)
    => (float[n, 4] y, float[n, 4] z, float[n, 4] mid)
    <float[4] w = {1.0, 2.0, 3.0, 4.0}, float[1] unused = {0.0}>
    {
        a = Mul(x, w)
        mid = own.twice(a)
        inside_free = Mul(mid, scale)
        y = If (flag) <
            then_branch = t () => (float[n, 4] p) { q = Neg(inside_free) p = Add(q, late) },
            else_branch = e () => (float[n, 4] r) { r = Identity(a) }
        >
        s = Exp(inside_free)
        z = Add(s, late)
    }
    <domain: "own", opset_import: ["" : 17]>
    twice (u) => (v) { h = Relu(u) v = Add(h, h) }
"""
INPUTS = {
    "x": np.arange(8, dtype=np.float32).reshape(2, 4) - 4,
    "late": np.ones((2, 4), np.float32),
    "scale": np.array([0.5], np.float32),
    "flag": np.array(True),
}


@pytest.fixture
def loaded() -> SourceModel:
    return load_model(parse_model(BRANCHES))


def run(model: onnx.ModelProto, values: dict[str, Any]) -> dict[str, np.ndarray]:
    onnx.checker.check_model(model)
    return Session(model).run({value.name: values[value.name] for value in model.graph.input})


@pytest.mark.parametrize("cut", [["a"], ["mid"], ["inside_free"], ["a", "inside_free"], ["s", "mid", "y"]])
def test_the_parts_make_the_whole(loaded: SourceModel, cut: list[str]) -> None:
    first = cutting.first_part(loaded, {"x": (2, 4)}, {"flag": True}, cut)
    prepared = prepare(loaded, {"x": (2, 4)}, {"flag": True}, cut)
    assert [spec.name for spec in prepared.outputs] == cut
    given = Session(parse(prepared)).run({spec.name: INPUTS[spec.name] for spec in prepared.inputs})
    assert run(first.model.proto, INPUTS).keys() == given.keys()
    rest = cutting.rest_part(loaded, {"flag": True}, served(prepared)[1])
    got = given | run(rest, INPUTS | given)
    for name, value in Session(loaded.proto).run(INPUTS).items():
        np.testing.assert_array_equal(got[name], value)


def test_a_part_has_only_what_it_needs(loaded: SourceModel) -> None:
    first = cutting.first_part(loaded, {"late": (2, 4)}, {"flag": True}, ["mid", "mid"])
    graph = first.model.proto.graph
    assert [value.name for value in graph.input] == ["x"]
    assert [value.name for value in graph.output] == ["mid"]
    assert [tensor.name for tensor in graph.initializer] == ["w"]
    # The size of the symbol was given with an input that is gone; the setting is the rest's.
    assert first.shapes == {"x": (2, 4)}
    assert first.freeze == {}
    rest = cutting.rest_part(
        loaded, {"flag": True}, served(prepare(loaded, {"x": (2, 4)}, cut=["mid", "a"]))[1]
    )
    assert [value.name for value in rest.graph.input] == ["mid", "a", "late", "scale"]
    assert [value.name for value in rest.graph.output] == ["y", "z"]
    note = cutting.describe_rest(rest, first.model.proto, Path("rest.onnx"))
    assert "4 nodes" in note
    assert "repeat" not in note


def test_a_rest_that_repeats_work_says_so(loaded: SourceModel) -> None:
    first = cutting.first_part(loaded, {}, {}, ["s"])
    rest = cutting.rest_part(loaded, {}, served(prepare(loaded, {"x": (2, 4)}, cut=["s"]))[1])
    assert "3 of its nodes repeat" in cutting.describe_rest(rest, first.model.proto, Path("rest.onnx"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("midd", "no such tensor; did you mean mid"),
        ("x", "is an input of the model"),
        ("w", "is a weight"),
        ("q", "inside a branch or body of the If node '.*': at 'y' behind this node|at 'y' behind this node"),
        ("h", "inside the model's own function 'twice'"),
    ],
)
def test_what_cannot_be_cut_at(loaded: SourceModel, name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        cutting.first_part(loaded, {}, {}, ["mid", name])


def test_the_name_of_a_node_is_taken_for_what_it_is() -> None:
    model = parse_model("""<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) {
        [the_node] a = Relu(x) y = Neg(a) }""")
    model.graph.node[0].name = "the_node"
    with pytest.raises(UsageError, match=r"name of a node.*--cut 'a'"):
        cutting.first_part(load_model(model), {}, {}, ["the_node"])


def test_nothing_left_and_bad_paths(loaded: SourceModel, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing is left"):
        cutting.rest_part(
            loaded, {}, served(prepare(loaded, {"x": (2, 4)}, {"flag": True}, ["y", "z", "mid"]))[1]
        )
    with pytest.raises(UsageError, match="--save-rest needs --cut"):
        cutting.check_options((), tmp_path / "rest.onnx")
    with pytest.raises(UsageError, match="give a list"):
        cutting.check_options("mid", None)
    with pytest.raises(OutputError, match=r"rest of the model .*--save-rest"):
        cutting.check_options(["mid"], tmp_path)


def test_the_frontier_leaves_out_what_the_rest_can_compute() -> None:
    model = parse_model("""<ir_version: 8, opset_import: ["" : 17]> g (float[n, 4] x, float[n, 4] u)
    => (float[n, 4] y) {
        a = Relu(x)
        two = Constant<value_float = 2.0>()
        sh = Shape(a)
        flat = Flatten(a)
        su = Shape(u)
        b = Mul(a, two)
        c = Neg(a)
        d = Mul(b, two)
        e = Sum(d, c, flat)
        f = Expand(e, sh)
        y = Expand(f, su)
    }""")
    # Sum is in the way. The rest has u, so its shape, too; that of a it could not tell from c and d ...
    assert cutting.frontier(model.graph, [8]) == (("sh", "flat", "c", "d"), 8)
    # ... but where it has a, and flat is then a view of a.
    model.graph.node[8].input.append("a")
    assert cutting.frontier(model.graph, [8]) == (("a", "c", "d"), 8)
    assert cutting.frontier(model.graph, [0]) == ((), 2)


def test_a_part_of_varying_sizes(loaded: SourceModel) -> None:
    """A size that varies in the whole varies in the part, whichever input it was given for; the rest leaves it open."""
    prepared = prepare(loaded, {"x": ("1..4", 4)}, cut=["mid"])
    assert [model.inputs[0].shape[0] for model in prepared.all_sizes] == [4, 2, 1]
    rest = cutting.rest_part(loaded, {"flag": True}, served(prepared)[1])
    assert rest.graph.input[0].name == "mid"
    assert not rest.graph.input[0].type.tensor_type.shape.dim[0].HasField("dim_value")
