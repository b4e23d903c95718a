"""`qworker message` ack, nack, release, bury, extend, working: settling what was received by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import click

from qworker.cli.parameters import DURATION, QUEUE
from qworker.cli.screen import print_json, print_line
from qworker.cli.verbs import Verb, json_option

if TYPE_CHECKING:
    from qworker.cli.session import Session
    from qworker.client.message import Message
    from qworker.client.queue import Queue

__all__ = ["VERBS"]

_RECEIPTS: Final = click.argument("receipts", nargs=-1, required=True, metavar="RECEIPT...")
_DELAY: Final = click.option(
    "--delay", default="0", type=DURATION, help="It comes back after so long. [default: 0]"
)
_ERROR: Final = click.option("--error", default="", metavar="TEXT", help="What went wrong.")


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
    done = _settled(place, receipts, lambda held: place.nack(*held, delay=delay, error=error))
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
    done = _settled(place, receipts, lambda held: place.release(*held, delay=delay))
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
    done = _settled(place, receipts, lambda held: place.bury(*held, error=error))
    _report(queue, receipts, done, "buried", as_json)


@click.command("extend", cls=Verb)
@click.argument("queue", type=QUEUE)
@click.argument("receipt")
@click.argument("visibility", type=DURATION)
@json_option
@click.pass_obj
def extend(session: Session, queue: str, receipt: str, visibility: str, as_json: bool) -> None:
    """Give a received message a new visibility timeout from now; 0 gives it back. Prints its new receipt."""
    place = session.queue(queue)
    _print(place.extend(place.received(receipt), visibility), as_json)


@click.command("working", cls=Verb)
@click.argument("queue", type=QUEUE)
@click.argument("receipt")
@json_option
@click.pass_obj
def working(session: Session, queue: str, receipt: str, as_json: bool) -> None:
    """Say that a received message is still worked on: its visibility timeout begins anew. Prints its new receipt.

    Refused when half of its time to live is over, so that others have their turn.
    """
    place = session.queue(queue)
    _print(place.working(place.received(receipt)), as_json)


VERBS: Final = (ack, nack, release, bury, extend, working)


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


def _settled(
    place: Queue,
    receipts: Sequence[str],
    settle: Callable[[list[Message]], list[Message]],
) -> list[str]:
    from qworker.errors import StaleReceiptError

    try:
        return [str(each.receipt) for each in settle(_held(place, receipts))]
    except StaleReceiptError:
        return []


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


def _print(message: Message, as_json: bool) -> None:
    from qworker.cli.messages import delivery_document

    if as_json:
        print_json(delivery_document(message))
    else:
        print_line(str(message.receipt))
