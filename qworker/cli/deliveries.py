"""`qworker message` receive, pop, claim, pending, ack, nack, release, bury, extend: a consumer by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from qworker.cli.parameters import QUEUE
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
    metavar="DURATION",
    help="Time to settle them, 1s to 12h. [default: the queue's]",
)
_WAIT: Final = click.option(
    "--wait", default="0", metavar="DURATION", help="Wait so long for the first. [default: 0]"
)
_REAP: Final = click.option(
    "--reap", is_flag=True, help="Do a reaper's work on the queues first; there is no daemon."
)
_QUEUES: Final = click.argument("queues", type=QUEUE, nargs=-1, required=True, metavar="QUEUE...")
_RECEIPTS: Final = click.argument("receipts", nargs=-1, required=True, metavar="RECEIPT...")
_DELAY: Final = click.option(
    "--delay", default="0", metavar="DURATION", help="It comes back after so long. [default: 0]"
)
_ERROR: Final = click.option("--error", default="", metavar="TEXT", help="What went wrong.")


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
        wait=_duration(wait, "--wait"),
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
    found = first.pop(count, wait=_duration(wait, "--wait"), then=then, reap=reap)
    _print(found, as_json, with_receipts=False)


@click.command("claim", cls=Verb)
@click.argument("queue", type=QUEUE)
@click.option("--elapsed", required=True, metavar="DURATION", help="In hand for so long or longer.")
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
    found = place.claim(count, elapsed=_duration(elapsed, "--elapsed"), visibility=visibility)
    _print(found, as_json)


@click.command("pending", cls=Verb)
@click.argument("queue", type=QUEUE)
@click.option("--elapsed", default="0", metavar="DURATION", help="Only those in hand for so long.")
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
    from qworker.cli.messages import body_line, message_document

    found = session.queue(queue).pending(
        count, newest=newest, elapsed=_duration(elapsed, "--elapsed"), skip=skip
    )
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
                body_line(each.body),
            ]
            for each in found
        ],
    )


@click.command("ack", cls=Verb)
@click.argument("queue", type=QUEUE)
@_RECEIPTS
@json_option
@click.pass_obj
def ack(session: Session, queue: str, receipts: tuple[str, ...], as_json: bool) -> None:
    """Finish received messages. Prints the receipts that counted; exits with 1 if one was stale."""
    place = session.queue(queue)
    held = {str(each.receipt): each for each in _held(place, receipts)}
    counted = [str(each.receipt) for each in place.ack(*held.values())]
    _report(queue, receipts, counted, "acked", as_json)


@click.command("nack", cls=Verb)
@click.argument("queue", type=QUEUE)
@_RECEIPTS
@_DELAY
@_ERROR
@json_option
@click.pass_obj
def nack(
    session: Session,
    queue: str,
    receipts: tuple[str, ...],
    delay: str,
    error: str,
    as_json: bool,
) -> None:
    """Say that handling failed: counted, and dead at max receives. Exits with 1 if a receipt was stale."""
    place = session.queue(queue)
    wait = _duration(delay, "--delay")
    done = _settled(place, receipts, lambda message: place.nack(message, delay=wait, error=error))
    _report(queue, receipts, done, "nacked", as_json)


@click.command("release", cls=Verb)
@click.argument("queue", type=QUEUE)
@_RECEIPTS
@_DELAY
@json_option
@click.pass_obj
def release(
    session: Session, queue: str, receipts: tuple[str, ...], delay: str, as_json: bool
) -> None:
    """Give received messages back, uncounted. Exits with 1 if a receipt was stale."""
    place = session.queue(queue)
    wait = _duration(delay, "--delay")
    done = _settled(place, receipts, lambda message: place.release(message, delay=wait))
    _report(queue, receipts, done, "released", as_json)


@click.command("bury", cls=Verb)
@click.argument("queue", type=QUEUE)
@_RECEIPTS
@_ERROR
@json_option
@click.pass_obj
def bury(
    session: Session, queue: str, receipts: tuple[str, ...], error: str, as_json: bool
) -> None:
    """Move received messages to the dead letters. Exits with 1 if a receipt was stale."""
    place = session.queue(queue)
    done = _settled(place, receipts, lambda message: place.bury(message, error=error))
    _report(queue, receipts, done, "buried", as_json)


@click.command("extend", cls=Verb)
@click.argument("queue", type=QUEUE)
@click.argument("receipt")
@click.argument("visibility", metavar="DURATION")
@json_option
@click.pass_obj
def extend(session: Session, queue: str, receipt: str, visibility: str, as_json: bool) -> None:
    """Give a received message a new visibility timeout from now; 0 gives it back. Prints its new receipt."""
    place = session.queue(queue)
    message = place.extend(place.received(receipt), _duration(visibility, "DURATION"))
    if as_json:
        print_json(_document(message))
    else:
        print_line(str(message.receipt))


VERBS: Final = (receive, pop, claim, pending, ack, nack, release, bury, extend)


def _places(session: Session, names: Iterable[str]) -> list[Queue]:
    return [session.queue(name) for name in dict.fromkeys(names)]


def _duration(text: str, field: str) -> str:
    from qworker.config.kinds import DurationKind

    duration: str = DurationKind("", zero="none").parse(text, field)
    return duration


def _held(place: Queue, receipts: Sequence[str]) -> list[Message]:
    from qworker.client.message import Receipt
    from qworker.errors import StaleReceiptError

    held = []
    for each in [Receipt.parse(text) for text in dict.fromkeys(receipts)]:
        try:
            held.append(place.received(each))
        except StaleReceiptError:
            continue
    return held


def _settled(place: Queue, receipts: Sequence[str], settle: Callable[[Message], None]) -> list[str]:
    from qworker.errors import StaleReceiptError

    counted = []
    for message in _held(place, receipts):
        try:
            settle(message)
        except StaleReceiptError:
            continue
        counted.append(str(message.receipt))
    return counted


def _report(
    queue: str, receipts: Sequence[str], counted: Sequence[str], word: str, as_json: bool
) -> None:
    stale = [each for each in dict.fromkeys(receipts) if each not in counted]
    if as_json:
        print_json({"queue": queue, word: list(counted), "stale": stale})
    else:
        for each in counted:
            print_line(each)
    if stale:
        raise click.ClickException(
            f"{len(stale)} of {len(stale) + len(counted)} receipts are stale: {', '.join(stale[:3])}; "
            "their messages were settled before, or given to somebody else"
        )


def _print(messages: Sequence[Message], as_json: bool, *, with_receipts: bool = True) -> None:
    from qworker.cli.messages import body_line

    if as_json:
        print_json({"messages": [_document(each) for each in messages]})
        return
    if not messages:
        note("no message")
    for each in messages:
        start = f"{each.receipt}  " if with_receipts else ""
        print_line(f"{start}{each.id}  {body_line(each.body, full=True)}")


def _document(message: Message) -> dict[str, Any]:
    from qworker.cli.messages import body_document

    return {
        "id": message.id,
        "queue": message.queue,
        "receipt": str(message.receipt),
        "receive_count": message.receive_count,
        "nacks": message.nacks,
        "timeouts": message.timeouts,
        "sent_ms": message.sent_ms,
        "first_received_ms": message.first_received_ms,
        "received_ms": message.received_ms,
        "deadline_ms": message.deadline_ms,
        "size_bytes": len(message.body),
        **body_document(message.body),
    }
