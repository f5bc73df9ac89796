"""Our own JSON lines, out and in: ``{"schema": 1, "record": {...}}`` or ``{"schema": 1, "target": {...}}``.

Every line stands alone, so that files can be joined with ``cat`` and searched with ``grep``. What
comes in is data from elsewhere: types, sizes and numbers are checked line by line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from edgetune.atomic import replacing
from edgetune.errors import OutputError
from edgetune.logs.database import Selection, TuningLogs
from edgetune.logs.lines import Line, broken, read_lines
from edgetune.logs.values import InvalidRecordError, TargetInfo, checked, checked_target
from edgetune.records import Failure, FailureKind, Record, Stage, Timing

FORMAT = 1
"""The version of a line's form. A change that older readers would misread raises it."""

MAX_LINE_BYTES = 16 << 20


@dataclass(frozen=True)
class ImportResult:
    """What an import or a merge did.

    Attributes:
        read: records read; ``added`` of them were stored, of the others as much was known already.
        targets: targets registered.
        torn: whether an incomplete last line was left out.
        skipped: records left out, by reason.
    """

    read: int = 0
    added: int = 0
    targets: int = 0
    torn: bool = False
    skipped: dict[str, int] = field(default_factory=dict)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


_Seconds = Annotated[float, Field(allow_inf_nan=False)]


class _TimingLine(_Strict):
    times_s: tuple[_Seconds, ...]
    slow: bool = False


class _FailureLine(_Strict):
    stage: Stage
    kind: FailureKind
    message: str


class _RecordLine(_Strict):
    workload: str
    target: str
    device: str
    task_name: str = ""
    kind: str = "generic"
    created_s: _Seconds = 0.0
    versions: dict[str, str] = {}
    timing: _TimingLine | None = None
    failure: _FailureLine | None = None
    trace: str

    def value(self) -> Record:
        if (self.timing is None) == (self.failure is None):
            raise InvalidRecordError("a record has either a timing or a failure")
        outcome: Timing | Failure
        if self.timing is not None:
            outcome = Timing(self.timing.times_s, self.timing.slow)
        else:
            assert self.failure is not None
            outcome = Failure(self.failure.stage, self.failure.kind, self.failure.message)
        fields = {name: getattr(self, name) for name in _SHARED}
        return checked(Record(outcome=outcome, **fields))


_SHARED = ("workload", "target", "device", "task_name", "kind", "created_s", "versions", "trace")


class _Line(_Strict):
    # Named "schema" in the file, a word that pydantic's classes have taken.
    format: int = Field(alias="schema")
    record: _RecordLine | None = None
    target: TargetInfo | None = None


def line_of(value: Record | TargetInfo) -> str:
    """The line, without line end, that stands for a record or a target."""
    if isinstance(value, TargetInfo):
        return _dumps({"schema": FORMAT, "target": asdict(value)})
    fields: dict[str, Any] = {name: getattr(value, name) for name in _SHARED}
    fields["versions"] = dict(value.versions)
    if isinstance(value.outcome, Timing):
        fields["timing"] = {"times_s": value.outcome.times_s, "slow": value.outcome.slow}
    else:
        fields["failure"] = asdict(value.outcome)
    return _dumps({"schema": FORMAT, "record": fields})


def read_file(path: Path) -> Iterator[Record | TargetInfo | None]:
    """The records and targets of a file, in its order; None for a torn last line.

    Only the last line may be torn, for only there can a crash while appending have cut it short.

    Raises:
        LogsError: the file cannot be read or a line is wrong; names file and line.
    """
    for line in read_lines(path, MAX_LINE_BYTES):
        try:
            yield _parse(path, line)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            if problem["type"] != "json_invalid":
                raise broken(path, line, _reason(line, problem)) from None
            if not line.last:
                raise broken(path, line, "this is not JSON") from None
            yield None


