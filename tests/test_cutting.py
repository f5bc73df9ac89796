"""What ``edgetune check`` advises works when it is followed to the letter: compile the prefix, keep the rest."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.parser import parse_model

import edgetune
from edgetune.model.session import Session

SHAPE = ["--shape", "image:1x3x32x32"]


def detector() -> onnx.ModelProto:
    """Two heads over a convolution, and NonMaxSuppression with a Gather of the boxes that it picks."""
    rng = np.random.default_rng(0)
    weights = {
        "w_body": rng.standard_normal((8, 3, 3, 3)).astype(np.float32) * 0.3,
        "w_boxes": rng.standard_normal((4, 8, 1, 1)).astype(np.float32) * 0.3,
        "w_scores": rng.standard_normal((2, 8, 1, 1)).astype(np.float32) * 0.3,
        "zero": np.array([0], np.int64),
        "four_rest": np.array([4, -1], np.int64),
        "two_rest": np.array([2, -1], np.int64),
        "most": np.array([5], np.int64),
        "iou": np.array([0.4], np.float32),
        "threshold": np.array([0.3], np.float32),
        "box_column": np.array(2, np.int64),
    }
    node = helper.make_node
    nodes = [
        node("Conv", ["image", "w_body"], ["c"], pads=[1] * 4, strides=[2, 2]),
        node("Relu", ["c"], ["features"]),
        node("Conv", ["features", "w_boxes"], ["b0"]),
        node("Conv", ["features", "w_scores"], ["s0"]),
        node("Shape", ["image"], ["image_shape"]),
        node("Gather", ["image_shape", "zero"], ["batch"]),
        node("Concat", ["batch", "four_rest"], ["boxes_shape"], axis=0),
        node("Concat", ["batch", "two_rest"], ["scores_shape"], axis=0),
        node("Reshape", ["b0", "boxes_shape"], ["b1"]),
        node("Transpose", ["b1"], ["boxes"], perm=[0, 2, 1]),
        node("Reshape", ["s0", "scores_shape"], ["s1"]),
        node("Sigmoid", ["s1"], ["scores"]),
        node("NonMaxSuppression", ["boxes", "scores", "most", "iou", "threshold"], ["picked"], name="nms"),
        node("Gather", ["picked", "box_column"], ["which"], axis=1),
        node("Squeeze", ["boxes", "zero"], ["flat_boxes"]),
        node("Gather", ["flat_boxes", "which"], ["kept"], axis=0),
    ]
    graph = helper.make_graph(
        nodes,
        "detector",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 3, "h", "w"])],
        [
            helper.make_tensor_value_info("picked", TensorProto.INT64, None),
            helper.make_tensor_value_info("kept", TensorProto.FLOAT, None),
        ],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def command(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "edgetune.cli.main", *args], capture_output=True, text=True, check=False
    )


def test_a_detector_keeps_its_post_processing(tmp_path: Path) -> None:
    model, rest, bundle = (str(tmp_path / name) for name in ("detector.onnx", "rest.onnx", "bundle"))
    onnx.save(detector(), model)
    checked = command("check", model, *SHAPE, "--json")
    assert checked.returncode == 1, checked.stderr
    found = json.loads(checked.stdout)
    assert [node["node"] for node in found["unsupported"]] == ["nms"]
    # flat_boxes is a view of boxes: it need not be handed over.
    assert found["prefix"] == {"cut": ["boxes", "scores"], "nodes": 13, "of": 16}
    assert "--cut boxes --cut scores" in found["message"]

    cut = [part for name in found["prefix"]["cut"] for part in ("--cut", name)]
    done = command("compile", model, *SHAPE, *cut, "--save-rest", rest, "--out", bundle, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rest"] == rest
    assert command("compare", bundle, "--model", model).returncode == 0

    image = np.random.default_rng(1).standard_normal((1, 3, 32, 32)).astype(np.float32)
    first = edgetune.load(bundle).run({"image": image})
    got = onnxruntime.InferenceSession(rest).run(["picked", "kept"], first)
    picked, kept = onnxruntime.InferenceSession(model).run(["picked", "kept"], {"image": image})
    assert len(picked) > 3
    np.testing.assert_array_equal(got[0], picked)
    np.testing.assert_allclose(got[1], kept, rtol=1e-4, atol=1e-5)


TWO_IN_THE_WAY = """
    <ir_version: 8, opset_import: ["" : 17, "lab" : 1]> g (float[2, 3] x) => (float[2, 3] y, float[2, 3] early)
    {
        a = Relu(x)
        early = Exp(a)
        b = lab.Gadget(a)
        c = Neg(early)
        d = Abs(b)
        e = Add(c, d)
        y = lab.Gizmo(e, c)
    }
