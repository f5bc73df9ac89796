"""Can a model be compiled? Every reason why not at once, before any trial is spent.

What is looked at, in this order, each only where the one before found nothing:

1. the dimensions that are still open;
2. operators that cannot be imported, in any graph of the model;
3. tensors whose size depends on values, which static shapes cannot express;
4. an import of the whole model, and where that fails of each node alone, to name the culprit;
5. lowering for the target, which gives the number of tuning tasks.

Where nodes stand in the way, the part before them is tried in the same way, to say where to cut.
That a model imports does not make its values right: only verifying a bundle shows that.
"""

from edgetune.checking.nodes import UnsupportedNode
from edgetune.checking.prefix import Prefix
from edgetune.checking.results import CheckResult, OpenDimension
from edgetune.checking.stage import check

__all__ = ["CheckResult", "OpenDimension", "Prefix", "UnsupportedNode", "check"]
