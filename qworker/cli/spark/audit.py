"""`qworker spark audit`: did every accepted message end exactly once?"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from qworker.cli.framework.commands import VerbCommand, json_option
from qworker.cli.framework.context import Session
from qworker.cli.framework.errors import FOUND, UNTOLD
from qworker.cli.framework.output import Block, Fields, Heading, Line, Note, Output, Table
from qworker.cli.framework.terminal import Cell, Column
from qworker.cli.spark.reading import EventSelection, reading_options
from qworker.cli.spark.running import spark_options, step
from qworker.formats import count, span

if TYPE_CHECKING:
    from qworker.pipeline.jobs.audit import AuditResult
    from qworker.pipeline.jobs.days import FilesRead
    from qworker.pipeline.jobs.lake import Lake

__all__ = ["command"]

_EXAMPLES = """\b
Examples:
  qworker spark audit                          the live journal, and Redis
  qworker spark audit --archive lake --live    the archive, and later events
  qworker spark audit --archive lake --since 24h --json
  qworker spark audit --archive lake --live --incremental    daily, from cron
"""
_WORDS: Final = {
    "lost": "accepted, without an end, and not in Redis",
    "acked_twice": "ended twice",
    "started_after_ack": "delivered after its ack",
    "unsure": "gone, and its end may be in a gap of the journal",
    "open": "not ended yet",
    "step_twice": "steps of runs that were recorded twice",
    "group_decided_twice": "groups of calls whose callback was sent, or whose run was woken, twice",
    "group_undecided": "groups of calls that wait although their calls have ended",
    "group_unsure": "groups of calls whose beginning, decision or ends of calls the record may lack",
    "group_open": "groups of calls that wait, the oldest first",
}
_OF_MESSAGES: Final = {
    "queue": "queue",
    "id": "message_id",
    "task": "task",
    "sent": "sent",
    "last event": "last_event",
    "at": "last",
}
_OF_STEPS: Final = {
    "queue": "queue",
    "run": "message_id",
    "step": "step",
    "recorded": "records",
    "values": "values",
    "at": "last",
}
_OF_GROUPS: Final = {
    "queue": "queue",
    "group": "group_id",
    "made": "made",
    "calls": "calls",
    "policy": "policy",
    "decided": "decisions",
    "outcome": "outcome",
    "calls ended": "due",
}

_NUMBERED: Final = {
    "acked_twice": "acked twice",
    "started_after_ack": "started after ack",
    "step_twice": "steps twice",
    "group_decided_twice": "groups of calls decided twice",
    "group_undecided": "groups of calls undecided",
    "group_unsure": "groups of calls unsure",
    "duplicate_rows": "duplicate rows",
    "untold": "stretches without a record",
}


@click.command(cls=VerbCommand, epilog=_EXAMPLES)
@reading_options
@click.option(
    "--incremental",
    is_flag=True,
    help="Audit only events since the last incremental audit, and messages that had not ended then.",
)
@click.option("--restart", is_flag=True, help="With --incremental: audit all of the archive again.")
@json_option
@spark_options
@click.pass_obj
def command(
    session: Session,
    reading: EventSelection,
    incremental: bool,
    restart: bool,
    spark: Callable[[], Any],
) -> Iterator[Output]:
    """Check that every message sent in the window ended exactly once.

    The window selects messages by the time of their sends; their later events count too. Without the live journal,
    losses cannot be detected: messages without an end count as open. Exit code 3 if anything is wrong; 5 if nothing is
    wrong but part of the record is missing: the journal was off, or the queue was removed and created again.
    """
    from qworker.pipeline.jobs.audit import Window
    from qworker.pipeline.jobs.run_audit import audit_all

    lake = reading.whole(incremental=incremental, restart=restart)
    source = reading.source(session)
    if lake is not None:
        yield from _increment(lake, restart, source, spark)
        return
    running, begun = spark(), time.monotonic()
    with step("auditing", running):
        result = audit_all(
            running,
            window=Window(reading.since, reading.until),
            lake=reading.lake,
            source=source,
            queues=reading.queues,
        )
    yield from _outcome(result, reading.files(), begun, reading)
    _exit(result)


def _increment(
    lake: Lake, restart: bool, source: dict[str, str] | None, spark: Callable[[], Any]
) -> Iterator[Output]:
    from qworker.pipeline.jobs.audit_result import iso
    from qworker.pipeline.jobs.increment import forget
    from qworker.pipeline.jobs.run_audit import audit_increment

    running, begun = spark(), time.monotonic()
    if restart:
        forget(lake)
    with step("auditing", running):
        result, last = audit_increment(running, lake=lake, source=source)
    start = "the beginning" if last.at is None else f"the audit of {last.at:%Y-%m-%d %H:%M} UTC"
    yield Output(text=Note(f"audited the events since {start}"))
    read = last.files(lake)
    yield from _outcome(result, read, begun, None, audited_before=iso(last.at))
    _exit(result)


def _outcome(
    result: AuditResult, read: FilesRead, begun: float, reading: EventSelection | None, **more: Any
) -> Iterator[Output]:
    """Say what was read, how long it took, and what was found."""
    seconds = time.monotonic() - begun
    yield Output(
        {**result.document(), "read": {**asdict(read), "seconds": round(seconds, 1)}, **more},
        [
            Note(f"read {count(result.events, 'event')}{read.text}, in {span(seconds)}"),
            *_text(result, reading),
        ],
    )


def _exit(result: AuditResult) -> None:
    if result.wrong or result.doubts:
        raise click.exceptions.Exit(FOUND if result.wrong else UNTOLD)


def _text(result: AuditResult, reading: EventSelection | None) -> Iterator[str | Block]:
    """What an audit found; `reading`: say so if it has no events."""
    if not result.events and reading is not None:
        yield Note(
            f"no events in {reading.text}: is the journal on? (qworker queue set QUEUE journal=all)"
        )
    yield _figures(result)
    if result.unheard:
        yield Note(
            f"{', '.join(result.unheard)}: sends are not journalled (journal=outcomes), so a message that was never "
            "received leaves no trace"
        )
    for name, rows in result.samples.items():
        yield Heading(f"{name.replace('_', ' ')}: {_WORDS[name]}")
        columns = _OF_MESSAGES
        if name.startswith(("step_", "group_")):
            columns = _OF_STEPS if name.startswith("step_") else _OF_GROUPS
        yield Table(
            [Column(title) for title in columns],
            [
                ["" if row[name] is None else str(row[name]) for name in columns.values()]
                for row in rows
            ],
        )
    if result.holes:
        yield Heading("gaps: stretches that the journal does not record")
        titles = ("queue", "why", "after number", "missing", "from", "until")
        yield Table(
            [Column(title) for title in titles],
            [
                [
                    hole["queue"],
                    hole["why"],
                    str(hole["after"]),
                    "unknown" if hole["missing"] is None else f"{hole['missing']:,}",
                    hole["from"] or "the beginning",
                    hole["until"] or "now",
                ]
                for hole in result.holes
            ],
        )
    if result.doubled:
        yield Heading(
            "duplicate rows: a file was copied, or two archivers ran; no message is counted twice"
        )
        yield Table(
            [Column("queue"), Column("rows")],
            [[row["queue"], f"{row['rows']:,}"] for row in result.doubled],
        )
    yield Line()
    if result.wrong:
        yield Line(_listed({**result.wrong, **result.doubts}), "bad")
    elif result.doubts:
        yield Line(f"nothing wrong, but unknown: {_listed(result.doubts)}", "bad")
    elif result.lost is None:
        yield Line("no errors in the journal; --live also checks Redis", "good")
    else:
        yield Line("every message is accounted for", "good")


def _listed(numbers: Mapping[str, int]) -> str:
    return "; ".join(f"{n:,} {_NUMBERED.get(name, name)}" for name, n in numbers.items())


def _figures(result: AuditResult) -> Fields:
    ended = ", ".join(f"{number:,} {event}" for event, number in sorted(result.ended.items()))
    redriven = f" ({result.redriven:,} redriven)" if result.redriven else ""
    in_redis = "" if result.in_redis is None else f" ({result.in_redis:,} seen in Redis)"
    gaps = Cell(f"{result.gaps:,}, {count(result.missing, 'event')} missing", "bad")
    unknown = "unknown without --live"
    return Fields(
        {
            "events": count(result.events),
            "messages": count(result.messages),
            "ended": ended or "0",
            "dead": f"{result.dead:,}{redriven}",
            "open": f"{result.open:,}{in_redis}",
            "lost": unknown if result.lost is None else _number(result.lost),
            "acked twice": _number(result.acked_twice),
            "started after ack": _number(result.started_after_ack),
            "unsure": unknown if result.lost is None else _number(result.unsure),
            **_composed(result),
            "duplicate rows": _number(result.duplicate_rows),
            "gaps": gaps if result.gaps else _number(0),
        }
    )


def _composed(result: AuditResult) -> dict[str, str | Cell]:
    """The figures of runs and groups of calls, if there are any."""
    figures: dict[str, str | Cell] = {}
    if result.steps:
        figures["steps of runs"] = count(result.steps)
        figures["steps twice"] = _number(result.step_twice)
    if result.groups:
        figures["groups of calls"] = ", ".join(
            f"{number:,} {outcome}" for outcome, number in sorted(result.groups.items())
        )
        figures["groups decided twice"] = _number(result.group_decided_twice)
        figures["groups undecided"] = _number(result.group_undecided)
        figures["groups unsure"] = _number(result.group_unsure)
    return figures


def _number(number: int) -> Cell:
    return Cell(f"{number:,}", "bad" if number else "good")
