"""`qworker spark send`: the rows of a file or table as messages, each once."""

from __future__ import annotations

import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import click

from qworker.cli.formats import count, rate, shortened, span
from qworker.cli.parameters import QUEUE
from qworker.cli.screen import note, print_fields, print_json, print_line
from qworker.cli.session import Session
from qworker.cli.spark_reading import source_options, spark_options, step
from qworker.cli.verbs import Verb, dry_run_option, json_option

if TYPE_CHECKING:
    from qworker.pipeline.writing.inputs import Input
    from qworker.pipeline.writing.send import SendTotals

__all__ = ["command"]

_EXAMPLES = """\b
Examples:
  qworker spark send users.parquet --queue emails --task send_email --write-id users-42
  qworker spark send 'orders/*.csv' --queue orders --schema 'id INT, total DOUBLE' --id id
  qworker spark send events.jsonl --queue events --max-queue-length 100000
"""
_LOOK_EVERY_S: Final = 0.3
#: What Spark says of an input that it finds to be broken when it reads it.
_UNREADABLE: Final = ("MALFORMED_", "FAILED_READ_FILE", "CANNOT_PARSE", "CANNOT_READ")


@click.command(cls=Verb, epilog=_EXAMPLES)
@click.argument("source", metavar="FILE|TABLE")
@click.option("--queue", type=QUEUE, required=True, help="The queue.")
@click.option("--task", metavar="NAME", help="Call this task; the columns are its arguments.")
@click.option("--body", metavar="COLUMN", help="The body is this column, not a JSON object of all.")
@click.option("--id", "row_id", metavar="COLUMN", help="Names each row: sent once in 24 h.")
@click.option("--format", "form", metavar="parquet|csv|jsonl", help="Where the name does not tell.")
@click.option("--schema", metavar="DDL", help="Types of CSV columns: 'id INT, name STRING'.")
@click.option("--write-id", metavar="ID", help="Run again with it, and only the rest is sent.")
@click.option("--delay", metavar="DURATION", help="How long each message waits.")
@click.option("--ttl", metavar="DURATION", help="How long each message is worth handling.")
@click.option(
    "--priority", type=click.IntRange(0, 9), default=0, show_default=True, help="9 comes first."
)
@click.option("--max-queue-length", type=click.IntRange(1), metavar="N", help="Messages at most.")
@click.option(
    "--on-full",
    type=click.Choice(["wait", "fail"]),
    default="wait",
    show_default=True,
    help="What to do when the queue is full or paused.",
)
@dry_run_option
@json_option
@spark_options
@click.pass_obj
def command(
    session: Session,
    /,
    source: str,
    queue: str,
    form: str | None,
    schema: str | None,
    write_id: str | None,
    dry_run: bool,
    as_json: bool,
    spark: Callable[[], Any],
    **flags: Any,
) -> None:
    """Send every row of a Parquet, CSV or JSON lines file, or of a table, as one message.

    A run that fails or is stopped goes on where it was under the same --write-id (24 h), with the same input.
    """
    from qworker.pipeline.writing.failures import hush
    from qworker.pipeline.writing.inputs import FORMATS, read_input
    from qworker.pipeline.writing.options import WriteOptions
    from qworker.pipeline.writing.send import Rows

    if form is not None and form not in FORMATS:
        raise click.UsageError(f"--format: {form!r} is none of {', '.join(FORMATS)}")
    options = {**source_options(session), **_options(flags), "queue": queue}
    chosen = write_id or f"cli-{uuid.uuid4()}"
    WriteOptions.of({**options, "writeId": chosen})
    _note_new(session, queue)
    rows = Rows(task=flags["task"], body=flags["body"], id=flags["row_id"])
    running = spark()
    hush(running)
    with step("looking at the input"), _spark_errors(source, reading=True):
        found = read_input(running, source, form=form, schema=schema, rows=rows)
        total = found.df.count() if dry_run or sys.stderr.isatty() else 0
    if dry_run:
        _show(found, source, queue, total, as_json)
        return
    totals, seconds = _send(session, found, source, chosen, options, total)
    _report(totals, queue, seconds, as_json)


def _options(flags: dict[str, Any]) -> dict[str, str]:
    names = {
        "delay": "delay",
        "ttl": "ttl",
        "priority": "priority",
        "max_queue_length": "maxQueueLength",
        "on_full": "onFull",
    }
    return {option: str(flags[flag]) for flag, option in names.items() if flags[flag] is not None}


