"""The rewrites, one a file, and their order.

``freeze_inputs`` and ``bind_shapes`` take the user's settings and come first: they must succeed.
``normalize`` puts the file into the one form that the rest expects. The passes of :data:`PASSES`
are optional: each is left out where it would break a model.
"""

from edgetune.model.passes.remove_leftovers import remove_leftovers
from edgetune.model.passes.simplify import simplify
from edgetune.model.pipeline import Pass

PASSES: tuple[Pass, ...] = (simplify, remove_leftovers)
"""In the order in which they run; the whole list is repeated until nothing changes."""
