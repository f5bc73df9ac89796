"""The tuning logs: every measured candidate, on SQLite or PostgreSQL, in JSON lines, in migrations.

In processing order: ``values`` (what may enter), ``rows`` and ``schema`` (how it is stored), ``upgrade``
and ``opening`` (which database), ``database`` (``TuningLogs`` itself); on top of it ``stats``,
``prune``, ``exchange`` and ``metaschedule`` (import), ``similar`` and ``shipped``. ``failures``
translates the errors of databases; ``testing`` is the contract that every database must keep.
"""

from edgetune.logs.database import Selection, TuningLogs
from edgetune.logs.exchange import ImportResult, export, export_file, import_file, merge
from edgetune.logs.metaschedule import Match, import_metaschedule, is_metaschedule
from edgetune.logs.opening import default_path, open_logs
from edgetune.logs.prune import PruneRule, prune
from edgetune.logs.shipped import LayeredLogs, open_shipped
from edgetune.logs.similar import similar, similar_targets
from edgetune.logs.stats import TargetStats, WorkloadStats, target_stats, workload_stats
from edgetune.logs.values import InvalidRecordError, TargetInfo, is_settled, trace_key

__all__ = [
    "ImportResult",
    "InvalidRecordError",
    "LayeredLogs",
    "Match",
    "PruneRule",
    "Selection",
    "TargetInfo",
    "TargetStats",
    "TuningLogs",
    "WorkloadStats",
    "default_path",
    "export",
    "export_file",
    "import_file",
    "import_metaschedule",
    "is_metaschedule",
    "is_settled",
    "merge",
    "open_logs",
    "open_shipped",
    "prune",
    "similar",
    "similar_targets",
    "target_stats",
    "trace_key",
    "workload_stats",
]
