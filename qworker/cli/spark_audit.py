"""`qworker spark audit`: did every accepted message end exactly once?"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from qworker.cli.failures import FOUND
from qworker.cli.formats import count
from qworker.cli.screen import (
    Cell,
    Column,
    note,
    print_fields,
    print_heading,
    print_json,
    print_line,
    print_table,
)
from qworker.cli.session import Session
from qworker.cli.spark_reading import (
    Reading,
    reading_options,
    spark_options,
    step,
)
from qworker.cli.verbs import Verb, json_option

if TYPE_CHECKING:
    from qworker.pipeline.jobs.audit import Audit

__all__ = ["command"]

_EXAMPLES = """\b
Examples:
  qworker spark audit                                   the live journal, and what Redis holds
  qworker spark audit --archive lake --live             the archive, and what came after it
  qworker spark audit --archive lake --since 24h --json
"""
_WORDS: Final = {
    "lost": "accepted, without an end, and not in Redis",
    "acked_twice": "ended twice",
    "started_after_ack": "delivered after its ack",
    "unsure": "gone, and its end may lie in a gap of the journal",
    "open": "not ended yet",
}


@click.command(cls=Verb, epilog=_EXAMPLES)
@reading_options
@json_option
@spark_options
@click.pass_obj
def command(session: Session, reading: Reading, as_json: bool, spark: Callable[[], Any]) -> None:
    """Check that every message sent in the window ended exactly once.

    A message belongs to the window in which it was sent, and what happened to it later counts. Without the live
    journal nobody can say what is lost: messages without an end are open. Exit code 3 where something is wrong.
    """
    from qworker.pipeline.jobs.audit import Window
    from qworker.pipeline.jobs.reading import audit_all

    source = reading.source(session)
    running = spark()
    with step("auditing"):
        found = audit_all(
            running,
            window=Window(reading.since, reading.until),
            lake=reading.lake,
            source=source,
            queues=reading.queues,
        )
    if as_json:
        print_json(found.document())
    else:
        _print(found, reading)
    if found.wrong:
        raise click.exceptions.Exit(FOUND)


def _print(found: Audit, reading: Reading) -> None:
    if not found.events:
        note(
            f"there are no events in {reading.words}: is the journal on? (qworker queue set QUEUE journal=all)"
        )
    ended = ", ".join(f"{number:,} {event}" for event, number in sorted(found.ended.items()))
    unknown = "unknown without --live"
    print_fields(
        {
            "events": count(found.events),
            "messages": count(found.messages),
            "ended": ended or "0",
            "dead": f"{found.dead:,}"
            + (f" ({found.redriven:,} redriven)" if found.redriven else ""),
            "open": f"{found.open:,}"
            + (f" ({found.in_redis:,} seen in Redis)" if found.in_redis is not None else ""),
            "lost": unknown if found.lost is None else _number(found.lost),
            "acked twice": _number(found.acked_twice),
            "started after ack": _number(found.started_after_ack),
            "unsure": unknown if found.lost is None else _number(found.unsure),
            "gaps": Cell(f"{found.gaps:,}, {count(found.missing, 'event')} missing", "bad")
            if found.gaps
            else _number(0),
        }
    )
    if found.unheard:
        note(
            f"{', '.join(found.unheard)}: sends are not journalled (journal=outcomes), so a message that was never "
            "received leaves no trace"
        )
    for name, rows in found.samples.items():
        print_heading(f"{name.replace('_', ' ')}: {_WORDS[name]}")
        columns = [Column(title) for title in ("queue", "id", "task", "sent", "last event", "at")]
        print_table(
            columns,
            [
                [
                    row["queue"],
                    row["message_id"],
                    row["task"] or "",
                    row["sent"] or "",
                    row["last_event"] or "",
                    row["last"] or "",
                ]
                for row in rows
            ],
        )
    if found.holes:
        print_heading("gaps: numbers that are missing in the journal")
        titles = ("queue", "after number", "missing", "from", "until")
        print_table(
            [Column(title) for title in titles],
            [
                [
                    hole["queue"],
                    str(hole["after"]),
                    "unknown" if hole["missing"] is None else f"{hole['missing']:,}",
                    hole["from"] or "the beginning",
                    hole["until"] or "",
                ]
                for hole in found.holes
            ],
        )
    print_line()
    if found.wrong:
        print_line(
            "; ".join(f"{n:,} {name.replace('_', ' ')}" for name, n in found.wrong.items()), "bad"
        )
    elif found.lost is None:
        print_line(
            "nothing is wrong as far as the journal tells; --live also looks into Redis", "good"
        )
    else:
        print_line("every message is accounted for", "good")


def _number(number: int) -> Cell:
    return Cell(f"{number:,}", "bad" if number else "good")
