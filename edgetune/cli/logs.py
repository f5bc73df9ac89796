"""``edgetune logs``: look into the tuning logs, move records between them, and clean them."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgetune.cli import options
from edgetune.cli.command import command
from edgetune.cli.options import argument, option
from edgetune.cli.output import Output, counted
from edgetune.errors import LogsError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from edgetune.logs import ImportResult, TuningLogs

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)

OnlyTarget = Annotated[
    str | None,
    option(
        "--target -t",
        "TARGET",
        "Only records for this target: 'local', a name, a TOML file, or a fingerprint.",
    ),
]
OnlyDevice = Annotated[str | None, option("--device -d", "NAME", "Only records of this device.")]
OnlyWorkload = Annotated[str | None, option("--workload", "HASH", "Only records of this workload.")]


@app.callback()
def logs() -> None:
    """Inspect, move and clean the tuning logs, where every measured candidate is kept."""


@command(app, "list")
def list_(
    out: Output,
    target: OnlyTarget = None,
    device: OnlyDevice = None,
    logs: options.LogsOption = None,
) -> None:
    """List the workloads with their number of records and their best time, target by target."""
    from edgetune.logs import Selection, workload_stats

    with _open(logs, read_only=True) as opened:
        found = workload_stats(opened, Selection(target=_fingerprint(target), device=device))

        def table(console: Console) -> None:
            from rich.table import Table

            rows = Table("target", "workload", "task", "records", "failures", "best us", "measured", box=None)
            for item in found:
                best = "-" if item.best_s is None else f"{item.best_s * 1e6:.2f}"
                name = item.target_name or item.target
                counts = (str(item.records), str(item.failures))
                rows.add_row(name, item.workload, item.task_name, *counts, best, _date(item.last_s))
            console.print(rows if found else _nothing(opened))

        workloads = [
            {
                "target": item.target,
                "target_name": item.target_name,
                "workload": item.workload,
                "task": item.task_name,
                "records": item.records,
                "failures": item.failures,
                "best_us": None if item.best_s is None else item.best_s * 1e6,
                "last_measured_s": item.last_s,
            }
            for item in found
        ]
        out.result({"logs": opened.location, "workloads": workloads}, table)


@command(app)
def stats(
    out: Output,
    target: OnlyTarget = None,
    logs: options.LogsOption = None,
) -> None:
    """Count workloads, records and failures by kind, target by target."""
    from dataclasses import asdict

    from edgetune.logs import target_stats

    with _open(logs, read_only=True) as opened:
        found = target_stats(opened, _fingerprint(target))

        def table(console: Console) -> None:
            from rich.table import Table

            console.print(f"tuning logs: {opened.location}")
            rows = Table(
                "target", "workloads", "records", "good", "failures", "devices", "measured", box=None
            )
            for item in found:
                failures = ", ".join(f"{count} {kind}" for kind, count in item.failures.items()) or "-"
                rows.add_row(
                    f"{item.name} {item.target}".strip(),
                    *(str(number) for number in (item.workloads, item.records, item.successes)),
                    failures,
                    ", ".join(item.devices),
                    f"{_date(item.first_s)} to {_date(item.last_s)}",
                )
            console.print(rows if found else _nothing(opened))

        payload = {
            "logs": opened.location,
            "records": sum(item.records for item in found),
            "targets": [asdict(item) for item in found],
        }
        out.result(payload, table)


@command(app)
def export(
    out: Output,
    file: Annotated[Path, argument("FILE", "The JSON lines file to write.")],
    target: OnlyTarget = None,
    workload: OnlyWorkload = None,
    device: OnlyDevice = None,
    best: Annotated[
        int | None,
        option("--best", "N", "Only the N fastest of each workload, target and device; no failures.", min=1),
    ] = None,
    failures: Annotated[
        bool, typer.Option("--failures/--no-failures", help="Whether to write failed candidates too.")
    ] = True,
    logs: options.LogsOption = None,
) -> None:
    """Write records to a file of JSON lines, for 'logs import' elsewhere."""
    from edgetune.logs import Selection, export_file

    with _open(logs, read_only=True) as opened:
        chosen = Selection(
            target=_fingerprint(target),
            workload=workload,
            device=device,
            failures=failures and best is None,
            best=best,
        )
        count = export_file(opened, file, chosen)
        payload = {"logs": opened.location, "file": str(file), "records": count}
        out.result(payload, f"{counted(count, 'record')} written to {file}")


@command(app, "import")
def import_(
    out: Output,
    source: Annotated[
        Path, argument("SOURCE", "A file of 'logs export', or a folder with MetaSchedule's database.")
    ],
    target: Annotated[
        list[str] | None,
        option(
            "--target -t",
            "TARGET",
            "MetaSchedule only: a target its records may be for; repeatable.  "
            "[default: of local and all shipped targets, the one that a record names without doubt]",
        ),
    ] = None,
    any_target: Annotated[
        bool,
        typer.Option(
            "--any-target", help="MetaSchedule only: take all records as --target's, whatever they say."
        ),
    ] = False,
    device: Annotated[
        str,
        typer.Option("--device", "-d", metavar="NAME", help="MetaSchedule only: the device that measured."),
    ] = "metaschedule",
    logs: options.LogsOption = None,
) -> None:
    """Import records: all of them, or none where a line is wrong. An incomplete last line is left out."""
    from edgetune.logs import Match, import_file, import_metaschedule, is_metaschedule

    foreign = is_metaschedule(source)
    if (target or any_target) and not foreign:
        raise UsageError(
            f"{source} holds no database of MetaSchedule; records of edgetune's own files name their "
            "target themselves: leave out --target and --any-target"
        )
    if source.is_dir() and not foreign:
        raise LogsError(f"{source} is a folder without a database of MetaSchedule; check the path")
    targets = _candidates(target, any_target) if foreign else []
    match = Match.ANY if any_target else Match.COMPATIBLE if target else Match.EXACT
    with _open(logs) as opened:
        if foreign:
            result = import_metaschedule(opened, source, targets, hash_module, match=match, device=device)
        else:
            result = import_file(opened, source)
        _report(out, opened, str(source), result)


@command(app)
def merge(
    out: Output,
    other: Annotated[str, argument("OTHER", "The logs to take from: a SQLite file or a PostgreSQL URL.")],
    logs: options.LogsOption = None,
) -> None:
    """Take all records of other tuning logs into these; the others stay as they are."""
    from edgetune.logs import merge as merge_logs
    from edgetune.logs import open_logs

    with (
        open_logs(other, read_only=True) as source,
        _open(logs) as opened,
    ):
        _report(out, opened, source.location, merge_logs(opened, source))


@command(app)
def prune(
    out: Output,
    keep_best: Annotated[
        int | None,
        option(
            "--keep-best", "N", "Delete all but the N fastest of each workload, target and device.", min=0
        ),
    ] = None,
    failures: Annotated[bool, typer.Option("--failures", help="Delete the failed candidates.")] = False,
    older_than: Annotated[
        str | None, option("--older-than", "AGE", "Delete what is older, as 30d or 12h.")
    ] = None,
    measured_with: Annotated[
        list[str] | None,
        option(
            "--measured-with",
            "NAME=VERSION",
            "Delete what was measured with this version, as tvm=0.26.0; repeatable.",
        ),
    ] = None,
    target: OnlyTarget = None,
    workload: OnlyWorkload = None,
    device: OnlyDevice = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what would be deleted.")] = False,
    logs: options.LogsOption = None,
) -> None:
    """Delete records: those that any of the first four options names, among those the next three select."""
    from edgetune.logs import PruneRule, Selection
    from edgetune.logs import prune as prune_logs

    rule = PruneRule(
        keep_best=keep_best,
        failures=failures,
        older_than_s=None if older_than is None else parse_age(older_than),
        versions=_versions(measured_with),
        within=Selection(target=_fingerprint(target), workload=workload, device=device),
    )
    rule.condition()  # refuses an empty rule before the logs are touched
    with _open(logs, read_only=dry_run) as opened:
        count = prune_logs(opened, rule, dry_run=dry_run)
        text = f"{count} records {'would be' if dry_run else ''} deleted".replace("  ", " ")
        out.result({"logs": opened.location, "pruned": count, "dry_run": dry_run}, text)


def hash_module(module: str) -> str:
    """The workload hash of an IRModule given as TVM's JSON. Runs in a child process of the import."""
    import tvm

    from edgetune.graph.workload import workload_hash

    return workload_hash(tvm.ir.load_json(module))


