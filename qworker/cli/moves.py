"""`qworker message` hold, enqueue, delete, scan: single messages, wherever they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from qworker.cli.parameters import QUEUE
from qworker.cli.screen import note, print_json, print_line
from qworker.cli.verbs import Verb, json_option, yes_option

if TYPE_CHECKING:
    from qworker.cli.session import Session

__all__ = ["VERBS"]

_IDS: Final = click.argument("message_ids", nargs=-1, required=True, metavar="ID...")
_STATES: Final = ("ready", "delayed", "held", "unacked", "dead")


@click.command("hold", cls=Verb)
@click.argument("queue", type=QUEUE)
@_IDS
@json_option
@click.pass_obj
def hold(session: Session, queue: str, message_ids: tuple[str, ...], as_json: bool) -> None:
    """Take ready or delayed messages out of the queue without losing them, until they are enqueued."""
    _report(queue, message_ids, session.queue(queue).hold(*message_ids), "held", as_json)


@click.command("enqueue", cls=Verb)
@click.argument("queue", type=QUEUE)
@_IDS
@json_option
@click.pass_obj
def enqueue(session: Session, queue: str, message_ids: tuple[str, ...], as_json: bool) -> None:
    """Put delayed or held messages to the tail of ready now."""
    _report(queue, message_ids, session.queue(queue).enqueue(*message_ids), "enqueued", as_json)


@click.command("delete", cls=Verb)
@click.argument("queue", type=QUEUE)
@_IDS
@yes_option
@json_option
@click.pass_obj
def delete(
    session: Session, queue: str, message_ids: tuple[str, ...], yes: bool, as_json: bool
) -> None:
    """Delete messages wherever they are, dead letters too.

    What somebody has in hand (unacked) is not stopped: it is dropped if it comes back.
    """
    from qworker.cli.confirm import confirm
    from qworker.cli.formats import count

    place = session.queue(queue)
    confirm(f"Delete {count(len(message_ids), 'message')} of {queue} for ever?", yes=yes)
    found = {each: place.delete(each) for each in dict.fromkeys(message_ids)}
    states = {each: stored.state for each, stored in found.items() if stored is not None}
    marked = [each for each, stored in found.items() if stored is not None and stored.marked]
    if marked and not as_json:
        note(
            f"note: {count(len(marked), 'message')} not gone yet, only marked: an ack ends them as ever, and they are "
            f"dropped if they come back ({', '.join(marked[:3])})"
        )
    _report(queue, message_ids, list(states), "deleted", as_json, states, {"marked": marked})


@click.command("scan", cls=Verb)
@click.argument("queue", type=QUEUE)
@click.option(
    "--state",
    "states",
    type=click.Choice(_STATES),
    multiple=True,
    help="Only these; repeatable. [default: all]",
)
@click.option("--reply", type=click.Choice(["all", "id"]), default="all", help="Whole, or ids.")
@click.option("--cursor", help="Go on here, and print one page only; 0 begins. [default: all]")
@click.option("--count", type=click.IntRange(1, 1000), default=100, help="About so many in a page.")
@json_option
@click.pass_obj
def scan(
    session: Session,
    queue: str,
    states: tuple[str, ...],
    reply: str,
    cursor: str | None,
    count: int,
    as_json: bool,
) -> None:
    """Go through the messages of a queue in pages; a JSON document each line with --json.

    What moves meanwhile may be seen twice; what stays is seen. With --cursor the next cursor stands at the end (in JSON
    as `cursor`), 0 after the last page.
    """
    from qworker.cli.messages import message_document, stored_line
    from qworker.client.scanning import END

    place = session.queue(queue)
    at = cursor or END
    while True:
        page = place.scan_page(at, *states, count=count)
        at = page.cursor
        if as_json:
            messages = [each.id if reply == "id" else message_document(each) for each in page.items]
            if messages or cursor is not None:
                print_json({"queue": queue, "cursor": at, "messages": messages})
        else:
            for each in page.items:
                name = each.id or each.kind.value
                whole = f"{name}  {each.state}  {stored_line(each)}"
                print_line(name if reply == "id" else whole)
        if at == END or cursor is not None:
            break
    if cursor is not None and not as_json:
        note(f"next: --cursor {at}" if at != END else "that was the last page")


VERBS: Final = (hold, enqueue, delete, scan)


def _report(
    queue: str,
    asked: tuple[str, ...],
    done: list[str],
    word: str,
    as_json: bool,
    states: dict[str, str] | None = None,
    more: dict[str, list[str]] | None = None,
) -> None:
    missed = [each for each in dict.fromkeys(asked) if each not in done]
    if as_json:
        found = {} if states is None else {"states": states}
        print_json({"queue": queue, word: done, "not_found": missed, **found, **(more or {})})
    else:
        for each in done:
            print_line(f"{each}  {states[each] if states else word}")
    if missed:
        raise click.ClickException(
            f"{len(missed)} of {len(missed) + len(done)} could not be {word}: {', '.join(missed[:3])}; "
            f"they are in another state, or gone (qworker message show ID --queue {queue})"
        )
