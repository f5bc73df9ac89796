"""The rewrites, one a file, and their order.

``freeze_inputs`` and ``bind_shapes`` take the user's settings and come first: they must succeed.
``normalize`` puts the file into the one form that the rest expects. The passes of :data:`PASSES`
are optional: each is left out where it would break a model.
"""

from edgetune.model.passes.convert_opset import convert_opset
from edgetune.model.passes.decompose_batch_norm import decompose_batch_norm
from edgetune.model.passes.fold_constants import fold_constants
from edgetune.model.passes.inline_branches import inline_branches
from edgetune.model.passes.inline_functions import inline_functions
from edgetune.model.passes.remove_leftovers import remove_leftovers
from edgetune.model.passes.simplify import simplify
from edgetune.model.passes.unroll_loops import unroll_loops
from edgetune.model.pipeline import Pass

PASSES: tuple[Pass, ...] = (
    inline_functions,
    convert_opset,
    fold_constants,
    inline_branches,
    unroll_loops,
    decompose_batch_norm,
    simplify,
    remove_leftovers,
)
"""In the order in which they run; the whole list is repeated until nothing changes."""
