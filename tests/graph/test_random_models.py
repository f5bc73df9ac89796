"""Random small models of every family against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from edgetune.errors import ModelError, UnsupportedModelError
from edgetune.graph.compile import compile_model
from edgetune.graph.lower import lower
from edgetune.model.prepare import prepare
from edgetune.targets import Target
from tests.graph.cases import FAMILIES
from tests.graph.support import mismatches, run

EXAMPLES = {
    "conv": 12,
    "network": 12,
    "sequences": 8,
    "elementwise": 10,
    "conv_transpose": 8,
    "product": 8,
    "pool": 8,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_agrees_with_onnx_runtime(family: str, local_target: Target) -> None:
    @settings(
        max_examples=EXAMPLES.get(family, 5), deadline=None, derandomize=True, database=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.data())
    def check(data: st.DataObject) -> None:
        def choose(options: Sequence[Any]) -> Any:
            return data.draw(st.sampled_from(list(options)))

        made = FAMILIES[family](choose)
        try:
            prepared = prepare(made)
        except UnsupportedModelError:
            raise
        except ModelError:
            assume(False)
        compiled = compile_model(lower(prepared, local_target), (), local_target)
        found = mismatches(prepared, run(compiled, prepared.reference_inputs), rtol=1e-4, part=2e-5)
        assert not found, "; ".join(found)

    check()
