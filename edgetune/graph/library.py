"""The model with its schedules as one library: standalone where it can be, else for TVM's virtual machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from edgetune.errors import NotStandaloneError
from edgetune.graph.compile import compile_model
from edgetune.graph.lower import Lowered
from edgetune.graph.sequence import compile_program
from edgetune.records import Choice, CompiledModel
from edgetune.standalone.build import build_standalone
from edgetune.targets import Target


def compile_library(
    lowered: Lowered,
    choices: Sequence[Choice],
    target: Target,
    name: str,
    *,
    standalone: bool | None = None,
    embed: bool = False,
) -> CompiledModel:
    """Compile a lowered model.

    Args:
        lowered: the model's kernels.
        choices: one for each task; a task without one gets its default schedule.
        target: what to generate code for.
        name: the model's.
        standalone: whether the library may need nothing of TVM; None: where the model can be such a one.
        embed: with the weights inside, which only a standalone library can have.

    Raises:
        NotStandaloneError: it is asked to be standalone and cannot be.
        UnsupportedModelError: TVM cannot generate code for a kernel.
    """
    reason = ""
    if standalone is not False:
        try:
            return build_standalone(
                compile_program(lowered, choices, target, name), name, target, embed=embed
            )
        except NotStandaloneError as error:
            if standalone or embed:
                raise NotStandaloneError(
                    f"the model cannot be a standalone library: {error}; compile it for TVM's virtual machine: "
                    "without --standalone, and with its weights in a file"
                ) from error
            reason = str(error)
    return replace(compile_model(lowered, choices, target, app=name), needs_vm=reason)
