"""The stage: any ONNX model in, simplified ONNX with static shapes and its reference run out."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from onnx import ModelProto

from edgetune.errors import ModelError
from edgetune.model import flops, graphs, interface, pipeline
from edgetune.model.cutting import first_part
from edgetune.model.limits import refuse_huge_tensors
from edgetune.model.loading import SourceModel, load_model
from edgetune.model.padding import Padding
from edgetune.model.passes import PASSES
from edgetune.model.passes.bind_shapes import bind_shapes
from edgetune.model.passes.freeze_inputs import freeze_inputs, frozen_arrays
from edgetune.model.passes.normalize import normalize
from edgetune.model.reference import Ranges, difference, random_inputs, reference_run
from edgetune.model.session import Arrays, Session
from edgetune.model.shapes import annotate
from edgetune.model.survival import refuse_deadly
from edgetune.model.variants import Shapes, leave_open, plan
from edgetune.records import PreparedModel, TensorSpec, Variants

REFERENCE_SEED = 0
_OLDEST_OPSET = 7
CHECK_SEED = 1
"""The passes are checked on other inputs than those the reference run is kept for."""


def prepare(
    model: str | os.PathLike[str] | bytes | ModelProto | SourceModel,
    shapes: Shapes | None = None,
    freeze: Mapping[str, Any] | None = None,
    cut: Sequence[str] = (),
) -> PreparedModel:
    """Bind shapes, freeze inputs, simplify; check the result and keep the original's outputs.

    Where sizes vary, that is done for each combination of them, and it is found out whether sizes in
    between can be served by padding.

    Args:
        model: path, bytes or ``ModelProto``.
        shapes: input name -> sizes, for every input with an open dimension; see ``sizes.parse_sizes`` for
            those that vary.
        freeze: input name -> value, for inputs that are settings; they are inputs no longer.
        cut: tensors to compute in place of the model's outputs; what only other outputs need is left out.

    Raises:
        ModelError: the model cannot be read, has open dimensions that ``shapes`` leaves open, or
            ONNX Runtime cannot run it.
        UnsupportedModelError: an input or output is no numeric tensor.
        UsageError: ``shapes``, ``freeze`` or ``cut`` do not fit the model.
    """
    loaded = model if isinstance(model, SourceModel) else load_model(model)
    if cut:
        part = first_part(loaded, shapes or {}, freeze or {}, cut)
        loaded, shapes, freeze = part.model, part.shapes, part.freeze
    declared = interface.inputs(loaded.proto)
    interface.outputs(loaded.proto)
    frozen = frozen_arrays(declared, freeze or {})
    planned = plan([value for value in declared if value.name not in frozen], shapes or {})
    first, *smaller = (
        _prepare_fixed(loaded, planned.shapes(sizes), freeze) for sizes in planned.combinations
    )
    if not planned.dimensions:
        return first
    normalized = normalize(freeze_inputs(loaded.proto, freeze or {}).model).model
    found = Padding(planned, normalized, _reference_session(loaded.proto), frozen).find()
    opened = leave_open(normalized, planned, planned.combinations[0], planned.dimensions)
    variants = Variants(found.dimensions, tuple(smaller), opened.SerializeToString(), found.run)
    return replace(first, variants=variants, notes=(*first.notes, *found.notes))


def _prepare_fixed(
    loaded: SourceModel, shapes: Mapping[str, Sequence[int]], freeze: Mapping[str, Any] | None
) -> PreparedModel:
    """The model at one combination of sizes."""
    frozen = frozen_arrays(interface.inputs(loaded.proto), freeze or {})
    bound = bind_shapes(normalize(freeze_inputs(loaded.proto, freeze or {}).model).model, shapes).model
    specs = tuple(value.spec() for value in interface.inputs(bound))
    refuse_huge_tensors(bound, specs)
    refuse_deadly(loaded.proto, bound, specs, frozen)
    session = _reference_session(loaded.proto)
    reference_inputs, reference_outputs, ranges = reference_run(session, specs, frozen, REFERENCE_SEED)
    result = pipeline.run_passes(bound, PASSES, _values_check(session, specs, frozen, ranges))
    return _finish(loaded, result, specs, frozen, reference_inputs, reference_outputs)


_NO_OPERATOR = re.compile(
    "not a registered function|No Op registered|No opset import|Could not find an implementation"
)
"""What ONNX Runtime says of an operator that it does not have."""


def _reference_session(model: ModelProto) -> Session:
    try:
        return Session(model)
    except ModelError as error:
        if graphs.opset(model) < _OLDEST_OPSET:
            hint = (
                f"the model's operator set is {graphs.opset(model)}, and ONNX Runtime supports {_OLDEST_OPSET} and "
                "later: export the model again with a newer one"
            )
        elif _NO_OPERATOR.search(str(error)):
            hint = "'edgetune check' names every node that stands in the way, and where to cut the model"
        else:
            hint = "export the model again"
        raise ModelError(f"{error}; {hint}") from error


def _values_check(
    session: Session, specs: Sequence[TensorSpec], frozen: Arrays, ranges: Ranges
) -> pipeline.Check:
    """Compares a rewritten model with the original on random inputs."""
    inputs = random_inputs(specs, CHECK_SEED, ranges)
    try:
        expected = session.run({**inputs, **frozen})
    except ModelError:
        # The range holds for one seed and not for another: an index out of bounds.
        inputs = random_inputs(specs, CHECK_SEED, Ranges.ZERO)
        expected = session.run({**inputs, **frozen})

    def check(model: ModelProto) -> str | None:
        try:
            return difference(expected, Session(model).run(inputs))
        except ModelError as error:
            return str(error)

    return check


def _finish(
    loaded: SourceModel,
    result: pipeline.PassResult,
    specs: tuple[TensorSpec, ...],
    frozen: Arrays,
    reference_inputs: Arrays,
    reference_outputs: Arrays,
) -> PreparedModel:
    model = annotate(result.model)
    notes = list(result.notes)
    outputs = []
    # Not those that are an input or a weight: their sizes are known, though the output need not declare them.
    computed = {name for node in model.graph.node for name in node.output}
    for value in interface.outputs(model):
        array = reference_outputs[value.name]
        if not value.fixed and value.name in computed:
            notes.append(
                f"the shape of output {value.name!r} was taken from a run: it depends on the input's values"
            )
        outputs.append(TensorSpec(value.name, array.dtype.name, tuple(array.shape)))
    # Inputs and outputs alike: names in the order of the file, whatever a pass did.
    return PreparedModel(
        name=loaded.name,
        sha256=loaded.sha256,
        onnx=model.SerializeToString(deterministic=True),
        inputs=specs,
        outputs=tuple(outputs),
        notes=tuple(notes),
        frozen=frozen,
        reference_inputs=reference_inputs,
        reference_outputs=reference_outputs,
        params=flops.count_params(model),
        flops=flops.count_flops(model),
    )


def parse(prepared: PreparedModel) -> ModelProto:
    """The prepared model's ``ModelProto``."""
    return ModelProto.FromString(prepared.onnx)
