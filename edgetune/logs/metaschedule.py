"""Import of MetaSchedule's own JSON database, a folder with two files.

``database_workload.json`` has a line ``[hash, base64(8-byte length + IRModule as JSON)]`` for each
workload, ``database_tuning_record.json`` a line ``[workload's line number from 0, [trace, seconds or
null, target or null, arguments]]`` for each record. A failed candidate is 1e10 seconds or more there.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import json
import multiprocessing
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgetune.errors import LogsError
from edgetune.logs.database import TuningLogs
from edgetune.logs.exchange import ImportResult, store
from edgetune.logs.lines import Line, broken, read_lines
from edgetune.logs.values import (
    MAX_SECONDS,
    InvalidRecordError,
    TargetInfo,
    checked,
    gpu_arch_of,
)
from edgetune.records import Failure, FailureKind, Record, Stage, Timing

if TYPE_CHECKING:
    from edgetune.targets import Target

WORKLOADS = "database_workload.json"
RECORDS = "database_tuning_record.json"

_MAX_LINE_BYTES = 64 << 20
"""A workload with constants inside can be large."""


class Match(StrEnum):
    """How sure it must be that a record of MetaSchedule is for a target.

    EXACT: its own target names CPU (or GPU) and threads, and fits just one of the targets.
    COMPATIBLE: nothing in its own target contradicts the target; the first such one is taken.
    ANY: it is taken for the first target, whatever it says.
    """

    EXACT = "exact"
    COMPATIBLE = "compatible"
    ANY = "any"


def is_metaschedule(path: str | os.PathLike[str]) -> bool:
    """Whether ``path`` is a folder with a database of MetaSchedule."""
    return (Path(path) / RECORDS).is_file()


def import_metaschedule(
    logs: TuningLogs,
    folder: str | os.PathLike[str],
    targets: Sequence[Target],
    hash_workload: Callable[[str], str],
    *,
    match: Match = Match.COMPATIBLE,
    device: str = "metaschedule",
) -> ImportResult:
    """Import MetaSchedule's database in ``folder``: all of it, or nothing where a line is wrong.

    Args:
        logs: where to.
        folder: has the two files.
        targets: the targets that its records may be for; a record for none of them is left out and
            counted.
        hash_workload: gives the hash of a workload (``Task.workload``) from its IRModule as TVM's
            JSON. Called in a child process, since TVM may crash on a module from elsewhere, so it
            must be a function at the top of a module.
        match: how sure it must be that a record is for a target.
        device: name to file the records under; MetaSchedule does not know where it measured.

    Raises:
        LogsError: a file is missing or wrong (says where), no record fits the targets, or the
            database cannot be written.
    """
    source = Path(folder)
    for name in (WORKLOADS, RECORDS):
        if not (source / name).is_file():
            raise LogsError(f"{source}: has no {name}; name the work_dir that MetaSchedule wrote")
    modules = _read_workloads(source / WORKLOADS)
    # First only a check of every line, so that a wrong one near the end leaves nothing half done; it
    # also tells which workloads are worth hashing.
    unknown = [None if module is None else _UNKNOWN for module in modules]
    check = _RecordReader(source / RECORDS, unknown, targets, match, device)
    for _ in check.values():
        pass
    if check.skipped and not check.used:
        raise LogsError(_nothing_fits(source, targets, check.skipped))
    wanted = [module if number in check.workloads else None for number, module in enumerate(modules)]
    hashes = _hash_all(source / WORKLOADS, wanted, hash_workload)
    values = _RecordReader(source / RECORDS, hashes, targets, match, device).values()
    result = store(logs, itertools.chain(map(TargetInfo.of, check.used.values()), values))
    return replace(result, torn=result.torn or None in modules, skipped=dict(check.skipped))


def contradicts(described: Mapping[str, Any], target: Target) -> bool:
    """Whether a TVM target (as JSON) says anything that is not so for ``target``."""
    if described.get("kind") != str(target.kind):
        return True
    ours = {"mcpu": target.mcpu, "arch": gpu_arch_of(target), "num-cores": target.threads}
    if any(described.get(key) not in (None, ours[key]) for key in ours):
        return True
    triple = described.get("mtriple")
    if triple and str(triple).partition("-")[0] != target.mtriple.partition("-")[0]:
        return True
    features = set(described.get("mattr") or target.mattr)
    return features not in (set(target.mattr), set(target.llvm_attributes()))


def _choose(
    described: dict[str, Any] | None, targets: Sequence[Target], match: Match
) -> tuple[Target | None, str]:
    """The target that a record is for; or None, and why there is none."""
    if match is Match.ANY:
        return targets[0], ""
    text = json.dumps(described, sort_keys=True)[:300]
    fitting = [target for target in targets if not contradicts(described or {"kind": target.kind}, target)]
    if not fitting:
        return None, f"for another target: {text}"
    if match is Match.EXACT:
        if described is None or not (described.get("arch") or _names_cpu(described)):
            return None, f"its target does not say which CPU and how many threads: {text}"
        if len(fitting) > 1:
            names = " or ".join(target.name for target in fitting)
            return None, f"its target may be {names}: {text}"
    return fitting[0], ""


def _names_cpu(described: Mapping[str, Any]) -> bool:
    return bool(described.get("mcpu") and described.get("num-cores"))


class _RecordReader:
    """Reads the file of records once; ``skipped``, ``used`` and ``workloads`` tell afterwards what was met.

    ``hashes`` has None for a workload whose records are left out, as its line is torn.
    """

    def __init__(
        self,
        path: Path,
        hashes: Sequence[str | None],
        targets: Sequence[Target],
        match: Match,
        device: str,
    ) -> None:
        self.skipped: Counter[str] = Counter()
        self.used: dict[str, Target] = {}
        self.workloads: set[int] = set()
        self._path, self._hashes, self._targets = path, hashes, targets
        self._match, self._device = match, device
        self._created_s = path.stat().st_mtime

    def values(self) -> Iterator[Record | None]:
        """The records that are for one of the targets; None for a torn last line."""
        for line, entry in _read_json(self._path):
            try:
                record = None if entry is _TORN else self._record(entry)
            except InvalidRecordError as error:
                raise broken(self._path, line, str(error)) from None
            if record is not None or entry is _TORN:
                yield record

    def _record(self, entry: Any) -> Record | None:
        number, trace, outcome, described = _parse_record(entry)
        if number >= len(self._hashes):
            raise InvalidRecordError(f"there is no workload {number} in {WORKLOADS}")
        workload = self._hashes[number]
        if workload is None:
            self.skipped["its workload's line is incomplete"] += 1
            return None
        target, reason = _choose(described, self._targets, self._match)
        if target is None:
            self.skipped[reason] += 1
            return None
        self.used[target.fingerprint] = target
        self.workloads.add(number)
        record = Record(
            workload=workload,
            target=target.fingerprint,
            device=self._device,
            trace=trace,
            outcome=outcome,
            versions={"imported_from": "metaschedule"},
            created_s=self._created_s,
        )
        return checked(record)


_TORN = object()

_UNKNOWN = "unknown"
"""Stands for the hash of a workload while the records are only checked."""


def _read_json(path: Path) -> Iterator[tuple[Line, Any]]:
    """Each line and its JSON value; ``_TORN`` for a last line that a crash cut short."""
    for line in read_lines(path, _MAX_LINE_BYTES):
        try:
            yield line, json.loads(line.text)
        except (ValueError, RecursionError):
            if not line.last:
                raise broken(path, line, "this is not JSON") from None
            yield line, _TORN


def _parse_record(entry: Any) -> tuple[int, str, Timing | Failure, dict[str, Any] | None]:
    """Workload's number, trace, outcome and TVM target of one line.

    Raises:
        InvalidRecordError: the line is no record of MetaSchedule.
    """
    number, body = entry if isinstance(entry, list) and len(entry) == 2 else (None, None)
    if type(number) is not int or number < 0 or not isinstance(body, list) or len(body) < 3:
        raise InvalidRecordError("a record is [workload, [trace, seconds, target, arguments]]")
    trace, seconds, described = body[:3]
    if not (isinstance(trace, list) and len(trace) == 2 and all(isinstance(part, list) for part in trace)):
        raise InvalidRecordError("the trace is not [instructions, decisions]")
    if described is not None and not isinstance(described, dict):
        raise InvalidRecordError("the target is not a JSON object")
    features = (described or {}).get("mattr") or []
    if not (isinstance(features, list) and all(isinstance(feature, str) for feature in features)):
        raise InvalidRecordError("the target's mattr is not a list of texts")
    return number, json.dumps(trace, separators=(",", ":")), _outcome(seconds), described


def _outcome(seconds: Any) -> Timing | Failure:
    if seconds is None or seconds == []:
        return Failure(Stage.RUN, FailureKind.ERROR, "MetaSchedule recorded no time")
    if not isinstance(seconds, list) or not all(type(time) in (int, float) and time > 0 for time in seconds):
        raise InvalidRecordError("the run times are not a list of seconds above 0")
    if max(seconds) >= MAX_SECONDS:
        return Failure(Stage.RUN, FailureKind.ERROR, "MetaSchedule recorded a failure, without its reason")
    return Timing(tuple(map(float, seconds)))


def _read_workloads(path: Path) -> list[str | None]:
    """Each workload's IRModule as TVM's JSON; None for a torn last line."""
    modules: list[str | None] = []
    for line, entry in _read_json(path):
        try:
            modules.append(None if entry is _TORN else _module_of(entry))
        except ValueError as error:
            raise broken(path, line, f"not a workload of MetaSchedule ({error})") from None
    return modules


def _module_of(entry: Any) -> str:
    if not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[1], str):
        raise ValueError("a workload is [hash, module]")
    try:
        data = base64.b64decode(entry[1], validate=True)
    except binascii.Error:
        raise ValueError("the module is not base64") from None
    if int.from_bytes(data[:8], "little") != len(data) - 8:
        raise ValueError("the module has another length than it says")
    return data[8:].decode()


def _hash_all(
    path: Path, modules: Sequence[str | None], hash_workload: Callable[[str], str]
) -> list[str | None]:
    """The hash of each module but None, computed in a child process of its own."""
    hashes: list[str | None] = []
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=spawn) as pool:
        for number, module in enumerate(modules):
            if module is None:
                hashes.append(None)
                continue
            try:
                value, problem = pool.submit(_guarded, hash_workload, module).result()
            except BrokenProcessPool:
                value, problem = "", "TVM crashed on it"
            if problem:
                raise LogsError(
                    f"{path}: workload {number} cannot be read by this TVM ({problem}); nothing "
                    "was imported. Import it with the edgetune whose TVM wrote it, "
                    "or delete it and its records"
                )
            hashes.append(value)
    return hashes


def _guarded(hash_workload: Callable[[str], str], module: str) -> tuple[str, str]:
    """The hash, or what went wrong as a text: exceptions of TVM do not travel between processes."""
    try:
        return hash_workload(module), ""
    except Exception as error:
        return "", f"{type(error).__name__}: {str(error).strip()[:300]}"


def _nothing_fits(source: Path, targets: Sequence[Target], skipped: Counter[str]) -> str:
    names = ", ".join(target.name for target in targets[:8]) + (", ..." if len(targets) > 8 else "")
    reasons = "; ".join(f"{count} {reason}" for reason, count in skipped.most_common(5))
    return (
        f"{source}: no record is for {names}: {reasons}. Name the target that they were measured for "
        "with --target; add --any-target if you know that it is the same one by another description"
    )
