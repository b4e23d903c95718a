"""`qworker message` ack, nack, release, bury, extend, working: settle messages that `receive` printed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from qworker.cli.framework.commands import VerbCommand, json_option, stacked
from qworker.cli.framework.output import Output
from qworker.cli.framework.parameters import DURATION, QUEUE

if TYPE_CHECKING:
    from qworker.cli.framework.context import Session
    from qworker.client.message import Message
    from qworker.client.queue import Queue

__all__ = ["VERBS"]

_Decorator = Callable[..., Any]
_QUEUE: Final = click.argument("queue", type=QUEUE)
_RECEIPTS: Final = click.argument("receipts", nargs=-1, required=True, metavar="RECEIPT...")
_RECEIPT: Final = click.argument("receipt")
_VISIBILITY: Final = click.argument("visibility", type=DURATION)
_DELAY: Final = click.option(
    "--delay", default="0", type=DURATION, help="Delay before it is ready again. [default: 0]"
)
_ERROR: Final = click.option("--error", default="", metavar="TEXT", help="Error to store with it.")


@dataclass(frozen=True, slots=True)
class _SettleVerb:
    """A method of `Queue` as a verb; `done` is its participle, or None if it renews the receipt of one message."""

    name: str
    done: str | None
    help: str
    parameters: tuple[_Decorator, ...]


_TABLE: Final = (
    _SettleVerb(
        "ack",
        "acked",
        "Ack received messages. Prints the receipts that counted; exits with 1 if one was stale.",
        (_RECEIPTS,),
    ),
    _SettleVerb(
        "nack",
        "nacked",
        "Report a failure: the message is retried, or dead at max receives. Exits with 1 if a receipt was stale.",
        (_RECEIPTS, _DELAY, _ERROR),
    ),
    _SettleVerb(
        "release",
        "released",
        "Return received messages, uncounted. Exits with 1 if a receipt was stale.",
        (_RECEIPTS, _DELAY),
    ),
    _SettleVerb(
        "bury",
        "buried",
        "Move received messages to the dead letters. Exits with 1 if a receipt was stale.",
        (_RECEIPTS, _ERROR),
    ),
    _SettleVerb(
        "extend",
        "extended",
        "Set a new visibility timeout for received messages, from now; 0 returns them. Prints their new receipts, in "
        "the same order; exits with 1 if a receipt was stale.",
        (_RECEIPTS, _VISIBILITY),
    ),
    _SettleVerb(
        "working",
        None,
        "Report progress on a received message: its visibility timeout starts again. Prints its new receipt.\n\n"
        "Refused once half of its time to live is over, so that other receivers get a turn.",
        (_RECEIPT,),
    ),
)


def _verb(settle: _SettleVerb) -> click.Command:
    run = _renew if settle.done is None else _extend if settle.name == "extend" else _settle

    @click.command(settle.name, cls=VerbCommand, help=settle.help)
    @stacked(_QUEUE, *settle.parameters)
    @json_option
    @click.pass_obj
    def verb(session: Session, /, queue: str, **given: Any) -> Iterator[Output]:
        return run(session.queues.get(queue), settle, **given)

    return verb


def _settle(
    queue: Queue, settle: _SettleVerb, receipts: Sequence[str], **options: str
) -> Iterator[Output]:
    from qworker.errors import StaleReceiptError

    asked = list(dict.fromkeys(receipts))
    try:
        messages = getattr(queue, settle.name)(*_held(queue, asked), **options)
    except StaleReceiptError:
        messages = []
    settled = [str(message.receipt) for message in messages]
    yield Output(
        {"queue": queue.name, settle.done: settled, "stale": _others(asked, settled)}, settled
    )
    _check_stale(asked, settled)


def _extend(
    queue: Queue, settle: _SettleVerb, receipts: Sequence[str], visibility: str
) -> Iterator[Output]:
    from qworker.cli.message.bodies import delivery_document

    asked = list(dict.fromkeys(receipts))
    held = _held(queue, asked)
    extended = queue.extend_all(held, visibility)
    receipt_of = {message.id: str(message.receipt) for message in held}
    renewed = [receipt_of[message.id] for message in extended]
    yield Output(
        {
            "queue": queue.name,
            settle.done: [delivery_document(message) for message in extended],
            "stale": _others(asked, renewed),
        },
        [str(message.receipt) for message in extended],
    )
    _check_stale(asked, renewed)


def _others(asked: Sequence[str], settled: Sequence[str]) -> list[str]:
    return [receipt for receipt in asked if receipt not in settled]


def _check_stale(asked: Sequence[str], settled: Sequence[str]) -> None:
    if stale := _others(asked, settled):
        raise click.ClickException(
            f"{len(stale)} of {len(asked)} receipts are stale: {', '.join(stale[:3])}; "
            "their messages were settled, or delivered again"
        )


def _held(queue: Queue, receipts: Sequence[str]) -> list[Message]:
    """Find the messages whose receipts are not stale."""
    from qworker.client.message import Receipt
    from qworker.errors import StaleReceiptError

    messages = []
    for receipt in list(map(Receipt.parse, receipts)):
        try:
            messages.append(queue.received(receipt))
        except StaleReceiptError:
            continue
    return messages


def _renew(queue: Queue, settle: _SettleVerb, receipt: str, **options: str) -> Iterator[Output]:
    from qworker.cli.message.bodies import delivery_document

    message = getattr(queue, settle.name)(queue.received(receipt), **options)
    yield Output(delivery_document(message), str(message.receipt))


VERBS: Final = tuple(map(_verb, _TABLE))
