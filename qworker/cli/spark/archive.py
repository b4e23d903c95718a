"""`qworker spark archive`: the journal to a Delta table."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from qworker.cli.framework.commands import VerbCommand, json_option
from qworker.cli.framework.context import Session
from qworker.cli.framework.errors import FOUND
from qworker.cli.framework.output import Note, Output
from qworker.cli.framework.parameters import NumberRange
from qworker.cli.spark.reading import keep_option, kept_ms, source_options
from qworker.cli.spark.running import spark_options, step
from qworker.durations import duration_ms
from qworker.formats import count, rate, span

if TYPE_CHECKING:
    from qworker.pipeline.jobs.archive import Archived

__all__ = ["command"]

_EXAMPLES = """\b
Examples:
  qworker spark archive --out lake             until Ctrl-C or SIGTERM
  qworker spark archive --out lake --once      current events, from cron
"""


@click.command(cls=VerbCommand, epilog=_EXAMPLES)
@click.option(
    "--out",
    required=True,
    metavar="DIR|URL",
    help="Directory of the archive, or s3://BUCKET/PATH.",
)
@click.option("--once", is_flag=True, help="Archive the current events, then exit.")
@click.option(
    "--every", default="10s", metavar="DURATION", help="Interval between batches. [default: 10s]"
)
@click.option(
    "--queues",
    metavar="NAMES",
    help="Queues: names or patterns, separated by commas. [default: all]",
)
@click.option(
    "--reader",
    default="archive",
    show_default=True,
    help="Name under which `doctor` reports its lag.",
)
@click.option(
    "--max-entries",
    type=NumberRange(1),
    default=20_000,
    show_default=True,
    help="Maximum entries (calls, not events) per batch.",
)
@click.option(
    "--fail-on-gap",
    is_flag=True,
    help="Fail if entries were trimmed unread, instead of noting the gap.",
)
@keep_option
@json_option
@spark_options
@click.pass_obj
def command(
    session: Session,
    out: str,
    once: bool,
    every: str,
    queues: str | None,
    reader: str,
    max_entries: int,
    fail_on_gap: bool,
    keep: str | None,
    spark: Callable[[], Any],
) -> Iterator[Output]:
    """Copy the journal's events to a Delta table by queue and day, each event once, even after a kill.

    Exit code 3 if events were trimmed before they were read, or a journal was rolled back.
    """
    from qworker.pipeline.jobs.archive import archive
    from qworker.pipeline.jobs.lake import Lake

    every_s = duration_ms(every, "--every", minimum_ms=100) / 1000
    keep_ms = kept_ms(keep)
    lake = Lake(out)
    source = {
        **source_options(session),
        "readerName": reader,
        "maxEntriesPerTrigger": str(max_entries),
        "failOnDataLoss": str(fail_on_gap).lower(),
        **({"queues": queues} if queues else {}),
    }
    running = spark()
    with _stopped() as stopped, step("archiving", running) as report:
        done = archive(
            running,
            lake,
            source,
            once=once,
            every_s=every_s,
            keep_ms=keep_ms,
            on_batch=lambda done: report(_line(done)),
            stopped=stopped,
        )
    yield Output(
        {**asdict(done), "archive": str(lake.root)},
        f"archived {count(done.events, 'event')} in {count(done.batches, 'batch', 'batches')} and "
        f"{span(done.seconds)}, to {lake.root}",
    )
    for warning in _warnings(done):
        yield Output(text=Note(warning))
    if done.gaps:
        raise click.exceptions.Exit(FOUND)


def _warnings(done: Archived) -> Iterator[str]:
    if done.gaps > done.rolled_back:
        yield (
            f"warning: {count(done.missing, 'event')} were trimmed before they were read: archive more often, or "
            "raise journal-cap"
        )
    if done.rolled_back:
        yield (
            f"warning: {count(done.rolled_back, 'journal')} rolled back by the server after it was archived (a "
            "failover, a restored copy): the archive has both courses of events; qworker spark audit names them"
        )


@contextmanager
def _stopped() -> Iterator[Callable[[float], bool]]:
    """Give a function that waits for some seconds, and returns whether Ctrl-C or SIGTERM came."""
    came = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: came.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield came.wait
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _line(done: Archived) -> str:
    lost = f", {count(done.missing, 'event')} missing" if done.gaps else ""
    batches = count(done.batches, "batch", "batches")
    return f"{count(done.events, 'event')} in {batches}, {rate(done.events_per_s)}/s{lost}"
