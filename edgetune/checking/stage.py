"""The stage: looks at a model in the order that the package's docstring gives."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgetune.checking.nodes import UnsupportedNode, diagnose, missing_operators, odd_outputs
from edgetune.checking.prefix import Prefix, largest_prefix
from edgetune.checking.results import CheckResult, OpenDimension
from edgetune.errors import ModelError

if TYPE_CHECKING:
    from onnx import ModelProto

    from edgetune.model.interface import Value
    from edgetune.model.loading import SourceModel
    from edgetune.model.variants import Shapes
    from edgetune.records import PreparedModel


def check(
    model: str | os.PathLike[str] | bytes | ModelProto,
    shapes: Shapes | None = None,
    freeze: Mapping[str, Any] | None = None,
    target: str = "local",
    cut: Sequence[str] = (),
    save_rest: Path | None = None,
) -> CheckResult:
    """Say whether ``model`` can be compiled, with every reason why not; takes seconds, no trials.

    Args:
        model: path, bytes or ``ModelProto``.
        shapes: input name -> sizes; one that varies as ``"1..8"``.
        freeze: input name -> value of an input that is a setting.
        target: the target that the tasks are counted for.
        cut: tensors up to which the model is looked at, in place of its outputs.
        save_rest: where to write what comes after ``cut`` as an ONNX model, if the part before can be compiled.

    Raises:
        ModelError: the file is no usable ONNX model, or ONNX Runtime cannot run it.
        UsageError: ``shapes``, ``freeze`` or ``cut`` do not fit the model.
        TargetError: there is no such target.
        OutputError: ``save_rest`` cannot be written.
    """
    from edgetune.model import cutting
    from edgetune.model.loading import load_model

    whole = load_model(model)
    cutting.check_options(cut, save_rest)
    if not cut:
        return _check(whole, shapes or {}, freeze or {}, target)
    part = cutting.first_part(whole, shapes or {}, freeze or {}, cut)
    result = _check(part.model, part.shapes, part.freeze, target)
    if save_rest is None or not result.supported:
        return result
    rest = cutting.rest_part(whole, freeze or {}, result.outputs)
    cutting.save(rest, save_rest)
    note = cutting.describe_rest(rest, part.model.proto, save_rest)
    return replace(result, notes=(*result.notes, note), rest=save_rest)


def _check(loaded: SourceModel, shapes: Shapes, freeze: Mapping[str, Any], target: str) -> CheckResult:
    from edgetune.model import flops, interface
    from edgetune.model.passes.bind_shapes import bound_inputs, open_dims_message
    from edgetune.model.passes.freeze_inputs import frozen_arrays
    from edgetune.model.prepare import parse, prepare
    from edgetune.model.variants import plan, served
    from edgetune.targets import load_target

    declared = interface.inputs(loaded.proto)
    frozen = frozen_arrays(declared, freeze)
    remaining = [value for value in declared if value.name not in frozen]
    planned = plan(remaining, shapes)
    bound = bound_inputs(remaining, planned.shapes(planned.combinations[0]))
    if still_open := [value for value in bound if not value.fixed]:
        return CheckResult(
            loaded.name,
            False,
            open_dims_message(bound, still_open),
            bound,
            interface.declared_outputs(loaded.proto),
            tuple(missing_operators(loaded.proto)),
            tuple(_open_dimensions(still_open)),
            params=flops.count_params(loaded.proto),
        )
    chosen = load_target(target)
    try:
        prepared = prepare(loaded, shapes, freeze)
    except ModelError:
        # ONNX Runtime refuses unknown operators, too: then the list of them says more.
        found = (*missing_operators(loaded.proto), *odd_outputs(loaded.proto))
        if not found:
            raise
        prefix = largest_prefix(loaded, shapes, freeze, chosen, found, loaded.proto)
        return _refused(loaded, bound, interface.declared_outputs(loaded.proto), found, prefix)
    inputs, outputs = served(prepared)
    found, tasks = diagnose(prepared, chosen)
    if found:
        prefix = largest_prefix(loaded, shapes, freeze, chosen, found, parse(prepared))
        return _refused(loaded, inputs, outputs, found, prefix, prepared)
    return CheckResult(
        prepared.name,
        True,
        "",
        inputs,
        outputs,
        tasks=tasks,
        flops=prepared.flops,
        params=prepared.params,
        notes=prepared.notes,
    )


def _open_dimensions(values: Sequence[Value]) -> Iterator[OpenDimension]:
    for value in values:
        if value.dims is None:
            yield OpenDimension(value.name, -1, None)
            continue
        for axis, dim in enumerate(value.dims):
            if not isinstance(dim, int):
                yield OpenDimension(value.name, axis, dim)


def _refused(
    loaded: SourceModel,
    inputs: tuple[Value, ...],
    outputs: tuple[Value, ...],
    unsupported: tuple[UnsupportedNode, ...],
    prefix: Prefix | None,
    prepared: PreparedModel | None = None,
) -> CheckResult:
    operators = sorted({node.op for node in unsupported if node.op})
    count = len(unsupported)
    message = (
        f"{count} node{'s' if count > 1 else ''} cannot be compiled ({', '.join(operators)}); "
        "replace or remove them when exporting the model, or run that part with ONNX Runtime"
        if operators
        else "; ".join(node.reason for node in unsupported)
    )
    if prefix is not None:
        message += (
            f". {prefix.nodes} of the {prefix.of} nodes come before and can be compiled: add {prefix.options()}, "
            "and --save-rest rest.onnx for the part that stays with ONNX Runtime"
        )
    return CheckResult(
        loaded.name,
        False,
        message,
        inputs,
        outputs,
        unsupported,
        flops=prepared.flops if prepared else None,
        params=prepared.params if prepared else 0,
        notes=prepared.notes if prepared else (),
        prefix=prefix,
    )
