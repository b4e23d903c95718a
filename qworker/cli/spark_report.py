"""`qworker spark report`: one page about what happened."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from qworker.cli.formats import count, size
from qworker.cli.screen import note, print_json, print_line
from qworker.cli.session import Session
from qworker.cli.spark_reading import Reading, reading_options, spark_options, step
from qworker.cli.verbs import Verb, json_option
from qworker.durations import duration_ms
from qworker.errors import InvalidOptionError
from qworker.wire.names import check_queue

__all__ = ["command"]

_EXAMPLES = """\b
Examples:
  qworker spark report --out report.html
  qworker spark report --archive lake --since 7d --out week.html --json > week.json
  qworker spark report --target emails=5s --target reports=10m --target 30s
"""


@click.command(cls=Verb, epilog=_EXAMPLES)
@reading_options
@click.option(
    "--out",
    default="report.html",
    show_default=True,
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The page.",
)
@click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="[QUEUE=]DURATION",
    help="Messages should be acked so soon after they are due; repeatable. [default: 10s]",
)
@json_option
@spark_options
@click.pass_obj
def command(
    session: Session,
    reading: Reading,
    out: Path,
    targets: tuple[str, ...],
    as_json: bool,
    spark: Callable[[], Any],
) -> None:
    """Write one self-contained HTML page: throughput, backlog, durations, failures, targets, capacity, gaps.

    --json prints the same numbers as well.
    """
    from qworker.pipeline.jobs.report import Scope, check_charts, make_document, render
    from qworker.pipeline.jobs.report.document import DEFAULT_TARGET_MS

    check_charts()
    by_queue, default_ms = _parse(targets)
    if not out.absolute().parent.is_dir():
        raise InvalidOptionError(
            "--out", f"there is no directory {str(out.absolute().parent)!r}", "make it first"
        )
    scope = Scope(
        namespace=session.namespace,
        source=reading.words,
        since=reading.since,
        until=reading.until,
        targets_ms=by_queue,
        default_target_ms=DEFAULT_TARGET_MS if default_ms is None else default_ms,
    )
    source = reading.source(session)
    running = spark()
    with step("reporting") as tell:
        document = make_document(reading.events(running, source), scope, on_step=tell)
        page = render(document)
    write(out, page)
    if not document["data"]["rows"]:
        note(f"there are no events in {reading.words} for this window; the page says so")
    if as_json:
        print_json(document)
        return
    print_line(f"{out} ({size(len(page.encode()))}): {count(document['data']['rows'], 'event')}")


def write(file: Path, text: str) -> None:
    """Write a file so that nobody ever sees half of it."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)


def _parse(targets: tuple[str, ...]) -> tuple[dict[str, float], float | None]:
    by_queue: dict[str, float] = {}
    default: float | None = None
    for text in targets:
        queue, equals, wanted = text.rpartition("=")
        milliseconds = float(duration_ms(wanted, "--target", minimum_ms=1))
        if equals:
            by_queue[check_queue(queue, "--target")] = milliseconds
        else:
            default = milliseconds
    return by_queue, default
