"""The records that come with edgetune: files of ``tuning_logs/``, read as logs in memory.

A file is named ``NAME-FINGERPRINT.jsonl``, starts with the line of its target and holds records of that
target only; so what is read is the file of the target asked for and those of similar targets.
"""

from __future__ import annotations

from pathlib import Path

from edgetune.errors import LogsError
from edgetune.logs.database import TuningLogs
from edgetune.logs.exchange import read_file, store
from edgetune.logs.opening import open_logs
from edgetune.logs.similar import similar, similar_targets
from edgetune.logs.values import TargetInfo, TargetLike
from edgetune.records import Record


def open_shipped(target: TargetLike, folder: Path | None = None) -> TuningLogs:
    """The shipped records for a target and for those similar to it, as logs in memory.

    They are a layer below the user's logs: ask those first. Nothing written here is kept.

    Raises:
        LogsError: a shipped file is damaged, or holds records of another target than its name says.
    """
    logs = open_logs("sqlite://")
    files = {_target_of(path): path for path in _files(folder)}
    own = [info for info in files if info.fingerprint == target.fingerprint]
    for info in own + similar_targets(list(files), target):
        store(logs, iter(_values(files[info])))
    return logs


class LayeredLogs:
    """The user's logs above the shipped records: what ``compile`` reads.

    A record measured on a machine of the user's always comes before a shipped one. Nothing is ever
    written through it. The logs stay the caller's to close. Not for several threads at once.

    Args:
        logs: the user's.
        folder: of the shipped files; default is what came with this edgetune.
    """

    def __init__(self, logs: TuningLogs, folder: Path | None = None) -> None:
        self._logs = logs
        self._folder = folder
        self._shipped: dict[str, TuningLogs] = {}

    def best(self, workload: str, target: TargetLike) -> Record | None:
        """The user's fastest record of a workload on one target, else the shipped one, else None."""
        return self._logs.best(workload, target) or self._below(target).best(workload, target)

    def similar(self, workload: str, target: TargetLike, limit: int = 4) -> list[Record]:
        """The best records of a workload on the closest other targets: the user's, then the shipped."""
        own = similar(self._logs, workload, target, limit)
        return (own + similar(self._below(target), workload, target, limit))[:limit]

    def _below(self, target: TargetLike) -> TuningLogs:
        if target.fingerprint not in self._shipped:
            self._shipped[target.fingerprint] = open_shipped(target, self._folder)
        return self._shipped[target.fingerprint]


def _files(folder: Path | None) -> list[Path]:
    if folder is None:
        from edgetune.resources import data_path

        folder = data_path("tuning_logs")
    return sorted(folder.glob("*-*.jsonl"))


def _target_of(path: Path) -> TargetInfo:
    """The target of a shipped file, from its first line."""
    first = next(read_file(path), None)
    if not isinstance(first, TargetInfo):
        raise _damaged(path, "does not start with the line of its target")
    return first


def _values(path: Path) -> list[Record | TargetInfo]:
    """What a shipped file holds; its name and every line must agree on the target."""
    fingerprint = path.stem.rpartition("-")[2]
    found: list[Record | TargetInfo] = []
    for value in read_file(path):
        if value is None:
            raise _damaged(path, "has an incomplete line")
        if fingerprint != (value.target if isinstance(value, Record) else value.fingerprint):
            raise _damaged(path, "has a line for another target than its name says")
        found.append(value)
    return found


def _damaged(path: Path, what: str) -> LogsError:
    return LogsError(f"the shipped tuning logs {path} are damaged: the file {what}; install edgetune again")
