"""Runs passes over a model, checks what they did, and leaves out the one that breaks it.

A pass is a function ``pass_(model) -> PassResult``. It never changes the model it is given: where
it has something to do it works on a copy. Rewrites that cannot apply leave the model alone; they
do not raise. The list in its order is :data:`edgetune.model.passes.PASSES`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx
from onnx import ModelProto

from edgetune.errors import EdgetuneError, first_line
from edgetune.model import graphs, interface
from edgetune.model.inference import INFERENCE_ERRORS, infer

log = logging.getLogger(__name__)

MAX_ROUNDS = 8
"""Passes feed each other (a folded condition lets an If be inlined); nested Ifs need one round a level."""


@dataclass(frozen=True)
class PassResult:
    """What a pass made of a model, whether that differs, and what a user should know of it."""

    model: ModelProto
    changed: bool
    notes: tuple[str, ...] = ()


Pass = Callable[[ModelProto], PassResult]
Check = Callable[[ModelProto], str | None]
"""Gives the problem of a model as a sentence without a full stop, or None."""


def unchanged(model: ModelProto) -> PassResult:
    """The result of a pass that found nothing to do."""
    return PassResult(model, False)


def name_of(pass_: Pass) -> str:
    """The pass's name as notes have it: ``remove_leftovers`` -> ``remove leftovers``."""
    return str(getattr(pass_, "__name__", type(pass_).__name__)).replace("_", " ")


def run_passes(model: ModelProto, passes: Sequence[Pass], values_differ: Check) -> PassResult:
    """Apply ``passes`` in order, again and again until none changes anything.

    Structure is checked after every change. ``values_differ``, which runs the model, is asked at
    the end; only where it finds a difference is everything done again with it after every change.
    """
    result = _run(model, passes, None)
    if not result.changed or values_differ(result.model) is None:
        return result
    log.info("the passes changed the model's values; running them again, checked one by one")
    return _run(model, passes, values_differ)


def _run(model: ModelProto, passes: Sequence[Pass], values_differ: Check | None) -> PassResult:
    checks = [_same_interface(model), *_structural_checks(model)]
    if values_differ is not None:
        checks.append(values_differ)
    notes: dict[str, None] = {}
    active = list(passes)
    any_change = False
    for _ in range(MAX_ROUNDS):
        changed = False
        for pass_ in list(active):
            result, problem = _attempt(pass_, model, checks)
            if problem:
                active.remove(pass_)
                notes[f"the pass '{name_of(pass_)}' was left out: {problem}"] = None
                continue
            notes |= dict.fromkeys(result.notes)
            model = result.model
            changed |= result.changed
        any_change |= changed
        if not changed:
            break
    return PassResult(model, any_change, tuple(notes))


def _attempt(pass_: Pass, model: ModelProto, checks: Sequence[Check]) -> tuple[PassResult, str | None]:
    try:
        result = pass_(model)
    except EdgetuneError:
        raise
    except Exception as error:
        log.debug("pass %s failed", name_of(pass_), exc_info=True)
        text = (str(error).strip().splitlines() or [""])[0]
        return unchanged(model), f"it failed with {type(error).__name__}: {text[:200]}"
    if not result.changed:
        return PassResult(model, False, result.notes), None
    problem = next((found for check in checks if (found := check(result.model))), None)
    return result, problem


def _structural_checks(model: ModelProto) -> list[Check]:
    """The checker and shape inference, each only where the model passed it before any pass."""
    return [check for check in (checker_problem, inference_problem) if check(model) is None]


def _same_interface(model: ModelProto) -> Check:
    before = interface.signature(model.graph)

    def check(after: ModelProto) -> str | None:
        if interface.signature(after.graph) != before:
            return "it changed the model's inputs or outputs"
        return None

    return check


def checker_problem(model: ModelProto) -> str | None:
    """What ``onnx.checker`` says against ``model``, weights' data aside."""
    try:
        onnx.checker.check_model(graphs.skeleton(model))
    except (onnx.checker.ValidationError, ValueError) as error:
        return f"onnx.checker refuses the result: {first_line(error)[:200]}"
    return None


def inference_problem(model: ModelProto) -> str | None:
    """Where strict shape inference finds ``model`` inconsistent."""
    try:
        infer(graphs.skeleton(model), strict=True)
    except INFERENCE_ERRORS as error:
        return f"shape inference finds the result inconsistent: {first_line(error)[:200]}"
    return None
