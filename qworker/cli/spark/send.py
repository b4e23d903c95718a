"""`qworker spark send`: the rows of a file or table as messages, each once."""

from __future__ import annotations

import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import click

from qworker.cli.framework.commands import VerbCommand, dry_run_option, json_option
from qworker.cli.framework.context import Session
from qworker.cli.framework.output import Fields, Output
from qworker.cli.framework.parameters import QUEUE, NumberRange
from qworker.cli.framework.terminal import note
from qworker.cli.spark.reading import source_options
from qworker.cli.spark.running import spark_options, step
from qworker.formats import count, rate, shortened, span

if TYPE_CHECKING:
    from qworker.client.execute.sync import Client
    from qworker.pipeline.sink.inputs import Input
    from qworker.pipeline.sink.send import SendTotals

__all__ = ["command"]

_EXAMPLES = """\b
Examples:
  qworker spark send users.parquet --queue emails --task send_email
  qworker spark send users.parquet --queue emails --write-id users-42
  qworker spark send orders.csv --queue orders --id id \\
      --schema 'id INT, total DOUBLE'
  qworker spark send events.jsonl --queue events --max-queue-length 100000
"""
_POLL_S: Final = 0.3
#: Marks of the errors with which Spark refuses a broken input.
_UNREADABLE: Final = ("MALFORMED_", "FAILED_READ_FILE", "CANNOT_PARSE", "CANNOT_READ")


@click.command(cls=VerbCommand, epilog=_EXAMPLES)
@click.argument("source", metavar="FILE|TABLE")
@click.option("--queue", type=QUEUE, required=True, help="Queue to send to.")
@click.option("--task", metavar="NAME", help="Call this task, with the columns as arguments.")
@click.option(
    "--body", metavar="COLUMN", help="Column with the body. [default: a JSON object of all]"
)
@click.option(
    "--id",
    "row_id",
    metavar="COLUMN",
    help="Column with the id of a row, which is sent once in 24 h.",
)
@click.option(
    "--format", "form", metavar="parquet|csv|jsonl", help="Format. [default: by the file name]"
)
@click.option("--schema", metavar="DDL", help="Types of CSV columns: 'id INT, name STRING'.")
@click.option(
    "--write-id", metavar="ID", help="Name of this write; a repeated run with it sends the rest."
)
@click.option("--delay", metavar="DURATION", help="Time before messages are ready.")
@click.option("--ttl", metavar="DURATION", help="Time to live of messages.")
@click.option(
    "--priority",
    type=NumberRange(0, 9),
    default=0,
    show_default=True,
    help="Priority; 9 is received first.",
)
@click.option(
    "--max-queue-length", type=NumberRange(1), metavar="N", help="Maximum length of the queue."
)
@click.option(
    "--on-full",
    type=click.Choice(["wait", "fail"]),
    default="wait",
    show_default=True,
    help="Action if the queue is full or paused.",
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
    spark: Callable[[], Any],
    **flags: Any,
) -> Output:
    """Send every row of a Parquet, CSV or JSON lines file, or of a table, as one message.

    If it fails or is stopped, run it again with the same --write-id and input within 24 h: it sends the rest.
    """
    from qworker.pipeline.failures import silence
    from qworker.pipeline.sink.inputs import FORMATS, read_input
    from qworker.pipeline.sink.options import WriteOptions
    from qworker.pipeline.sink.send import Rows

    if form is not None and form not in FORMATS:
        raise click.UsageError(f"--format: {form!r} is not one of {', '.join(FORMATS)}")
    options = {**source_options(session), **_options(flags), "queue": queue}
    chosen = write_id or f"cli-{uuid.uuid4()}"
    WriteOptions.of({**options, "writeId": chosen})
    session.queues.note_if_new(queue)
    rows = Rows(task=flags["task"], body=flags["body"], id=flags["row_id"])
    running = spark()
    silence(running)
    with step("reading the input"), _spark_errors(source, reading=True):
        data = read_input(running, source, form=form, schema=schema, rows=rows)
        total = data.df.count() if dry_run or sys.stderr.isatty() else 0
    if dry_run:
        return _preview(data, source, queue, total)
    totals, seconds = _send(session, data, source, chosen, options, total)
    return _result(totals, queue, seconds)


