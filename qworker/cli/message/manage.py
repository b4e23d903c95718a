"""`qworker message` hold, enqueue, delete, scan: single messages, in any state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from qworker.cli.framework.commands import VerbCommand, json_option, stacked, yes_option
from qworker.cli.framework.output import Note, Output
from qworker.cli.framework.paging import page_options, print_pages
from qworker.cli.framework.parameters import QUEUE
from qworker.wire.states import STATES

if TYPE_CHECKING:
    from qworker.cli.framework.context import Session
    from qworker.client.inspect.pages import Page
    from qworker.client.message import Stored

__all__ = ["VERBS"]

_queue_and_ids: Final = stacked(
    click.argument("queue", type=QUEUE),
    click.argument("message_ids", nargs=-1, required=True, metavar="ID..."),
)


@click.command("hold", cls=VerbCommand)
@_queue_and_ids
@json_option
@click.pass_obj
def hold(session: Session, queue: str, message_ids: tuple[str, ...]) -> Iterator[Output]:
    """Take ready or delayed messages out of the queue until they are enqueued."""
    held = session.queues.get(queue).hold(*message_ids)
    return _report(queue, message_ids, "held", dict.fromkeys(held, "held"))


@click.command("enqueue", cls=VerbCommand)
@_queue_and_ids
@json_option
@click.pass_obj
def enqueue(session: Session, queue: str, message_ids: tuple[str, ...]) -> Iterator[Output]:
    """Move delayed or held messages to the tail of ready."""
    enqueued = session.queues.get(queue).enqueue(*message_ids)
    return _report(queue, message_ids, "enqueued", dict.fromkeys(enqueued, "enqueued"))


@click.command("delete", cls=VerbCommand)
@_queue_and_ids
@yes_option
@json_option
@click.pass_obj
def delete(
    session: Session, queue: str, message_ids: tuple[str, ...], yes: bool
) -> Iterator[Output]:
    """Delete messages in any state, dead letters too.

    An unacked message is only marked: its handler finishes, and it is dropped if it is requeued.
    """
    from qworker.cli.framework.confirm import confirm
    from qworker.formats import count

    opened = session.queues.get(queue)
    confirm(f"Permanently delete {count(len(message_ids), 'message')} of {queue}?", yes=yes)
    results = {message_id: opened.delete(message_id) for message_id in dict.fromkeys(message_ids)}
    deleted = {message_id: stored for message_id, stored in results.items() if stored is not None}
    marked = [message_id for message_id, stored in deleted.items() if stored.marked]
    if marked:
        text = (
            f"note: {count(len(marked), 'unacked message')} only marked: an ack still ends them, and they are dropped "
            f"if they are requeued ({', '.join(marked[:3])})"
        )
        yield Output(text=Note(text))
    states = {message_id: stored.state for message_id, stored in deleted.items()}
    yield from _report(queue, message_ids, "deleted", states, {"states": states, "marked": marked})


@click.command("scan", cls=VerbCommand)
@click.argument("queue", type=QUEUE)
@click.option(
    "--state",
    "states",
    type=click.Choice(STATES),
    multiple=True,
    help="State of the messages; repeatable. [default: all]",
)
@click.option(
    "--reply",
    type=click.Choice(["all", "id"]),
    default="all",
    help="Whole messages, or ids. [default: all]",
)
@page_options
@json_option
@click.pass_obj
def scan(
    session: Session,
    queue: str,
    states: tuple[str, ...],
    reply: str,
    cursor: str | None,
    count: int,
) -> Iterator[Output]:
    """List the messages of a queue in pages; --json prints a document per page.

    A message that moves during the scan may be listed twice. With --cursor, the next cursor is printed last (in JSON as
    `cursor`); it is 0 after the last page. A key of the wrong type is reported and skipped; the exit code is then 1.
    """
    from qworker.cli.message.bodies import message_document, stored_line

    opened = session.queues.get(queue)

    def output(page: Page[Stored]) -> Output:
        documents: list[Any] = []
        lines = []
        for message in page.items:
            name = message.id or message.kind.value
            if reply == "id":
                documents.append(message.id)
                lines.append(name)
            else:
                documents.append(message_document(message))
                lines.append(f"{name}  {message.state}  {stored_line(message)}")
        if not (documents or page.unread) and cursor is None:
            return Output()
        unread = {"unread": [str(one) for one in page.unread]} if page.unread else {}
        document = {"queue": queue, "cursor": page.cursor, "messages": documents, **unread}
        return Output(document, lines)

    return print_pages(
        cursor, lambda position: opened.scan_page(position, *states, count=count), output
    )


VERBS: Final = (hold, enqueue, delete, scan)


def _report(
    queue: str,
    message_ids: Sequence[str],
    done: str,
    states: Mapping[str, str],
    more: Mapping[str, Any] | None = None,
) -> Iterator[Output]:
    """Report the messages that were `done`, each with its state, and raise for the others."""
    missed = [message_id for message_id in dict.fromkeys(message_ids) if message_id not in states]
    document = {"queue": queue, done: list(states), "not_found": missed, **(more or {})}
    yield Output(document, [f"{message_id}  {state}" for message_id, state in states.items()])
    if missed:
        raise click.ClickException(
            f"{len(missed)} of {len(missed) + len(states)} could not be {done}: {', '.join(missed[:3])}; "
            f"they are in another state, or gone (qworker message show ID --queue {queue})"
        )
