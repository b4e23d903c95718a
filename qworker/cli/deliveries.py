"""`qworker message` receive, pop, claim, pending: receiving by hand; settling is in `settlements`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import click

from qworker.cli.parameters import DURATION, QUEUE
from qworker.cli.screen import Column, note, print_json, print_line, print_table
from qworker.cli.verbs import Verb, json_option

if TYPE_CHECKING:
    from qworker.cli.session import Session
    from qworker.client.message import Message
    from qworker.client.queue import Queue

__all__ = ["VERBS"]

_COUNT: Final = click.option(
    "--count", "-n", type=click.IntRange(1, 1000), default=1, help="At most so many. [default: 1]"
)
_VISIBILITY: Final = click.option(
    "--visibility",
    type=DURATION,
    help="Time to settle them, 1s to 12h. [default: the queue's]",
)
_WAIT: Final = click.option(
    "--wait", default="0", type=DURATION, help="Wait so long for the first. [default: 0]"
)
_REAP: Final = click.option(
    "--reap", is_flag=True, help="Do a reaper's work on the queues first; there is no daemon."
)
_QUEUES: Final = click.argument("queues", type=QUEUE, nargs=-1, required=True, metavar="QUEUE...")


@click.command("receive", cls=Verb)
@_QUEUES
@_COUNT
@_WAIT
@_VISIBILITY
@_REAP
@json_option
@click.pass_obj
def receive(
    session: Session,
    queues: tuple[str, ...],
    count: int,
    wait: str,
    visibility: str | None,
    reap: bool,
    as_json: bool,
) -> None:
    """Receive messages, from the queues left to right. Each has a receipt, with which it is settled.

    What is not settled in its visibility timeout comes back.
    """
    first, *then = _places(session, queues)
    found = first.receive(
        count,
        wait=wait,
        visibility=visibility,
        then=then,
        reap=reap,
    )
    _print(found, as_json)


@click.command("pop", cls=Verb)
@_QUEUES
@_COUNT
@_WAIT
@_REAP
@json_option
@click.pass_obj
def pop(
    session: Session, queues: tuple[str, ...], count: int, wait: str, reap: bool, as_json: bool
) -> None:
    """Receive messages and ack them at once: nobody gets them again, whatever becomes of the output."""
    first, *then = _places(session, queues)
    found = first.pop(count, wait=wait, then=then, reap=reap)
    _print(found, as_json, with_receipts=False)


@click.command("claim", cls=Verb)
@click.argument("queue", type=QUEUE)
@click.option("--elapsed", required=True, type=DURATION, help="In hand for so long or longer.")
@_COUNT
@_VISIBILITY
@json_option
@click.pass_obj
def claim(
    session: Session, queue: str, elapsed: str, count: int, visibility: str | None, as_json: bool
) -> None:
    """Take messages over from receivers that have not been heard of, before their visibility timeout is over.

    Their delivery is counted as if it had timed out, and the old receipts are stale.
    """
    place = session.queue(queue)
    found = place.claim(count, elapsed=elapsed, visibility=visibility)
    _print(found, as_json)


@click.command("pending", cls=Verb)
@click.argument("queue", type=QUEUE)
@click.option("--elapsed", default="0", type=DURATION, help="Only those in hand for so long.")
@click.option("--count", "-n", type=click.IntRange(1, 1000), default=10, help="At most so many.")
@click.option("--skip", type=click.IntRange(0, 1_000_000), default=0, help="Leave out the first.")
@click.option("--newest", is_flag=True, help="The latest deadline first.")
@json_option
@click.pass_obj
def pending(
    session: Session, queue: str, elapsed: str, count: int, skip: int, newest: bool, as_json: bool
) -> None:
    """List messages in hand: when each was last delivered or extended, and how often it was delivered."""
    from qworker.cli.formats import moment, span
    from qworker.cli.messages import message_document, stored_line

    found = session.queue(queue).pending(count, newest=newest, elapsed=elapsed, skip=skip)
    if as_json:
        print_json(
            {
                "queue": queue,
                "messages": [
                    {
                        **message_document(each.stored),
                        "deliveries": each.deliveries,
                        "delivered_ms": each.delivered_ms,
                        "elapsed_seconds": each.elapsed_ms / 1000,
                    }
                    for each in found
                ],
            }
        )
        return
    if not found:
        note(f"{queue} has no such message in hand")
        return
    columns = [Column("RECEIPT"), Column("ID"), Column("DELIVERED"), Column("ELAPSED", number=True)]
    columns += [Column("DELIVERIES", number=True), Column("BODY", wide=True)]
    print_table(
        columns,
        [
            [
                str(each.receipt),
                each.id,
                moment(each.delivered_ms),
                span(each.elapsed_ms / 1000),
                str(each.deliveries),
                stored_line(each.stored),
            ]
            for each in found
        ],
    )


VERBS: Final = (receive, pop, claim, pending)


def _places(session: Session, names: Iterable[str]) -> list[Queue]:
    return [session.queue(name) for name in dict.fromkeys(names)]


def _print(messages: Sequence[Message], as_json: bool, *, with_receipts: bool = True) -> None:
    from qworker.cli.messages import body_line, delivery_document

    if as_json:
        print_json({"messages": [delivery_document(each) for each in messages]})
        return
    if not messages:
        note("no message")
    for each in messages:
        start = f"{each.receipt}  " if with_receipts else ""
        print_line(f"{start}{each.id}  {body_line(each.body, full=True)}")
