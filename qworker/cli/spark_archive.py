"""`qworker spark archive`: the journal to Parquet."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qworker.cli.failures import FOUND
from qworker.cli.formats import count, rate, span
from qworker.cli.screen import note, print_json, print_line
from qworker.cli.session import Session
from qworker.cli.spark_reading import source_options, spark_options, step
from qworker.cli.verbs import Verb, json_option
from qworker.durations import duration_ms

if TYPE_CHECKING:
    from qworker.pipeline.jobs.archive import Archived

__all__ = ["command"]

_EXAMPLES = """\b
Examples:
  qworker spark archive --out lake                    go on until Ctrl-C or SIGTERM
  qworker spark archive --out lake --once             what is there now; from cron
"""


@click.command(cls=Verb, epilog=_EXAMPLES)
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The archive's directory.",
)
@click.option("--once", is_flag=True, help="Archive what is there now, and end.")
@click.option("--every", default="10s", metavar="DURATION", help="A batch so often. [default: 10s]")
@click.option("--queues", metavar="NAMES", help="Only these: names or patterns, by commas.")
@click.option(
    "--reader", default="archive", show_default=True, help="Under this name `doctor` tells its lag."
)
@click.option(
    "--max-entries",
    type=click.IntRange(1),
    default=20_000,
    show_default=True,
    help="Entries (calls, not events) of a batch at most.",
)
@click.option(
    "--fail-on-gap", is_flag=True, help="End where entries were trimmed unread, not note the gap."
)
@json_option
@spark_options
@click.pass_obj
def command(
    session: Session,
    out: Path,
    once: bool,
    every: str,
    queues: str | None,
    reader: str,
    max_entries: int,
    fail_on_gap: bool,
    as_json: bool,
    spark: Callable[[], Any],
) -> None:
    """Copy the journal's events to Parquet files by queue and day, each event once, whatever is killed on the way.

    Exit code 3 where events are missing because they were trimmed before they were read.
    """
    from qworker.pipeline.jobs.archive import archive
    from qworker.pipeline.jobs.lake import Lake

    every_s = duration_ms(every, "--every", minimum_ms=100) / 1000
    lake = Lake(out)
    source = {
        **source_options(session),
        "readerName": reader,
        "maxEntriesPerTrigger": str(max_entries),
        "failOnDataLoss": str(fail_on_gap).lower(),
        **({"queues": queues} if queues else {}),
    }
    with lake.writing():
        running = spark()
        with _stopped() as stopped, step("archiving") as tell:
            done = archive(
                running,
                lake,
                source,
                once=once,
                every_s=every_s,
                on_batch=lambda done: tell(_line(done)),
                stopped=stopped,
            )
    _end(lake.root, done, as_json=as_json)


@contextmanager
def _stopped() -> Iterator[Callable[[float], bool]]:
    """Give a function that waits so many seconds, and says whether Ctrl-C or SIGTERM came."""
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


def _end(root: Path, done: Archived, *, as_json: bool) -> None:
    if as_json:
        from dataclasses import asdict

        print_json({**asdict(done), "archive": str(root)})
    else:
        print_line(
            f"archived {count(done.events, 'event')} in {count(done.batches, 'batch', 'batches')} and "
            f"{span(done.seconds)}, to {root}"
        )
    if done.gaps:
        note(
            f"warning: {count(done.missing, 'event')} were trimmed before they were read: archive more often, or "
            "raise journal_cap"
        )
        raise click.exceptions.Exit(FOUND)
