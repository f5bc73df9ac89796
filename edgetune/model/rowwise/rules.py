"""The operators that keep rows apart. One that is not here counts as mixing them."""

from __future__ import annotations

from edgetune.model.rowwise import arithmetic, moving
from edgetune.model.rowwise.facts import Rule

_ELEMENTWISE = """
    Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast Ceil Celu
    Clip Cos Cosh Div Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish Identity IsInf IsNaN
    LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod Mul Neg Not Or PRelu Pow Reciprocal Relu Round Selu
    Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Where Xor
"""
_LEADING = """
    AveragePool Conv ConvInteger ConvTranspose DepthToSpace GlobalAveragePool GlobalLpPool GlobalMaxPool
    GroupNormalization InstanceNormalization LRN LpPool MaxPool QLinearConv SpaceToDepth
"""
_REDUCTIONS = """
    ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
    ReduceSumSquare
"""

RULES: dict[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE.split(), arithmetic.elementwise),
    **dict.fromkeys(_LEADING.split(), arithmetic.leading),
    **dict.fromkeys(_REDUCTIONS.split(), moving.reduce),
    **dict.fromkeys(("ArgMax", "ArgMin"), moving.arg_reduce),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), moving.softmax),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), arithmetic.quantize),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), arithmetic.recurrent),
    **dict.fromkeys(("Reshape", "Squeeze", "Unsqueeze"), moving.reshape),
    **dict.fromkeys(("Resize", "Upsample"), moving.resize),
    "BatchNormalization": arithmetic.batch_norm,
    "Concat": moving.concat,
    "CumSum": moving.cumsum,
    "Expand": moving.expand,
    "Flatten": moving.flatten,
    "Gather": moving.gather,
    "Gemm": arithmetic.gemm,
    "LayerNormalization": moving.from_axis(-1),
    "LpNormalization": moving.along(-1),
    "MatMul": arithmetic.matmul,
    "MatMulInteger": arithmetic.matmul_integer,
    "Pad": moving.pad,
    "QLinearMatMul": arithmetic.qlinear_matmul,
    "RMSNormalization": moving.from_axis(-1),
    "Slice": moving.slice_,
    "Split": moving.along(0),
    "Tile": moving.tile,
    "TopK": moving.along(-1),
    "Transpose": moving.transpose,
}
