"""`qworker message`: show and cancel; its other verbs are in `deliveries`, `settlements` and `moves`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import click

from qworker.cli import deliveries, moves, settlements
from qworker.cli.cancelling import stop_running
from qworker.cli.formats import word
from qworker.cli.parameters import QUEUE
from qworker.cli.screen import note, print_hint, print_json, print_line
from qworker.cli.verbs import Verbs, dry_run_option, json_option, yes_option
from qworker.errors import InvalidOptionError

if TYPE_CHECKING:
    from qworker.cli.session import Session
    from qworker.client.message import Receipt, Stored
    from qworker.client.queue import Queue

__all__ = ["command"]

#: Letters of ids and receipts.
_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}(?:/[0-9]{1,2})?")
_EFFECTS: Final = {
    "ready": "it is dropped when it is next met",
    "delayed": "it is dropped when it is due",
    "held": "it is dropped when it is enqueued and met",
    "unacked": "a handler has it now and is not stopped; it is dropped if it comes back",
}


@click.group(cls=Verbs)
def command() -> None:
    """Show, move, cancel or delete messages; receive and settle by hand."""


for _verb in (*deliveries.VERBS, *settlements.VERBS, *moves.VERBS):
    command.add_command(_verb)


def _queue_option(function: click.decorators.FC) -> click.decorators.FC:
    text = "Look in this queue only. [default: in all, one after the other]"
    return click.option("--queue", type=QUEUE, help=text)(function)


@command.command("show")
@click.argument("message_id", metavar="ID")
@_queue_option
@json_option
@click.pass_obj
def show(session: Session, message_id: str, queue: str | None, as_json: bool) -> None:
    """Show one message: state, times, counts, flags and body.

    ID is the id of the message, or its receipt while somebody has it (`top` shows receipts). An id is looked for in
    every state, which takes time in proportion to what the queues hold.
    """
    from qworker.cli.messages import details_document, message_document, print_message
    from qworker.client.picking import describe

    place, found = _find(session, message_id, queue)
    if as_json:
        details = session.client.run(describe(place.ref, found))
        print_json(message_document(found) | details_document(details))
        return
    print_message(found, session.now_ms())
    if found.state == "dead":
        print_line()
        print_hint("why it is dead: ", f"qworker dead show {found.queue} {word(found.id)}")


@command.command("cancel")
@click.argument("message_id", metavar="ID")
@_queue_option
@click.option("--running", is_flag=True, help="Stop its handler too, if that is async.")
@click.option("--kill", is_flag=True, help="Stop its handler, if need be by ending its process.")
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
    as_json: bool,
) -> None:
    """Cancel a message: it is dropped when it is next received. Remembered for 7 days.

    A handler that runs is stopped only with --running (async: its coroutine is cancelled) or --kill (sync: its process
    is ended, and what else ran in it starts again elsewhere). What is one of a batch is not stopped.
    """
    from qworker.cli.confirm import confirm

    place, found = _find(session, message_id, queue)
    if found.state == "dead":
        raise click.ClickException(
            f"message {found.id} of {found.queue} is a dead letter, which nobody receives; delete it "
            f"with qworker dead drop {found.queue} --id {word(found.id)}"
        )
    effect = _EFFECTS[found.state]
    if not dry_run:
        confirm(f"Cancel {found.state} message {found.id} of {found.queue}?", yes=yes)
        place.cancel(found.id)
    stopped = ""
    if not dry_run and (running or kill) and found.receipt is not None:
        stopped = stop_running(session, found, kill=kill)
        effect = f"{stopped}; it is dropped should it come back"
    if as_json:
        document = {"id": found.id, "queue": found.queue, "state": found.state}
        print_json({**document, "cancelled": not dry_run, "stopped": bool(stopped)})
    elif dry_run:
        print_line(f"would cancel {found.id} of {found.queue} ({found.state}); nothing was changed")
    else:
        print_line(f"cancelled {found.id} of {found.queue}: {effect}")


def _find(session: Session, message_id: str, queue: str | None) -> tuple[Queue, Stored]:
    from qworker.client.message import Receipt

    if _ID.fullmatch(message_id) is None:
        raise InvalidOptionError(
            "ID",
            f"{ascii(message_id)[:80]} is no message id",
            "it is what `qworker send` and `qworker queue peek` print, or a receipt",
        )
    receipt = Receipt.parse(message_id) if ":" in message_id else None
    for name in [queue] if queue is not None else _whole_queues(session):
        place = session.queue(name)
        found = _held(session, place, receipt) if receipt else place.show(message_id)
        if found is not None:
            return place, found
    where = f"queue {queue!r}" if queue else f"the queues of namespace {session.namespace!r}"
    raise click.ClickException(
        f"message {ascii(message_id)[:80]} was not seen in {where}: it is done, was dropped, or is on "
        "its way between two states; look again"
    )


def _whole_queues(session: Session) -> Iterator[str]:
    from qworker.errors import BrokenQueueError

    for name, found in session.inspect(session.queues()).items():
        if isinstance(found, BrokenQueueError):
            note(f"warning: queue {name} was left out: {found}")
        else:
            yield name


def _held(session: Session, place: Queue, receipt: Receipt) -> Stored | None:
    """Find the message of a receipt: in its lease, if that is still there."""
    from qworker.wire.leases import held_items
    from qworker.wire.numbers import score_ms

    shard = place.ref.shard_of(receipt.shard)
    held = held_items(session.ask("HGETALL", shard.keys.lease(receipt.lease_id)))
    item = dict(held).get(receipt.index.encode())
    deadline = session.ask("ZSCORE", shard.keys.unacked, receipt.lease_id)
    if item is None or deadline is None:
        return None
    return shard.stored("unacked", item, score_ms(deadline), receipt)