def parse_age(text: str) -> float:
    """Seconds, from a duration that may be in days (``30d``) too.

    Raises:
        UsageError: the text is no duration.
    """
    from edgetune.config import parse_duration

    days = re.fullmatch(r"(\d+(?:\.\d+)?)d", text.strip().lower())
    if days:
        return float(days[1]) * 86_400
    try:
        return parse_duration(text)
    except UsageError as error:
        raise UsageError(f"--older-than: {error}; or 30d for days") from error


def _open(location: str | None, *, read_only: bool = False) -> TuningLogs:
    from edgetune.config import load_settings
    from edgetune.logs import open_logs

    return open_logs(load_settings({"logs": location}).settings.logs, read_only=read_only)


def _fingerprint(target: str | None) -> str | None:
    if target is None or re.fullmatch("[0-9a-f]{16}", target):
        return target
    from edgetune.targets import load_target

    return load_target(target).fingerprint


def _candidates(names: Sequence[str] | None, any_target: bool) -> list[Any]:
    """The targets that records of MetaSchedule may be for."""
    from edgetune.targets import list_targets, load_target

    if any_target and len(names or ()) != 1:
        raise UsageError("--any-target takes all records as one target's: name that one with --target")
    if names:
        return [load_target(name) for name in names]
    return [load_target("local"), *list_targets()]


def _versions(texts: Sequence[str] | None) -> dict[str, str]:
    versions = {}
    for text in texts or ():
        name, separator, version = text.partition("=")
        if not (name and separator and version):
            raise UsageError(f"--measured-with {text!r}: write NAME=VERSION, as tvm=0.26.0")
        versions[name] = version
    return versions


def _report(out: Output, opened: TuningLogs, source: str, result: ImportResult) -> None:
    """Print what an import or a merge did."""
    known = result.read - result.added
    if result.torn:
        out.note(f"{source}: the last line is incomplete and was left out")
    for reason, count in result.skipped.items():
        out.note(f"{count} records left out: {reason}")
    payload = {
        "logs": opened.location,
        "source": source,
        "read": result.read,
        "added": result.added,
        "known": known,
        "targets": result.targets,
        "torn": result.torn,
        "skipped": result.skipped,
    }
    out.result(payload, f"{counted(result.added, 'record')} added, {known} were known already")


def _nothing(opened: TuningLogs) -> str:
    return f"no records in {opened.location}"


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(seconds)) if seconds else "-"
