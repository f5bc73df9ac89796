"""A sample of ONNX's node tests through the whole pipeline, and the page that has the results of all of them.

``python benchmarks/node_tests.py`` runs all 1884 and writes the page.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]

ONCE_WRONG = """
attention_23_boolmask_fullymasked_row_nan_robustness attention_23_fullymasked_qk_matmul_output_mode3_zero_expanded
attention_24_fullymasked_qk_matmul_output_mode3_zero attention_24_qk_matmul_output_mode3_softmax_precision
attention_4d_causal_fp16_expanded attention_4d_causal_nonpad_negative_offset_structural_empty attention_4d_fp16
attention_4d_gqa_causal_nonpad_decode_fp16 attention_4d_gqa_with_past_and_present_fp16_expanded
attention_causal_boolmask_nan_robustness_expanded attention_local_window_gqa_rank4_mask
cast_FLOAT8E4M3FN_to_FLOAT cast_FLOAT_to_FLOAT8E5M2FNUZ cast_e8m0_FLOAT_to_FLOAT8E8M0
cast_no_saturate_FLOAT16_to_FLOAT8E5M2 castlike_UINT2_to_UINT8 cast_FLOAT16_to_INT4
causal_conv_with_state_silu_fp16 roialign_mode_max shape shape_start_greater_than_end
"""
REPRESENTATIVE = """
add_bcast affine_grid_2d_align_corners_expanded argmax_keepdims_example
batchnorm_epsilon_training_mode cast_BFLOAT16_to_FLOAT constant_pad
conv_with_strides_and_asymmetric_padding convtranspose_output_shape cumprod_1d deform_conv_with_mask_bias det_nd
dequantizelinear_blocked einsum_batch_matmul gather_elements_0 gelu_tanh_2 gru_seq_length gridsample_bicubic
layer_normalization_2d_axis0 logsoftmax_axis_0 lstm_with_peepholes matmulinteger maxpool_with_argmax_2d_precomputed_pads
melweightmatrix mod_mixed_sign_float32 onehot_negative_indices qlinearconv quantizelinear_int4
range_int32_type_negative_delta
reduce_max_empty_set reduce_log_sum_exp_empty_set reshape_allowzero_reordered resize_upsample_sizes_cubic
rms_normalization_3d_axis0_epsilon scatternd_add split_zero_size_splits_opset13 tensorscatter_circular
training_dropout_zero_ratio_mask triu_zero upsample_nearest where_example
"""
REFUSED = {
    "nonzero_example": "depends on the input's values",
    "string_concat": "numeric tensors only",
    "resize_downsample_scales_cubic_align_corners": "read it differently",
    "scan_sum": "how often Scan runs",
}


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        return importlib.import_module("node_tests")


@pytest.fixture(scope="module")
def cases(tool: ModuleType) -> dict[str, Any]:
    return tool.cases()


@pytest.fixture(scope="module")
def target() -> Any:
    from edgetune.targets import detect_local

    return detect_local(threads=1)


def outcome(tool: ModuleType, cases: dict[str, Any], target: Any, name: str) -> tuple[str, str]:
    case, _ = tool.readable(cases[f"test_{name}"])
    return tool.run_case(case, target)[:2]


@pytest.mark.parametrize("name", [*ONCE_WRONG.split(), *REPRESENTATIVE.split()])
def test_values(name: str, tool: ModuleType, cases: dict[str, Any], target: Any) -> None:
    assert outcome(tool, cases, target, name) == ("right", "")


@pytest.mark.parametrize("name", REFUSED)
def test_reasons(name: str, tool: ModuleType, cases: dict[str, Any], target: Any) -> None:
    state, reason = outcome(tool, cases, target, name)
    assert state == "refused"
    assert REFUSED[name] in reason


def test_the_page_names_every_operator_and_nothing_wrong(tool: ModuleType, cases: dict[str, Any]) -> None:
    rows = [
        [cell.strip() for cell in line.split(" | ")]
        for line in (ROOT / "docs" / "operators.md").read_text().splitlines()
        if line.startswith("| ") and not line.startswith("| operator")
    ]
    named = {row[0].removeprefix("| ") for row in rows}
    assert named == {tool.operator_of(case) for case in cases.values()}
    assert [row[0] for row in rows if row[4] != "0"] == []
