"""`qworker queue` stat and scan: the activity of a queue, and the queues in pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from qworker.cli.framework.commands import VerbCommand, json_option
from qworker.cli.framework.output import Fields, Output
from qworker.cli.framework.paging import page_options, print_pages
from qworker.cli.framework.parameters import QUEUE, NumberRange

if TYPE_CHECKING:
    from qworker.cli.framework.context import Session
    from qworker.client.inspect.pages import Page

__all__ = ["VERBS"]


@click.command("stat", cls=VerbCommand)
@click.argument("queue", type=QUEUE)
@click.option(
    "--over", default="1s", metavar="DURATION", help="Sampling interval for rates. [default: 1s]"
)
@json_option
@click.pass_obj
def stat(session: Session, queue: str, over: str) -> Output:
    """Show the activity of a queue: length, age, idle time, consumers, traffic, pause."""
    import time

    from qworker.config.kinds import DurationKind
    from qworker.durations import duration_ms
    from qworker.formats import count, rate, span

    over_ms = duration_ms(DurationKind("", maximum_ms=60_000).parse(over, "--over"), "--over")
    opened = session.queues.get(queue)
    first = opened.stat()
    time.sleep(over_ms / 1000)
    last = opened.stat()
    rate_in, rate_out = last.rates_since(first)
    return Output(
        {
            "queue": queue,
            "ready": last.ready,
            "age_seconds": last.age_s,
            "idle_seconds": last.idle_s,
            "consumers": last.consumers,
            "blocked": last.blocked,
            "messages_in": last.messages_in,
            "messages_out": last.messages_out,
            "in_per_second": round(rate_in, 3),
            "out_per_second": round(rate_out, 3),
            "paused": last.paused,
            "strict": last.strict,
        },
        Fields(
            {
                "queue": queue,
                "ready": count(last.ready),
                "age": "unknown" if last.age_s is None else span(last.age_s),
                "idle": "unknown" if last.idle_s is None else span(last.idle_s),
                "consumers": f"{last.consumers}, {last.blocked} of them waiting",
                "in": f"{count(last.messages_in)}, {rate(rate_in)} per second",
                "out": f"{count(last.messages_out)}, {rate(rate_out)} per second",
                "paused": f"{last.paused or 'no'}{' (strict)' if last.strict else ''}",
            }
        ),
    )


@click.command("scan", cls=VerbCommand)
@click.option("--minlen", type=NumberRange(0), default=0, help="Minimum number of ready messages.")
@click.option("--maxlen", type=NumberRange(0), help="Maximum number of ready messages.")
@page_options
@json_option
@click.pass_obj
def scan(
    session: Session, minlen: int, maxlen: int | None, cursor: str | None, count: int
) -> Iterator[Output]:
    """List the queues in pages, with their number of ready messages; --json prints a document per page."""
    from qworker.client.inspect.scan import scan_queues

    def read(position: str) -> Page[Any]:
        plan = scan_queues(session.namespace, position, count=count, minlen=minlen, maxlen=maxlen)
        return session.client.run(plan)

    return print_pages(cursor, read, _page)


VERBS: Final = (stat, scan)


def _page(page: Page[Any]) -> Output:
    queues = [{"queue": item.queue, "ready": item.ready} for item in page.items]
    lines = [
        f"{item.queue}  {'broken' if item.ready is None else item.ready}" for item in page.items
    ]
    return Output({"cursor": page.cursor, "queues": queues}, lines)
