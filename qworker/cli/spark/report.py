"""`qworker spark report`: a page about what happened."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qworker.cli.framework.commands import VerbCommand, json_option
from qworker.cli.framework.context import Session
from qworker.cli.framework.output import Output
from qworker.cli.framework.terminal import note
from qworker.cli.spark.reading import EventSelection, reading_options
from qworker.cli.spark.running import spark_options, step
from qworker.durations import duration_ms
from qworker.errors import InvalidOptionError, PipelineError
from qworker.formats import count, size, span
from qworker.wire.names import check_queue

if TYPE_CHECKING:
    from qworker.pipeline.report import Reported, Scope

__all__ = ["command"]

_EXAMPLES = """\b
Examples:
  qworker spark report --out report.html
  qworker spark report --archive lake --since 7d --out week.html
  qworker spark report --archive lake --incremental    daily, from cron
  qworker spark report --target emails=5s --target reports=10m --target 30s
"""


@click.command(cls=VerbCommand, epilog=_EXAMPLES)
@reading_options
@click.option(
    "--out",
    default="report.html",
    show_default=True,
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="File to write.",
)
@click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="[QUEUE=]DURATION",
    help="Target for the time from due to acked; repeatable. [default: 10s]",
)
@click.option(
    "--incremental",
    is_flag=True,
    help="Report on the whole archive, but read only events that are new since the last incremental report.",
)
@click.option("--restart", is_flag=True, help="With --incremental: read all of the archive again.")
@json_option
@spark_options
@click.pass_obj
def command(
    session: Session,
    reading: EventSelection,
    out: Path,
    targets: tuple[str, ...],
    incremental: bool,
    restart: bool,
    spark: Callable[[], Any],
) -> Output:
    """Write one self-contained HTML page: throughput, backlog, durations, failures, targets, capacity, gaps.

    --json also prints its numbers.
    """
    from qworker.pipeline.report import check_charts, render, report_increment

    check_charts()
    lake = reading.whole(incremental=incremental, restart=restart)
    if lake is not None and reading.live:
        raise InvalidOptionError(
            "--live", "excludes --incremental", "archive first, then omit --live"
        )
    scope = _scope(session, reading, targets)
    _check_out(out)
    source = reading.source(session)
    running = spark()
    begun = time.monotonic()
    with step("reporting", running) as report:
        if lake is not None:
            done = report_increment(running, lake, scope, restart=restart, on_step=report)
        else:
            done = _report_once(running, reading, source, scope, report)
        document = done.document
        seconds = time.monotonic() - begun
        document["read"] = {
            **asdict(done.read),
            "events": done.events,
            "seconds": round(seconds, 1),
            **({"since_ms": _ms(done.since), "rebuilt": done.rebuilt} if lake is not None else {}),
        }
        page = render(document)
    write(out, page)
    _note_reading(done, reading)
    read = f"{count(done.events, 'event')}{done.read.text}, in {span(seconds)}"
    return Output(document, f"{out} ({size(len(page.encode()))}): {read}")


def _scope(session: Session, reading: EventSelection, targets: tuple[str, ...]) -> Scope:
    from qworker.pipeline.report import Scope
    from qworker.pipeline.report.scope import DEFAULT_TARGET_MS

    by_queue, default_ms = _parse(targets)
    return Scope(
        namespace=session.namespace,
        source=reading.text,
        since=reading.since,
        until=reading.until,
        targets_ms=by_queue,
        default_target_ms=DEFAULT_TARGET_MS if default_ms is None else default_ms,
    )


def _report_once(
    spark: Any,
    reading: EventSelection,
    source: dict[str, str] | None,
    scope: Scope,
    on_step: Callable[[str], None],
) -> Reported:
    """Report on the events that were chosen, without a state for the next report."""
    from qworker.pipeline.report import Reported, make_document

    document = make_document(
        reading.events(spark, source),
        scope,
        ends=reading.ends(),
        earlier=reading.earlier(),
        on_step=on_step,
    )
    return Reported(document, reading.files(), document["data"]["rows"], None, None)


def _check_out(out: Path) -> None:
    """Raise an error now, not after an hour of Spark, if the page cannot be written."""
    if not out.absolute().parent.is_dir():
        raise InvalidOptionError(
            "--out", f"no such directory: {str(out.absolute().parent)!r}", "create it first"
        )
    write(out, None)


def _note_reading(done: Reported, reading: EventSelection) -> None:
    if done.rebuilt is not None:
        note(f"read all of the archive, because {done.rebuilt}")
    elif done.since is not None:
        note(f"read the events since the report of {done.since:%Y-%m-%d %H:%M} UTC")
    if not done.document["data"]["rows"]:
        note(f"no events in {reading.text} in this window")


def _ms(moment: datetime | None) -> int | None:
    return None if moment is None else round(moment.timestamp() * 1000)


def write(file: Path, text: str | None) -> None:
    """Write a file atomically; None: only see whether it can be. Raises `PipelineError`."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        draft.write_text(text or "", encoding="utf-8")
        if text is not None:
            draft.replace(file)
    except OSError as error:
        raise PipelineError(
            f"{file} cannot be written ({error.strerror}): check the rights and the space on its disk"
        ) from error
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
