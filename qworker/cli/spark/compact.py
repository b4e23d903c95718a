"""`qworker spark compact`: few large files instead of many small ones."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path

import click

from qworker.cli.framework.commands import Verb, json_option
from qworker.cli.framework.output import Output
from qworker.cli.spark.reading import archive_option, step
from qworker.errors import InvalidOptionError, SparkMissingError
from qworker.formats import count, size

__all__ = ["command"]

_EXAMPLES = """\b
Examples:
  qworker spark compact --archive lake
  qworker spark compact --archive lake --before 2031-05-04     earlier days only
"""


@click.command(cls=Verb, epilog=_EXAMPLES)
@archive_option(required=True)
@click.option("--before", metavar="DAY", help="Only days before this one, such as 2031-05-04.")
@json_option
def command(archive: Path, before: str | None) -> Output:
    """Rewrite the small files of each day of an archive as few large ones. Safe to kill; needs no Java."""
    from dataclasses import asdict

    from qworker.pipeline.jobs.change import recover
    from qworker.pipeline.jobs.compact import compact, plan
    from qworker.pipeline.jobs.lake import Lake
    from qworker.pipeline.session import package_problem

    if problem := package_problem("pyarrow"):
        raise SparkMissingError(f"{problem}; pip install 'qworker-redis[spark]'")
    lake = Lake(archive)
    if not lake.exists():
        raise InvalidOptionError(
            "--archive", f"{str(archive)!r} is not an archive", "pass the directory of one"
        )
    limit = None if before is None else _day(before)
    with lake.writing(), step("compacting") as report:
        finished = recover(lake)
        done = compact(
            lake, plan(lake, before=limit), on_day=lambda day: report(f"{day.queue} {day.day}")
        )
    text = "nothing to compact: every day has one file"
    if done.days:
        text = (
            f"{count(done.days, 'day')}, {count(done.rows, 'event')}: {count(done.files_before, 'file')} "
            f"({size(done.bytes_before)}) became {done.files_after:,} ({size(done.bytes_after)})"
        )
    recovered = f"completed changes of a killed writer: {count(finished, 'change')}"
    return Output({**asdict(done), "recovered": finished}, [recovered, text] if finished else text)


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        today = datetime.now(UTC).date().isoformat()
        raise InvalidOptionError("--before", f"{text!r} is not a day", f"write {today}") from None
