"""`qworker spark compact`: few large files instead of many small ones."""

from __future__ import annotations

from datetime import UTC, date, datetime

import click

from qworker.cli.framework.commands import VerbCommand, json_option
from qworker.cli.framework.output import Output
from qworker.cli.spark.reading import archive_option, keep_option, kept_ms
from qworker.cli.spark.running import step
from qworker.errors import InvalidOptionError, SparkMissingError
from qworker.formats import count

__all__ = ["command"]

_EXAMPLES = """\b
Examples:
  qworker spark compact --archive lake
  qworker spark compact --archive lake --before 2031-05-04    earlier days
  qworker spark compact --archive lake --keep 90d     and delete older days
"""


@click.command(cls=VerbCommand, epilog=_EXAMPLES)
@archive_option(required=True)
@click.option("--before", metavar="DAY", help="Only days before this one, such as 2031-05-04.")
@keep_option
@json_option
def command(archive: str, before: str | None, keep: str | None) -> Output:
    """Rewrite the small files of each day of an archive as few large ones. An archiver may run meanwhile.

    Readers keep using the old files; the first run after a week deletes those. Needs no Java.
    """
    from dataclasses import asdict

    from qworker.pipeline.jobs.compact import compact, expire, plan, vacuum
    from qworker.pipeline.jobs.lake import Lake
    from qworker.pipeline.session import package_problem

    for package in ("pyarrow", "deltalake"):
        if problem := package_problem(package):
            raise SparkMissingError(f"{problem}; pip install 'qworker-redis[spark]'")
    lake = Lake(archive)
    if not lake.exists():
        raise InvalidOptionError(
            "--archive", f"{str(archive)!r} is not an archive", "pass the directory or URL of one"
        )
    limit, keep_ms = None if before is None else _day(before), kept_ms(keep)
    with step("compacting") as report:
        expired = 0 if keep_ms is None else expire(lake, keep_ms)
        done = compact(
            lake, plan(lake, before=limit), on_day=lambda day: report(f"{day.queue} {day.day}")
        )
        deleted = vacuum(lake)
    text = "nothing to compact: no day has two small files"
    if done.days:
        text = f"{count(done.days, 'day')}: {count(done.files_before, 'file')} became {done.files_after:,}"
    lines = [text]
    if keep_ms is not None:
        lines.append(f"deleted {count(expired, 'day')} of queues that ended more than {keep} ago")
    if deleted:
        lines.append(f"deleted {count(deleted, 'file')} that no reader of this week needs")
    return Output({**asdict(done), "expired_days": expired, "deleted": deleted}, lines)


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        today = datetime.now(UTC).date().isoformat()
        raise InvalidOptionError("--before", f"{text!r} is not a day", f"write {today}") from None
