"""`qworker queue` stat and scan: what a queue does, and which queues there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from qworker.cli.parameters import QUEUE
from qworker.cli.screen import Cell, note, print_fields, print_json, print_line
from qworker.cli.verbs import Verb, json_option

if TYPE_CHECKING:
    from qworker.cli.session import Session

__all__ = ["VERBS"]


@click.command("stat", cls=Verb)
@click.argument("queue", type=QUEUE)
@click.option(
    "--over", default="1s", metavar="DURATION", help="Measure rates over so long. [default: 1s]"
)
@json_option
@click.pass_obj
def stat(session: Session, queue: str, over: str, as_json: bool) -> None:
    """Tell what a queue does: length, age, idle time, who waits for it, what comes and goes, its pause."""
    import time

    from qworker.cli.formats import count, rate, span
    from qworker.config.kinds import DurationKind
    from qworker.durations import duration_ms

    over_ms = duration_ms(DurationKind("", maximum_ms=60_000).parse(over, "--over"), "--over")
    place = session.queue(queue)
    first = place.stat()
    time.sleep(over_ms / 1000)
    seen = place.stat()
    rate_in, rate_out = seen.rates_since(first)
    if as_json:
        print_json(
            {
                "queue": queue,
                "ready": seen.ready,
                "age_seconds": seen.age_s,
                "idle_seconds": seen.idle_s,
                "consumers": seen.consumers,
                "blocked": seen.blocked,
                "messages_in": seen.messages_in,
                "messages_out": seen.messages_out,
                "in_per_second": round(rate_in, 3),
                "out_per_second": round(rate_out, 3),
                "paused": seen.paused,
                "strict": seen.strict,
            }
        )
        return
    fields: dict[str, Cell | str] = {
        "queue": queue,
        "ready": count(seen.ready),
        "age": "unknown" if seen.age_s is None else span(seen.age_s),
        "idle": "unknown" if seen.idle_s is None else span(seen.idle_s),
        "consumers": f"{seen.consumers}, of which {seen.blocked} wait",
        "in": f"{count(seen.messages_in)}, {rate(rate_in)} per second",
        "out": f"{count(seen.messages_out)}, {rate(rate_out)} per second",
        "paused": f"{seen.paused or 'no'}{' (strict)' if seen.strict else ''}",
    }
    print_fields(fields)


@click.command("scan", cls=Verb)
@click.option("--minlen", type=click.IntRange(0), default=0, help="At least so many ready.")
@click.option("--maxlen", type=click.IntRange(0), help="At most so many ready.")
@click.option("--cursor", help="Go on here, and print one page only; 0 begins. [default: all]")
@click.option("--count", type=click.IntRange(1, 1000), default=100, help="About so many in a page.")
@json_option
@click.pass_obj
def scan(
    session: Session,
    minlen: int,
    maxlen: int | None,
    cursor: str | None,
    count: int,
    as_json: bool,
) -> None:
    """Go through the queues in pages, with their number of ready messages; a JSON document each line with --json."""
    from qworker.client.scanning import END, scan_queues

    at = cursor or END
    while True:
        plan = scan_queues(session.namespace, at, count=count, minlen=minlen, maxlen=maxlen)
        page = session.client.run(plan)
        at = page.cursor
        if as_json:
            queues = [{"queue": each.queue, "ready": each.ready} for each in page.items]
            print_json({"cursor": at, "queues": queues})
        else:
            for each in page.items:
                print_line(f"{each.queue}  {'broken' if each.ready is None else each.ready}")
        if at == END or cursor is not None:
            break
    if cursor is not None and not as_json:
        note(f"next: --cursor {at}" if at != END else "that was the last page")


VERBS: Final = (stat, scan)
