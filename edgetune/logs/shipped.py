"""The records that come with edgetune, as a layer below the user's own.

A file of the folder ``tuning_logs`` is named ``NAME-FINGERPRINT.jsonl`` and holds records of that one
target; so only the file of the target asked for is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

from edgetune.errors import LogsError
from edgetune.logs.database import TuningLogs
from edgetune.logs.exchange import read_file
from edgetune.logs.opening import open_logs
from edgetune.logs.similar import similar
from edgetune.logs.values import TargetInfo, TargetLike, fingerprint_of
from edgetune.records import Record


def shipped_records(target: str | TargetLike, folder: Path | None = None) -> list[Record]:
    """The shipped records for one target.

    Args:
        target: the target or its fingerprint.
        folder: where to look; default is what came with this edgetune.

    Raises:
        LogsError: a shipped file is damaged, or holds records of another target than its name says.
    """
    fingerprint = fingerprint_of(target)
    found: list[Record] = []
    for path in _files(folder, fingerprint):
        found.extend(value for value in _values(path) if isinstance(value, Record))
    return found


class LayeredLogs:
    """The user's logs above the shipped records: what ``compile`` reads.

    A user's record of a workload, measured on a machine of theirs, always comes before a shipped one.
    Nothing is ever written through it. Safe to share between threads as ``TuningLogs`` is.
    """

    def __init__(self, logs: TuningLogs, folder: Path | None = None) -> None:
        self.logs = logs
        self._folder = folder
        self._loaded: dict[str, TuningLogs] = {}

    def best(self, workload: str, target: str | TargetLike) -> Record | None:
        """The user's fastest record of a workload on one target, else the shipped one, else None."""
        return self.logs.best(workload, target) or self._shipped(target).best(workload, target)

    def records(self, workloads: Iterable[str], target: str | TargetLike) -> list[Record]:
        """All records of ``workloads`` for one target: the user's, then the shipped."""
        wanted = list(workloads)
        return self.logs.records(wanted, target) + self._shipped(target).records(wanted, target)

    def similar(self, workload: str, target: TargetLike, limit: int = 4) -> list[Record]:
        """The best records of a workload on the closest other targets, see ``similar.similar``."""
        found = similar(self.logs, workload, target, limit)
        return (found + similar(self._all_shipped, workload, target, limit))[:limit]

    def _shipped(self, target: str | TargetLike) -> TuningLogs:
        fingerprint = fingerprint_of(target)
        if fingerprint not in self._loaded:
            self._loaded[fingerprint] = _load(_files(self._folder, fingerprint))
        return self._loaded[fingerprint]

    @cached_property
    def _all_shipped(self) -> TuningLogs:
        return _load(_files(self._folder))


def _files(folder: Path | None, fingerprint: str = "*") -> list[Path]:
    if folder is None:
        from edgetune.resources import data_path

        folder = data_path("tuning_logs")
    return sorted(folder.glob(f"*-{fingerprint}.jsonl"))


def _load(paths: Iterable[Path]) -> TuningLogs:
    logs = open_logs("sqlite://")
    for path in paths:
        values = _values(path)
        logs.add_many(value for value in values if isinstance(value, Record))
        for value in values:
            if isinstance(value, TargetInfo):
                logs.register_target(value)
    return logs


def _values(path: Path) -> list[Record | TargetInfo]:
    """What a shipped file holds; its name and every line must agree on the target."""
    fingerprint = path.stem.rpartition("-")[2]
    found: list[Record | TargetInfo] = []
    for value in read_file(path):
        named = value.target if isinstance(value, Record) else value.fingerprint if value else None
        if value is None or named != fingerprint:
            raise LogsError(
                f"{path}: damaged: a line is incomplete or for another target than {fingerprint}; "
                "install edgetune again"
            )
        found.append(value)
    return found
