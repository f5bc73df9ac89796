"""Silero's voice activity detectors: LSTMs whose state is fed back, step after step, as ONNX Runtime's is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgetune.model import registry

NAMES = [model.name for model in registry.list_models() if model.name.startswith("silero")]
STEPS = 10


def runner(name: str, target: Any) -> tuple[Any, Any, dict[str, Any]]:
    """The compiled model as a function of arrays by name, its prepared form, and its frozen inputs."""
    from edgetune.graph.compile import compile_model
    from edgetune.graph.execute import loaded
    from edgetune.graph.lower import lower
    from edgetune.model.prepare import prepare

    entry = registry.get(name)
    prepared = prepare(str(registry.fetch(name)), entry.shapes, entry.freeze)
    compiled = compile_model(lower(prepared, target), (), target)
    function = loaded(compiled)

    def run(given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        values = function([given[spec.name] for spec in compiled.inputs])
        return {spec.name: value for spec, value in zip(compiled.outputs, values, strict=True)}

    return run, prepared, entry.freeze


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_ten_steps(name: str, matches_onnxruntime: Any) -> None:
    import onnxruntime

    run, prepared, frozen = runner(name, matches_onnxruntime.target)
    session = onnxruntime.InferenceSession(str(registry.fetch(name)), providers=["CPUExecutionProvider"])
    kinds = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
    settings = {
        i.name: np.array(frozen[i.name], kinds[i.type]) for i in session.get_inputs() if i.name in frozen
    }
    shapes = {spec.name: spec.shape for spec in prepared.inputs}
    rng = np.random.default_rng(0)
    state = {n: np.zeros(s, np.float32) for n, s in shapes.items()}
    names = [item.name for item in session.get_outputs()]
    # The first input is the sound; of the others each takes the output of its place.
    sound, *kept = [i.name for i in session.get_inputs() if i.name in shapes]
    for _ in range(STEPS):
        state[sound] = rng.uniform(-1, 1, shapes[sound]).astype(np.float32)
        expected = dict(zip(names, session.run(names, {**state, **settings}), strict=True))
        got = run(state)
        for output in names:
            np.testing.assert_allclose(got[output], expected[output], 1e-3, 1e-4, err_msg=output)
        for n, output in zip(kept, names[1:], strict=False):
            if got[output].shape == state[n].shape:
                state[n] = got[output]