"""
AN_INNER_GRAPH = """
    <ir_version: 8, opset_import: ["" : 17]> g (float[2, 3] x, bool flag) => (int64[2, k] y)
    {
        a = Relu(x)
        y = If (flag) <
            then_branch = t () => (int64[2, k] p) { p = NonZero(a) },
            else_branch = e () => (int64[2, k] q) { s = Sign(a) q = NonZero(s) }
        >
    }
"""
A_SEQUENCE = """
    <ir_version: 8, opset_import: ["" : 17]> g (float[2, 4] x) => (seq(float[2, 2]) y)
    { a = Relu(x) b = Neg(a) y = SplitToSequence<axis = 1>(b) }
"""
AT_ONCE = """
    <ir_version: 8, opset_import: ["" : 17, "lab" : 1]> g (float[2] x) => (float[2] y) { a = lab.Gadget(x) y = Relu(a) }
"""


@pytest.mark.parametrize(
    ("text", "cut", "nodes"),
    [
        (TWO_IN_THE_WAY, ("a", "early", "c"), 3),
        (AN_INNER_GRAPH, ("a",), 1),
        (A_SEQUENCE, ("b",), 2),
        (AT_ONCE, None, 0),
    ],
    ids=["two nodes of an unknown domain", "inside a branch", "a sequence as output", "the first node"],
)
def test_the_advice_can_be_followed(
    text: str, cut: tuple[str, ...] | None, nodes: int, tmp_path: Path
) -> None:
    model = parse_model(text)
    found = edgetune.check(model)
    assert not found.supported
    if cut is None:
        assert found.prefix is None
        return
    assert found.prefix is not None
    assert (found.prefix.cut, found.prefix.nodes) == (cut, nodes)
    assert shlex.split(found.prefix.options())[1::2] == list(cut)
    rest = tmp_path / "rest.onnx"
    again = edgetune.check(model, cut=found.prefix.cut, save_rest=rest)
    assert again.supported, again.message
    assert [value.name for value in again.outputs] == list(cut)
    assert again.rest == rest
    onnx.checker.check_model(onnx.load(rest))
    assert any("the rest of the model" in note for note in again.notes)


def test_the_rest_takes_every_size_that_the_bundle_serves(tmp_path: Path) -> None:
    """Sizes of their own kernels, and those in between, which are padded; the first part's rows stay apart."""
    model = parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        detector (float[n, 8] x, float[limit] threshold) => (int64[d, c] kept, float[n, 4] scores)
        <float[8, 4] w = {0.5, -1, 2, 0.25, 1, 1, -0.5, 3, 2, 0, 1, -1, 0.5, 0.75, -2, 1,
                          -1, 0.5, 1, 2, 0.25, -0.25, 1, 0, 1, -1, 2, 0.5, 0, 1, 0.5, -0.5}> {
            y = MatMul(x, w)
            scores = Sigmoid(y)
            good = Greater(scores, threshold)
            kept = NonZero(good)
        }"""
    )
    rest = tmp_path / "rest.onnx"
    shapes = {"x": ("1..4", 8), "threshold": (1,)}
    made = edgetune.compile(model, shapes=shapes, cut=["scores"], save_rest=rest, out=tmp_path / "b")
    loaded, after = edgetune.load(made.bundle), Session(onnx.load(rest))
    rng = np.random.default_rng(0)
    for rows in (1, 2, 3, 4):
        x, threshold = rng.standard_normal((rows, 8)).astype(np.float32), np.array([0.5], np.float32)
        expected = Session(model).run({"x": x, "threshold": threshold})
        scores = loaded.run({"x": x})
        np.testing.assert_allclose(scores["scores"], expected["scores"], 1e-5, 1e-6)
        kept = after.run({**scores, "threshold": threshold})["kept"]
        np.testing.assert_array_equal(kept, expected["kept"])
    with pytest.raises(edgetune.EdgetuneError, match=r"1\.\.4"):
        loaded.run({"x": np.zeros((5, 8), np.float32)})
