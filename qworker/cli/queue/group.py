"""`qworker queue`: the group, and ls, show, peek."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

import click

from qworker.cli.framework.commands import CommandGroup, VerbCommand, json_option
from qworker.cli.framework.errors import FAILED
from qworker.cli.framework.output import Block, Heading, Note, Output, Table
from qworker.cli.framework.parameters import QUEUE, NumberRange
from qworker.cli.framework.terminal import Column
from qworker.cli.queue import attributes, pauses, remove, stats
from qworker.cli.queue.shards import shards
from qworker.wire.states import STATES

if TYPE_CHECKING:
    from qworker.cli.framework.context import Session
    from qworker.client.inspect.peek import Inspection
    from qworker.client.manage.limits import Limit
    from qworker.errors import BrokenQueueError

__all__ = ["command"]

_COLUMNS: Final = (
    Column("QUEUE"),
    Column("READY", number=True),
    Column("DELAYED", number=True),
    Column("UNACKED", number=True),
    Column("DEAD", number=True),
    Column("OLDEST", number=True),
    Column("STATE", wide=True),
)


@click.group(cls=CommandGroup)
def command() -> None:
    """List, show and change queues."""


@click.command("ls", cls=VerbCommand)
@json_option
@click.pass_obj
def list_queues(session: Session) -> Iterator[Output]:
    """List the queues with their sizes.

    OLDEST is the age of the oldest ready message. A queue is listed from its first send by qworker; one that only gets
    plain RPUSHes is listed when a reaper finds it. Exit code 1 if a node of a Cluster did not answer, or none has the
    slot of a queue: the other queues are listed.
    """
    from qworker.cli.queue.tables import queue_document
    from qworker.client.inspect.foreign_keys import foreign_of_queues

    session.waits_once = True
    queues = session.queues.inspect(partial=True)
    queues |= foreign_of_queues(session.client, session.namespace, queues, session.queues.shards)
    documents = [queue_document(name, queue) for name, queue in queues.items()]
    unread = session.queues.unread
    document = {"queues": documents, **({"unread": unread} if unread else {})}
    yield Output(document, _listing(session, queues))
    session.check_complete()
    if unread:
        raise click.exceptions.Exit(FAILED)


def _listing(
    session: Session, queues: Mapping[str, Inspection | BrokenQueueError]
) -> Iterator[Block]:
    from qworker.cli.queue.tables import queue_row
    from qworker.errors import BrokenQueueError

    if not queues:
        yield Note(session.queues.empty_hint())
        return
    yield Table(_COLUMNS, [queue_row(name, queue) for name, queue in queues.items()])
    for name, queue in queues.items():
        if isinstance(queue, BrokenQueueError):
            yield Note(f"{name} is broken: {queue}")
        else:
            for unread in queue.unread:
                yield Note(f"{name} is incomplete: {unread}")
    for name, problem in session.queues.unread.items():
        yield Note(f"{name} cannot be read: {problem}")


@click.command("show", cls=VerbCommand)
@click.argument("queue", type=QUEUE)
@click.option(
    "--over",
    default="1s",
    metavar="DURATION",
    help="Sampling interval for rates; 0 disables them. [default: 1s]",
)
@json_option
@click.pass_obj
def show(session: Session, queue: str, over: str) -> Output:
    """Show one queue: sizes by state and priority, ages, attributes, counters, rates."""
    import time

    session.waits_once = True

    from qworker.cli.limit.tables import limit_documents, limits_of
    from qworker.cli.queue.tables import queue_document
    from qworker.client.inspect.rates import rates_between
    from qworker.config.kinds import DurationKind
    from qworker.durations import duration_ms

    text = DurationKind("", maximum_ms=60_000, zero="none").parse(over, "--over")
    over_s = duration_ms(text, "--over") / 1000
    opened = session.queues.get(queue)
    first = opened.inspect()
    if over_s:
        time.sleep(over_s)
    inspection = opened.inspect() if over_s else first
    rates = rates_between(first, inspection)
    found = limits_of(session, queue)
    document = queue_document(queue, inspection, rates=rates, full=True)
    return Output(
        {**document, "limits": limit_documents(found)},
        _text(session, inspection, rates, found),
    )


def _text(
    session: Session,
    inspection: Inspection,
    rates: Mapping[str, float],
    limits: Mapping[str, tuple[Limit, list[str]]],
) -> Iterator[Block]:
    from qworker.cli.limit.tables import limit_table
    from qworker.cli.queue.tables import queue_text

    yield from queue_text(inspection, rates, session.workers())
    if limits:
        yield Heading("LIMITS")
        yield limit_table(limits)


@click.command("peek", cls=VerbCommand)
@click.argument("queue", type=QUEUE)
@click.option(
    "--state",
    type=click.Choice(STATES),
    default="ready",
    help="State of the messages. [default: ready]",
)
@click.option(
    "--count",
    "-n",
    type=NumberRange(-1000, 1000),
    default=10,
    help="Maximum number of messages; negative: from the other end. [default: 10]",
)
@click.option("--newest", is_flag=True, help="Newest first.")
@click.option(
    "--skip", type=NumberRange(0, 1_000_000), default=0, help="Number of messages to skip."
)
@click.option("--full", is_flag=True, help="Show whole bodies.")
@json_option
@click.pass_obj
def peek(
    session: Session, queue: str, state: str, count: int, newest: bool, skip: int, full: bool
) -> Output:
    """Show messages without receiving them, in delivery order."""
    from qworker.cli.message.bodies import message_document, message_table

    messages = session.queues.get(queue).peek(count, state=state, newest=newest, skip=skip)
    documents = [message_document(message) for message in messages]
    text = (
        message_table(messages, session.now_ms(), full=full)
        if messages
        else Note(f"{queue} has no {state} message")
    )
    return Output({"queue": queue, "state": state, "messages": documents}, text)


for _verb in (
    list_queues,
    show,
    *attributes.VERBS,
    peek,
    *pauses.VERBS,
    *remove.VERBS,
    *stats.VERBS,
    shards,
):
    command.add_command(_verb)
