"""`qworker message`: the group, and show and cancel."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from qworker.cli.framework.commands import (
    CommandGroup,
    dry_run_option,
    json_option,
    yes_option,
)
from qworker.cli.framework.output import Block, Hint, Line, Output
from qworker.cli.framework.parameters import queue_option
from qworker.cli.message import manage, receive, settle
from qworker.errors import InvalidOptionError
from qworker.formats import word

if TYPE_CHECKING:
    from qworker.cli.framework.context import Session
    from qworker.client.message import Stored
    from qworker.client.queue import Queue

__all__ = ["command"]

#: Characters of ids and receipts.
_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}(?:/[0-9]{1,2})?")
#: Ids that a group of calls may have.
_GROUP: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_ANSWERS: Final = {
    "cancelled": "cancelled {}: it will not run",
    "cancelling": "cancelling {}: its handler is asked to stop within 5 s; it will be dropped if it is requeued",
}


_queue_option: Final = queue_option("Search this queue only. [default: all queues]")


@click.group(cls=CommandGroup)
def command() -> None:
    """Show, move, cancel or delete messages; receive and settle them."""


for _verb in (*receive.VERBS, *settle.VERBS, *manage.VERBS):
    command.add_command(_verb)


@command.command("show")
@click.argument("message_id", metavar="ID")
@_queue_option
@json_option
@click.pass_obj
def show(session: Session, message_id: str, queue: str | None) -> Output:
    """Show one message: state, times, counts, flags and body.

    ID is the id of the message, or the receipt of its delivery (`top` shows receipts). Finding an id takes time in
    proportion to the size of the queues.
    """
    from qworker.cli.message.bodies import details_document, message_document
    from qworker.client.by_id import describe

    opened, message = _find(session, message_id, queue)

    def document() -> dict[str, Any]:
        details = session.client.run(describe(opened.ref, message))
        return message_document(message) | details_document(details)

    return Output(document, _text(session, message))


def _text(session: Session, message: Stored) -> Iterator[str | Block]:
    from qworker.cli.message.bodies import message_text

    yield from message_text(message, session.now_ms())
    if message.state == "dead":
        yield Line()
        yield Hint("why it is dead: ", f"qworker dead show {message.queue} {word(message.id)}")


@command.command("cancel")
@click.argument("message_id", metavar="ID")
@_queue_option
@click.option("--running", is_flag=True, help="Stop its handler now if it is async.")
@click.option("--kill", is_flag=True, help="Stop its handler now, ending its process if necessary.")
@dry_run_option
@yes_option
@json_option
@click.pass_obj
def cancel(
    session: Session,
    message_id: str,
    queue: str | None,
    running: bool,
    kill: bool,
    dry_run: bool,
    yes: bool,
) -> Output:
    """Cancel a message: delete it if it waits, ask its handler to stop if it runs.

    Its worker sees the cancel within 5 s. It cancels the coroutine of an async handler; a sync handler can check for
    the cancel. If the handler still runs after `qworker run --cancel-grace`, its process is ended, and other messages
    of that process start again elsewhere. --running and --kill do not wait. A message of a batch is not stopped. The
    cancel is remembered for 7 days.

    ID may also name a callback, or with --queue the last message of a chain, that is not sent yet: this cancels the
    calls before it.
    """
    from qworker.cli.framework.confirm import confirm

    found = _search(session, message_id, queue)
    if found is None and (ahead := _ahead(session, message_id, queue)) is not None:
        return _cancel_before(ahead, message_id, dry_run=dry_run, yes=yes)
    opened, message = found or _find(session, message_id, queue)
    name, state = f"{message.id} of {message.queue}", message.state
    if state == "dead":
        raise click.ClickException(
            f"message {name} is a dead letter; to delete it: "
            f"qworker dead drop {message.queue} --id {word(message.id)}"
        )
    stopped = answer = ""
    text = f"would cancel {name} ({state}); nothing was changed"
    if not dry_run:
        confirm(f"Cancel {state} message {name}?", yes=yes)
        answer = opened.cancel(message.id)
        if answer.too_late:
            raise click.ClickException(f"too late: message {name} has ended")
        text = _ANSWERS[answer].format(name)
        if (running or kill) and message.receipt is not None:
            stopped = _stop(session, opened, message, kill=kill)
            text = f"cancelled {name}: {stopped}; it will be dropped if it is requeued"
    document = {"id": message.id, "queue": message.queue, "state": state}
    return Output(
        {**document, "answer": answer, "cancelled": not dry_run, "stopped": bool(stopped)}, text
    )


def _stop(session: Session, queue: Queue, message: Stored, *, kill: bool) -> str:
    from qworker.monitor.stop import stop_handler

    stopped = stop_handler(session, queue.ref, message, kill=kill)
    if not stopped.done:
        raise click.ClickException(stopped.text)
    return stopped.text


def _ahead(session: Session, message_id: str, queue: str | None) -> Queue | None:
    """The queue of a message that is not sent yet: the callback of an open group, or the end of a chain."""
    from qworker.client.chain_search import ChainEnd

    found = _open_group(session, message_id, queue)
    if found is not None or queue is None:
        return found
    opened = session.queues.get(queue)
    return opened if ChainEnd.of(opened.ref, message_id) else None


def _open_group(session: Session, group_id: str, queue: str | None) -> Queue | None:
    """The queue of the callback of a group of calls that has not ended."""
    if _GROUP.fullmatch(group_id) is None:
        return None
    found = session.queues.find(queue, lambda opened: opened.call_group(group_id))
    return found[0] if found is not None and found[1].is_open else None


def _cancel_before(opened: Queue, message_id: str, *, dry_run: bool, yes: bool) -> Output:
    """Cancel the calls before a message that is not sent yet."""
    from qworker.cli.framework.confirm import confirm

    name, answer = f"{message_id} of {opened.name}", ""
    text = f"would cancel the calls before {name}; nothing was changed"
    if not dry_run:
        confirm(f"Cancel the calls before message {name}?", yes=yes)
        answer = opened.cancel(message_id)
        if answer.too_late:
            raise click.ClickException(
                f"message {name} not found, nor a call before it: it may have ended"
            )
        text = _ANSWERS[answer].format(name)
    document = {"id": message_id, "queue": opened.name, "state": None, "answer": answer}
    return Output({**document, "cancelled": not dry_run, "stopped": False}, text)


def _search(session: Session, message_id: str, queue: str | None) -> tuple[Queue, Stored] | None:
    from qworker.client.inspect.peek import delivered
    from qworker.client.message import Receipt

    if _ID.fullmatch(message_id) is None:
        raise InvalidOptionError(
            "ID",
            f"{ascii(message_id)[:80]} is not a message id",
            "pass an id as `qworker send` and `qworker queue peek` print it, or a receipt",
        )
    receipt = Receipt.parse(message_id) if ":" in message_id else None
    return session.queues.find(
        queue,
        lambda opened: (
            session.client.run(delivered(opened.ref, receipt))
            if receipt
            else opened.show(message_id)
        ),
    )


def _find(session: Session, message_id: str, queue: str | None) -> tuple[Queue, Stored]:
    found = _search(session, message_id, queue)
    if found is not None:
        return found
    receipt = ":" in message_id
    ended = (
        None if receipt else session.queues.find(queue, lambda opened: opened.outcome(message_id))
    )
    if ended is not None:
        name = ended[0].name
        raise click.ClickException(
            f"message {message_id} of {name} has ended; its result: qworker result show {name} {word(message_id)}"
        )
    group = _open_group(session, message_id, queue)
    if group is not None:
        raise click.ClickException(
            f"message {message_id} of {group.name} is not sent yet: it follows a group of calls, see "
            f"qworker calls show {word(message_id)}"
        )
    raise click.ClickException(
        f"message {ascii(message_id)[:80]} not found in {session.queues.scope(queue)}: it may be done, or was moving "
        "between states; try again"
    )
