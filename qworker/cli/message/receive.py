"""`qworker message` receive, pop, claim, pending: receive messages without a worker."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from qworker.cli.framework.commands import VerbCommand, json_option
from qworker.cli.framework.output import Note, Output, Table
from qworker.cli.framework.parameters import DURATION, QUEUE, NumberRange
from qworker.cli.framework.terminal import Column

if TYPE_CHECKING:
    from qworker.cli.framework.context import Session
    from qworker.client.message import Message
    from qworker.client.queue import Queue

__all__ = ["VERBS"]

_ELAPSED: Final = "Minimum time since the last delivery or extension."
_COUNT: Final = click.option(
    "--count",
    "-n",
    type=NumberRange(1, 1000),
    default=1,
    help="Maximum number of messages. [default: 1]",
)
_VISIBILITY: Final = click.option(
    "--visibility",
    type=DURATION,
    help="Time to settle them, 1s to 12h. [default: the queue's]",
)
_WAIT: Final = click.option(
    "--wait", default="0", type=DURATION, help="Time to wait for the first message. [default: 0]"
)
_REAP: Final = click.option(
    "--reap", is_flag=True, help="Reap the queues first, for use without a daemon."
)
_QUEUES: Final = click.argument("queues", type=QUEUE, nargs=-1, required=True, metavar="QUEUE...")
_PENDING: Final = (
    Column("RECEIPT"),
    Column("ID"),
    Column("DELIVERED"),
    Column("ELAPSED", number=True),
    Column("DELIVERIES", number=True),
    Column("BODY", wide=True),
)


@click.command("receive", cls=VerbCommand)
@_QUEUES
@_COUNT
@_WAIT
@_VISIBILITY
@_REAP
@json_option
@click.pass_obj
def receive(session: Session, /, queues: tuple[str, ...], **options: Any) -> Output:
    """Receive messages, from the queues left to right. Each has a receipt to settle it by.

    A message that is not settled within its visibility timeout is requeued.
    """
    first, *others = _open(session, queues)
    return _output(first.receive(then=others, **options))


@click.command("pop", cls=VerbCommand)
@_QUEUES
@_COUNT
@_WAIT
@_REAP
@json_option
@click.pass_obj
def pop(session: Session, /, queues: tuple[str, ...], **options: Any) -> Output:
    """Receive messages and ack them at once: if the output is lost, so are they."""
    first, *others = _open(session, queues)
    return _output(first.pop(then=others, **options), with_receipts=False)


@click.command("claim", cls=VerbCommand)
@click.argument("queue", type=QUEUE)
@click.option("--elapsed", required=True, type=DURATION, help=_ELAPSED)
@_COUNT
@_VISIBILITY
@json_option
@click.pass_obj
def claim(session: Session, /, queue: str, **options: Any) -> Output:
    """Take over messages from receivers that went silent, before their visibility timeout ends.

    The old delivery counts as timed out, and its receipt becomes stale.
    """
    return _output(session.queues.get(queue).claim(**options))


@click.command("pending", cls=VerbCommand)
@click.argument("queue", type=QUEUE)
@click.option("--elapsed", default="0", type=DURATION, help=_ELAPSED)
@click.option(
    "--count",
    "-n",
    type=NumberRange(1, 1000),
    default=10,
    help="Maximum number of messages. [default: 10]",
)
@click.option(
    "--skip", type=NumberRange(0, 1_000_000), default=0, help="Number of messages to skip."
)
@click.option("--newest", is_flag=True, help="Latest deadline first.")
@json_option
@click.pass_obj
def pending(session: Session, /, queue: str, **options: Any) -> Output:
    """List unacked messages: when each was last delivered or extended, and how often it was delivered."""
    from qworker.cli.message.bodies import message_document, stored_line
    from qworker.formats import moment, span

    messages = session.queues.get(queue).pending(**options)
    documents = [
        {
            **message_document(message.stored),
            "deliveries": message.deliveries,
            "delivered_ms": message.delivered_ms,
            "elapsed_seconds": message.elapsed_ms / 1000,
        }
        for message in messages
    ]
    rows = [
        [
            str(message.receipt),
            message.id,
            moment(message.delivered_ms),
            span(message.elapsed_ms / 1000),
            str(message.deliveries),
            stored_line(message.stored),
        ]
        for message in messages
    ]
    table = Table(_PENDING, rows, f"{queue} has no such unacked message")
    return Output({"queue": queue, "messages": documents}, table)


VERBS: Final = (receive, pop, claim, pending)


def _open(session: Session, names: Iterable[str]) -> list[Queue]:
    return [session.queues.get(name) for name in dict.fromkeys(names)]


def _output(messages: Sequence[Message], *, with_receipts: bool = True) -> Output:
    from qworker.cli.message.bodies import body_line, delivery_document

    lines = []
    for message in messages:
        receipt = [str(message.receipt)] if with_receipts else []
        lines.append("  ".join([*receipt, message.id, body_line(message.body, full=True)]))
    documents = [delivery_document(message) for message in messages]
    return Output({"messages": documents}, lines or Note("no message"))
