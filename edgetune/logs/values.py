"""What may enter the tuning logs, whoever offers it; and what makes two records the same candidate."""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic import ConfigDict

from edgetune.records import Failure, FailureKind, Record, Timing

if TYPE_CHECKING:
    from edgetune.targets import Target

MAX_TRACE_CHARS = 2_000_000
MAX_MESSAGE_CHARS = 16_000
MAX_TIMES = 10_000
MAX_SECONDS = 1e9
"""MetaSchedule writes 1e10 seconds for "failed"; nothing real takes thirty years."""

_KEY = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,63}")
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")

TRANSIENT = frozenset({FailureKind.DEVICE_LOST})
"""Failures that say nothing about the candidate: it should be measured again."""


class InvalidRecordError(ValueError):
    """A record breaks the rules of the logs: a bug in the caller, or bad data from elsewhere."""


@dataclass(frozen=True)
class TargetInfo:
    """A target as the logs remember it, enough to judge how close another one is.

    ``mattr`` holds CPU features as LLVM writes them (``+dotprod``); ``vector_bits`` the width of a
    vector register; ``gpu_arch`` is the GPU's (``sm_87``), empty for a CPU, and the CPU beside a GPU is the
    one that drives it.
    """

    # How pydantic reads one from a file.
    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    fingerprint: str
    name: str
    kind: str
    mtriple: str
    mcpu: str
    mattr: tuple[str, ...]
    threads: int
    vector_bits: int
    gpu_arch: str = ""

    @staticmethod
    def of(target: TargetLike) -> TargetInfo:
        """The part of ``target`` that the logs keep."""
        return TargetInfo(
            fingerprint=target.fingerprint,
            name=target.name,
            kind=str(target.kind),
            mtriple=target.mtriple,
            mcpu=target.mcpu,
            mattr=tuple(target.mattr),
            threads=target.threads,
            vector_bits=target.vector_bits,
            gpu_arch=gpu_arch_of(target),
        )


TargetLike: TypeAlias = "Target | TargetInfo"
"""A target, or what the logs remember of one."""


def gpu_arch_of(target: TargetLike) -> str:
    """The architecture of the target's GPU, as ``sm_87``; empty for a CPU."""
    if isinstance(target, TargetInfo):
        return target.gpu_arch
    return target.gpu.arch if target.gpu else ""


def fingerprint_of(target: str | TargetLike) -> str:
    """The fingerprint of a target, or ``target`` itself where it is one already.

    Raises:
        InvalidRecordError: empty or malformed. Queries without a target do not exist here.
    """
    fingerprint = target if isinstance(target, str) else target.fingerprint
    return _checked_key("target", fingerprint)


def trace_key(trace: str) -> str:
    """32 hex digits naming a trace: equal for traces that differ only in how their JSON is spelled.

    TVM writes ``true`` from Python and ``1`` from C++ for the same thing, ``1.0`` and ``1`` likewise.
    """
    try:
        text = json.dumps(json.loads(trace, parse_float=_number), separators=(",", ":"), sort_keys=True)
    except (ValueError, RecursionError):
        text = trace
    else:
        # A walk over the values would be exact, and ten times slower; ",true" is in no trace's strings.
        for before in "[,:":
            text = text.replace(f"{before}true", f"{before}1").replace(f"{before}false", f"{before}0")
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _number(text: str) -> float:
    number = float(text)
    return int(number) if number.is_integer() else number


def is_settled(record: Record) -> bool:
    """Whether measuring the same candidate again could teach nothing: true but for transient failures."""
    return not (isinstance(record.outcome, Failure) and record.outcome.kind in TRANSIENT)


def checked(record: Record) -> Record:
    """``record`` fit for storing: rules checked, failure message made storable.

    Raises:
        InvalidRecordError: says which field breaks which rule.
    """
    _checked_key("workload", record.workload)
    _checked_key("target", record.target)
    _checked_key("kind", record.kind)
    _checked_text("device", record.device, 256, empty=False)
    _checked_text("task_name", record.task_name, 512)
    _checked_text("trace", record.trace, MAX_TRACE_CHARS, empty=False)
    _checked_versions(record.versions)
    if not (math.isfinite(record.created_s) and record.created_s >= 0):
        raise InvalidRecordError(f"created_s is {record.created_s}; it must be seconds since 1970")
    outcome = record.outcome
    if isinstance(outcome, Timing):
        return replace(record, outcome=_checked_timing(outcome))
    return replace(record, outcome=replace(outcome, message=storable(outcome.message)))


def checked_target(info: TargetInfo) -> TargetInfo:
    """``info`` if it is fit for storing.

    Raises:
        InvalidRecordError: says which field breaks which rule.
    """
    _checked_key("fingerprint", info.fingerprint)
    for field, limit in (("name", 256), ("kind", 32), ("mtriple", 128), ("mcpu", 128), ("gpu_arch", 32)):
        _checked_text(field, getattr(info, field), limit)
    if len(info.mattr) > 512:
        raise InvalidRecordError("mattr has over 512 entries")
    for feature in info.mattr:
        _checked_text("mattr", feature, 64, empty=False)
    for field in ("threads", "vector_bits"):
        if not 0 <= getattr(info, field) <= 65_536:
            raise InvalidRecordError(f"{field} is {getattr(info, field)}; it must be between 0 and 65536")
    return info


def storable(message: str) -> str:
    """``message`` without what no database takes (NUL, lone surrogates), shortened in the middle if long."""
    message = _UNSTORABLE.sub("\ufffd", message)
    if len(message) <= MAX_MESSAGE_CHARS:
        return message
    # The first lines name the error, the last ones the place: keep both.
    half = MAX_MESSAGE_CHARS // 2 - 40
    return f"{message[:half]}\n[... {len(message) - 2 * half} characters left out ...]\n{message[-half:]}"


def _checked_key(field: str, value: Any) -> str:
    if not isinstance(value, str) or not _KEY.fullmatch(value):
        raise InvalidRecordError(
            f"{field} is {value!r:.80}; it must be 1 to 64 letters, digits, '.', '_' or '-'"
        )
    return value


def _checked_text(field: str, value: Any, limit: int, *, empty: bool = True) -> None:
    if not isinstance(value, str) or len(value) > limit or not (value or empty):
        raise InvalidRecordError(f"{field} must be a text of {0 if empty else 1} to {limit} characters")
    if _UNSTORABLE.search(value):
        raise InvalidRecordError(f"{field} holds a NUL character or half a character; remove it")


def _checked_versions(versions: Any) -> None:
    if len(versions) > 32:
        raise InvalidRecordError("versions has over 32 entries")
    for name, version in versions.items():
        _checked_text("versions", name, 64, empty=False)
        _checked_text("versions", version, 256)


def _checked_timing(timing: Timing) -> Timing:
    times = tuple(float(time) for time in timing.times_s)
    if not 1 <= len(times) <= MAX_TIMES:
        raise InvalidRecordError(f"times_s has {len(times)} entries; it must have 1 to {MAX_TIMES}")
    if not all(0 < time < MAX_SECONDS for time in times):
        raise InvalidRecordError(
            f"times_s must be above 0 and below {MAX_SECONDS:g} seconds; store a Failure"
        )
    return replace(timing, times_s=times)
