"""`qworker spark compact`: few large files instead of many small ones."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path

import click

from qworker.cli.formats import count, size
from qworker.cli.screen import print_json, print_line
from qworker.cli.spark_reading import archive_option, step
from qworker.cli.verbs import Verb, json_option
from qworker.errors import InvalidOptionError, SparkMissingError

__all__ = ["command"]

_EXAMPLES = """\b
Examples:
  qworker spark compact --archive lake
  qworker spark compact --archive lake --before 2031-05-04     leave that day, and later ones, alone
"""


@click.command(cls=Verb, epilog=_EXAMPLES)
@archive_option(required=True)
@click.option("--before", metavar="DAY", help="Only days before this one, as 2031-05-04.")
@json_option
def command(archive: Path, before: str | None, as_json: bool) -> None:
    """Rewrite the many small files of each day of an archive as few large ones. Safe to kill; needs no Java."""
    from dataclasses import asdict

    from qworker.pipeline.jobs.change import recover
    from qworker.pipeline.jobs.compact import compact, plan
    from qworker.pipeline.jobs.lake import Lake
    from qworker.pipeline.source.session import package_problem

    if problem := package_problem("pyarrow"):
        raise SparkMissingError(f"{problem}; pip install 'qworker-redis[spark]'")
    lake = Lake(archive)
    if not lake.exists():
        raise InvalidOptionError("--archive", f"{str(archive)!r} holds no archive", "name another")
    limit = None if before is None else _day(before)
    with lake.writing(), step("compacting") as tell:
        finished = recover(lake)
        done = compact(
            lake, plan(lake, before=limit), on_day=lambda day: tell(f"{day.queue} {day.day}")
        )
    if as_json:
        print_json({**asdict(done), "recovered": finished})
        return
    if finished:
        print_line(f"finished what a killed writer had begun: {count(finished, 'change')}")
    if not done.days:
        print_line("nothing to compact: every day has one file")
    else:
        print_line(
            f"{count(done.days, 'day')}, {count(done.rows, 'event')}: {count(done.files_before, 'file')} "
            f"({size(done.bytes_before)}) became {done.files_after:,} ({size(done.bytes_after)})"
        )


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        today = datetime.now(UTC).date().isoformat()
        raise InvalidOptionError("--before", f"{text!r} is no day", f"write {today}") from None
