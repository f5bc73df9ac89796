"""Operations counted by hand for small graphs, and those the literature gives for real ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from onnx.parser import parse_model

from edgetune.model import flops, shapes
from edgetune.records import PreparedModel


def count(signature: str, body: str, opset: int = 17) -> int:
    model = parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> g {signature} {{ {body} }}')
    return flops.count_flops(shapes.annotate(model))


@pytest.mark.parametrize(
    ("signature", "body", "expected"),
    [
        # 8 x 10 x 10 outputs, each 3 x 3 x 4 multiply-accumulates
        (
            "(float[1,4,10,10] x, float[8,4,3,3] w) => (float[1,8,10,10] y)",
            "y = Conv<pads=[1,1,1,1]>(x, w)",
            2 * 800 * 36,
        ),
        # depthwise: one input channel each; the bias adds one for each output
        (
            "(float[1,4,10,10] x, float[4,1,3,3] w, float[4] b) => (float[1,4,8,8] y)",
            "y = Conv<group=4>(x, w, b)",
            256 * (2 * 9 + 1),
        ),
        # each of 4 x 5 x 5 inputs goes to 2 x 2 x 2 outputs
        (
            "(float[1,4,5,5] x, float[4,2,2,2] w) => (float[1,2,10,10] y)",
            "y = ConvTranspose<strides=[2,2]>(x, w)",
            2 * 100 * 8,
        ),
        ("(float[5,7] a, float[7,3] b) => (float[5,3] y)", "y = MatMul(a, b)", 2 * 5 * 7 * 3),
        ("(float[2,5,7] a, float[7,3] b) => (float[2,5,3] y)", "y = MatMul(a, b)", 2 * 2 * 5 * 7 * 3),
        (
            "(float[7,5] a, float[3,7] b, float[3] c) => (float[5,3] y)",
            "y = Gemm<transA=1, transB=1>(a, b, c)",
            2 * 5 * 7 * 3 + 15,
        ),
        ("(float[2,6] x) => (float[2,6] y)", "y = Relu(x)", 12),
        ("(float[2,6] x) => (float[2,6] y)", "y = Add(x, x)", 12),
        ("(float[2,6] x) => (float[12] y)", "s = Constant<value_ints=[12]>() y = Reshape(x, s)", 0),
        (
            "(float[1,2,8,8] x) => (float[1,2,4,4] y)",
            "y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x)",
            32 * 4,
        ),
        ("(float[1,2,8,8] x) => (float[1,2,1,1] y)", "y = GlobalAveragePool(x)", 128),
        ("(float[3,4] x) => (float[3,1] y)", "y = ReduceMax<axes=[1]>(x)", 12),
        (
            "(float[3,4] x, float[4,5] z) => (float[3,5] y)",
            'y = Einsum<equation="ij,jk->ik">(x, z)',
            2 * 3 * 4 * 5,
        ),
        # an LSTM step: 4 gates x hidden 2 x (input 3 + hidden 2) multiply-accumulates, and 5 more each
        (
            "(float[6,1,3] x, float[1,8,3] w, float[1,8,2] r) => (float[6,1,1,2] y)",
            "y = LSTM<hidden_size=2>(x, w, r)",
            6 * 4 * 2 * (2 * 5 + 5),
        ),
    ],
)
def test_small_graphs(signature: str, body: str, expected: int) -> None:
    assert count(signature, body) == expected


def test_an_if_counts_its_dearer_branch() -> None:
    body = """y = If (c) <
        then_branch = t () => (float[4] u) { u = Relu(x) },
        else_branch = e () => (float[4] v) { w = Relu(x) v = Neg(w) }
    >"""
    assert count("(bool c, float[4] x) => (float[4] y)", body) == 8


@pytest.mark.parametrize(
    ("name", "params", "macs"),
    [
        # SqueezeNet 1.1, torchvision's table: 1,235,496 parameters, 0.35 G multiply-accumulates
        ("squeezenet", 1_235_496, 352e6),
        # ShuffleNet 1x (g = 3): 140 MFLOPs in its paper, counting multiply-adds
        ("shufflenet", None, 140e6),
    ],
)
def test_published_counts(
    prepared_model: Callable[[str], PreparedModel], name: str, params: int | None, macs: float
) -> None:
    prepared = prepared_model(name)
    if params is not None:
        assert prepared.params == params
    assert prepared.flops / 2 == pytest.approx(macs, rel=0.1)
