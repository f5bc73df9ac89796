"""Records of other targets that are close to one: asked for by name, never mixed into a query."""

from __future__ import annotations

from edgetune.logs.database import TuningLogs
from edgetune.logs.values import TargetInfo, TargetLike, gpu_arch_of
from edgetune.records import Record


def similar_targets(known: list[TargetInfo], target: TargetLike) -> list[TargetInfo]:
    """Those of ``known`` whose schedules make sense on ``target``, the closest first.

    Required are the same kind and, for a CPU, the same instruction set and vector width, which tile
    sizes are made for; for a GPU the same architecture. Then the same CPU model counts most, then
    shared features, then the number of threads.
    """

    def distance(other: TargetInfo) -> tuple[bool, int, int, str]:
        features = len(set(other.mattr) ^ set(target.mattr))
        return (other.mcpu != target.mcpu, features, abs(other.threads - target.threads), other.fingerprint)

    others = (other for other in known if other.fingerprint != target.fingerprint)
    return sorted((other for other in others if _compatible(other, target)), key=distance)


def similar(logs: TuningLogs, workload: str, target: TargetLike, limit: int = 4) -> list[Record]:
    """The best record of ``workload`` on each of the targets closest to ``target``, the closest first.

    Each record's ``target`` says where it is from. Its time holds there, not here; a bundle made of it
    must name its source (``Source.TRANSFERRED``).

    Raises:
        LogsError: the database cannot be read.
    """
    found: list[Record] = []
    for other in similar_targets(logs.targets(), target):
        best = logs.best(workload, other.fingerprint)
        if best is None or not (_has_all_instructions(other, target) or _is_portable(best)):
            continue
        found.append(best)
        if len(found) == limit:
            break
    return found


def _compatible(other: TargetInfo, target: TargetLike) -> bool:
    if other.kind != str(target.kind):
        return False
    if other.gpu_arch or gpu_arch_of(target):
        return other.gpu_arch == gpu_arch_of(target)
    same_width = other.vector_bits == target.vector_bits
    return same_width and _architecture(other.mtriple) == _architecture(target.mtriple)


def _has_all_instructions(other: TargetInfo, target: TargetLike) -> bool:
    return other.mcpu == target.mcpu and set(other.mattr) <= set(target.mattr)


def _is_portable(record: Record) -> bool:
    # A tensorised schedule names instructions; LLVM aborts the process where the CPU lacks them.
    return '"Tensorize"' not in record.trace


def _architecture(mtriple: str) -> str:
    name = mtriple.partition("-")[0]
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)