def _note_new(session: Session, queue: str) -> None:
    if not session.has_queue(queue):
        near = session.near_queue(queue)
        note(f"note: queue {queue!r} is new" + (f"; did you mean {near!r}?" if near else ""))


@contextmanager
def _spark_errors(source: str, *, reading: bool) -> Iterator[None]:
    """Tell in one line what Spark says: while `reading` it is about the input, later mostly not."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    from qworker.errors import InvalidOptionError, PipelineError

    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        found = error.java_exception.getMessage() if isinstance(error, Py4JJavaError) else error
        line = shortened(str(found).strip().partition("\n")[0], 300)
        if reading or any(mark in str(error) for mark in _UNREADABLE):
            raise InvalidOptionError(
                "FILE|TABLE", f"{source!r} cannot be read ({line})", "check the input"
            ) from error
        raise PipelineError(f"Spark failed: {line} (QWORKER_DEBUG=1 shows it all)") from error


def _show(found: Input, source: str, queue: str, total: int, as_json: bool) -> None:
    from qworker.pipeline.writing.failures import clear_errors
    from qworker.pipeline.writing.send import bodies_of

    with _spark_errors(source, reading=True), clear_errors():
        first = [row["body"] for row in bodies_of(found.df, found.rows).limit(1).collect()]
    example = first[0] if first else ""
    text = example.decode("utf-8", "replace") if isinstance(example, bytearray) else str(example)
    if as_json:
        document = {"queue": queue, "format": found.kind, "rows": total, "first_body": text}
        print_json({**document, "sent": 0, "dry_run": True})
        return
    print_fields({"rows": count(total), "format": found.kind, "first body": shortened(text, 300)})
    print_line(f"would send {count(total, 'message')} to {queue}; nothing was sent")


def _send(
    session: Session,
    found: Input,
    source: str,
    write_id: str,
    options: dict[str, str],
    total: int,
) -> tuple[SendTotals, float]:
    import time

    from qworker.cli.progress import progress
    from qworker.pipeline.writing.send import send_rows

    begun = time.monotonic()
    try:
        with (
            progress(f"sending to {options['queue']}", total) as advance,
            _watching(session, options["queue"], write_id, advance),
            _spark_errors(source, reading=False),
        ):
            totals = send_rows(found.df, rows=found.rows, write_id=write_id, options=options)
    except BaseException:
        note(f"what was sent stays; to send the rest, run it again with --write-id {write_id}")
        raise
    return totals, time.monotonic() - begun


@contextmanager
def _watching(
    session: Session, queue: str, write_id: str, advance: Callable[[int], None]
) -> Iterator[None]:
    """Move the bar by what the ledger of the write says."""
    if not sys.stderr.isatty():
        yield
        return
    from qworker.client.sync import Client
    from qworker.errors import ServerError
    from qworker.store.connection import ConnectionFactory
    from qworker.wire.keys import QueueKeys

    ledger = QueueKeys(session.namespace, queue).bulk(write_id)
    ended = threading.Event()

    def look() -> None:
        seen = 0
        factory = ConnectionFactory(session.server, name="qworker-cli")
        # A bar that stands still does no harm; the send itself tells what is wrong.
        with suppress(ServerError), Client(factory) as client:
            while not ended.wait(_LOOK_EVERY_S):
                stored = _stored(client, ledger)
                advance(stored - seen)
                seen = stored

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join(1)


def _stored(client: Any, ledger: str) -> int:
    from qworker.client.commands.command import Command

    return int(
        client.execute(Command(None, (), ("HGET", ledger, "stored"), lambda found: found or 0))
    )


def _report(totals: SendTotals, queue: str, seconds: float, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "queue": queue,
                "write_id": totals.write_id,
                "rows": totals.rows,
                "sent": totals.sent,
                "already_there": totals.already_there,
                "seconds": round(seconds, 3),
            }
        )
        return
    print_fields(
        {
            "rows read": count(totals.rows),
            "sent": f"{count(totals.sent)} to {queue} in {span(seconds)} ({rate(totals.sent / seconds)}/s)",
            "already there": count(totals.already_there),
            "write id": totals.write_id,
        }
    )