def import_file(logs: TuningLogs, path: str | os.PathLike[str]) -> ImportResult:
    """Import a file of our JSON lines: all of it, or nothing where a line is wrong.

    Raises:
        LogsError: the file is wrong (says where), or the database cannot be written.
    """
    source = Path(path)
    # First only a check of every line, so that a wrong one near the end leaves nothing half done; the
    # logs are not locked meanwhile.
    for _ in read_file(source):
        pass
    return store(logs, read_file(source))


def store(logs: TuningLogs, values: Iterator[Record | TargetInfo | None]) -> ImportResult:
    """Store records and targets as they come; None stands for a torn line.

    Raises:
        LogsError: from ``values``, or the database cannot be written.
    """
    targets: list[TargetInfo] = []
    read, torn = 0, False

    def records() -> Iterator[Record]:
        nonlocal read, torn
        for value in values:
            if isinstance(value, Record):
                read += 1
                yield value
            elif value is None:
                torn = True
            else:
                targets.append(value)

    added = logs.add_many(records())
    known = {info.fingerprint for info in logs.targets()}
    new = {info.fingerprint: info for info in targets if info.fingerprint not in known}
    for info in new.values():
        logs.register_target(info)
    return ImportResult(read=read, added=added, targets=len(new), torn=torn)


def merge(logs: TuningLogs, other: TuningLogs) -> ImportResult:
    """Take all records and targets of ``other`` into ``logs``.

    Raises:
        LogsError: one of them cannot be used.
    """

    def values() -> Iterator[Record | TargetInfo | None]:
        yield from other.targets()
        yield from other.every()

    return store(logs, values())


def export(logs: TuningLogs, selection: Selection | None = None) -> Iterator[str]:
    """The lines of an export, without line ends: first the targets that occur, then the records.

    Raises:
        LogsError: the database cannot be read.
    """
    chosen = selection or Selection()
    for info in logs.targets():
        if chosen.target in (None, info.fingerprint):
            yield line_of(info)
    for record in logs.every(chosen):
        yield line_of(record)


def export_file(logs: TuningLogs, path: str | os.PathLike[str], selection: Selection | None = None) -> int:
    """Write an export to ``path``, whole or not at all; returns the number of records.

    Raises:
        LogsError: the database cannot be read.
        OutputError: the file cannot be written.
    """
    count = 0
    try:
        with replacing(Path(path)) as file:
            for line in export(logs, selection):
                count += line.startswith(_RECORD_START)
                file.write(line.encode() + b"\n")
    except OSError as error:
        raise OutputError(
            f"{path}: cannot be written ({error.strerror}); free space, change its permissions, "
            "or choose another path"
        ) from error
    return count


def _dumps(value: dict[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


_RECORD_START = _dumps({"schema": FORMAT, "record": {}}).removesuffix("{}}")


def _parse(path: Path, line: Line) -> Record | TargetInfo:
    parsed = _Line.model_validate_json(line.text)
    if parsed.format != FORMAT:
        raise broken(path, line, _wrong_format(parsed.format))
    try:
        if parsed.record is not None and parsed.target is None:
            return parsed.record.value()
        if parsed.target is not None and parsed.record is None:
            return checked_target(parsed.target)
    except InvalidRecordError as error:
        raise broken(path, line, str(error)) from None
    raise broken(path, line, "a line holds either a record or a target")


def _reason(line: Line, problem: Any) -> str:
    """What is wrong with a line that is JSON but not one of ours."""
    try:
        version = json.loads(line.text).get("schema")
    except (ValueError, AttributeError, RecursionError):
        version = None
    if isinstance(version, int) and version != FORMAT:
        return _wrong_format(version)
    where = ".".join(str(part) for part in problem["loc"])
    return f"{where}: {problem['msg']}" if where else str(problem["msg"])


def _wrong_format(version: int) -> str:
    return f"schema {version} is not the schema {FORMAT} that this edgetune reads; upgrade edgetune"