def _options(flags: dict[str, Any]) -> dict[str, str]:
    names = {
        "delay": "delay",
        "ttl": "ttl",
        "priority": "priority",
        "max_queue_length": "maxQueueLength",
        "on_full": "onFull",
    }
    return {option: str(flags[flag]) for flag, option in names.items() if flags[flag] is not None}


@contextmanager
def _spark_errors(source: str, *, reading: bool) -> Iterator[None]:
    """Turn errors of Spark into one line: while `reading` they are about the input, later mostly not."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    from qworker.errors import InvalidOptionError, PipelineError

    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        text = error.java_exception.getMessage() if isinstance(error, Py4JJavaError) else error
        line = shortened(str(text).strip().partition("\n")[0], 300)
        if reading or any(mark in str(error) for mark in _UNREADABLE):
            raise InvalidOptionError(
                "FILE|TABLE", f"{source!r} cannot be read ({line})", "check the input"
            ) from error
        raise PipelineError(
            f"Spark failed: {line} (QWORKER_DEBUG=1 shows the whole error)"
        ) from error


def _preview(data: Input, source: str, queue: str, total: int) -> Output:
    from qworker.pipeline.failures import clear_errors
    from qworker.pipeline.sink.send import bodies_of

    with _spark_errors(source, reading=True), clear_errors():
        first = [row["body"] for row in bodies_of(data.df, data.rows).limit(1).collect()]
    example = first[0] if first else ""
    text = example.decode("utf-8", "replace") if isinstance(example, bytearray) else str(example)
    document = {"queue": queue, "format": data.kind, "rows": total, "first_body": text}
    fields = {"rows": count(total), "format": data.kind, "first body": shortened(text, 300)}
    return Output(
        {**document, "sent": 0, "dry_run": True},
        [Fields(fields), f"would send {count(total, 'message')} to {queue}; nothing was sent"],
    )


def _send(
    session: Session,
    data: Input,
    source: str,
    write_id: str,
    options: dict[str, str],
    total: int,
) -> tuple[SendTotals, float]:
    import time

    from qworker.cli.framework.progress import progress
    from qworker.pipeline.sink.send import send_rows

    begun = time.monotonic()
    try:
        with (
            progress(f"sending to {options['queue']}", total) as advance,
            _watching(session, options["queue"], write_id, advance),
            _spark_errors(source, reading=False),
        ):
            totals = send_rows(data.df, rows=data.rows, write_id=write_id, options=options)
    except BaseException:
        note(
            f"messages sent so far stay; to send the rest, run it again with --write-id {write_id}"
        )
        raise
    return totals, time.monotonic() - begun


@contextmanager
def _watching(
    session: Session, queue: str, write_id: str, advance: Callable[[int], None]
) -> Iterator[None]:
    """Advance the bar by the count in the ledger of the write."""
    if not sys.stderr.isatty():
        yield
        return
    from qworker.bulk.ledger import SHARDS, ledgers_of
    from qworker.client.execute.sync import Client
    from qworker.errors import ServerError
    from qworker.store.connections import ConnectionFactory
    from qworker.wire.keys import QueueKeys

    first = QueueKeys(session.namespace, queue).bulk(write_id)

    def stored_by(client: Client) -> int:
        ledgers = ledgers_of(session.namespace, queue, write_id, client.ask("HGET", first, SHARDS))
        return sum(int(client.ask("HGET", ledger, "stored") or 0) for ledger in ledgers)

    ended = threading.Event()

    def poll() -> None:
        shown = 0
        factory = ConnectionFactory(session.server, name="qworker-cli")
        # A bar that stops does no harm: the send reports the error.
        with suppress(ServerError), Client(factory) as client:
            while not ended.wait(_POLL_S):
                stored = stored_by(client)
                advance(stored - shown)
                shown = stored

    watcher = threading.Thread(target=poll, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join(1)


def _result(totals: SendTotals, queue: str, seconds: float) -> Output:
    per_s = rate(totals.sent / seconds)
    return Output(
        {
            "queue": queue,
            "write_id": totals.write_id,
            "rows": totals.rows,
            "sent": totals.sent,
            "already_there": totals.already_there,
            "seconds": round(seconds, 3),
        },
        Fields(
            {
                "rows read": count(totals.rows),
                "sent": f"{count(totals.sent)} to {queue} in {span(seconds)} ({per_s}/s)",
                "already there": count(totals.already_there),
                "write id": totals.write_id,
            }
        ),
    )
