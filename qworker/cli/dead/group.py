"""`qworker dead`: list, show, edit, redrive and drop dead letters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from qworker.cli.framework.commands import (
    CommandGroup,
    dry_run_option,
    json_option,
    stacked,
    yes_option,
)
from qworker.cli.framework.output import Block, Fields, Hint, Line, Note, Output, Table
from qworker.cli.framework.parameters import QUEUE, NumberRange, rate_option
from qworker.cli.framework.terminal import Cell, Column, note

if TYPE_CHECKING:
    from qworker.cli.dead.change_many import DeadLetterSelection
    from qworker.cli.dead.filter import Listing
    from qworker.cli.framework.context import Session
    from qworker.client.message import DeadLetter
    from qworker.client.queue import Queue

__all__ = ["command"]

_filters: Final = stacked(
    click.option("--reason", default="", metavar="WORD", help="Only this reason."),
    click.option("--error-class", default="", metavar="NAME", help="Only this exception class."),
    click.option("--error", default="", metavar="TEXT", help="Only errors that contain this."),
    click.option(
        "--fingerprint",
        default="",
        metavar="HEX",
        help="Only this kind of error, as --json and the dashboard name it.",
    ),
    click.option("--task", default="", metavar="NAME", help="Only calls of this task."),
    click.option("--older-than", metavar="DURATION", help="Only those that died longer ago."),
    click.option("--newer-than", metavar="DURATION", help="Only those that died more recently."),
    click.option(
        "--id",
        "ids",
        multiple=True,
        metavar="ID",
        help="Only this entry id or message id; repeatable.",
    ),
)
_changes: Final = stacked(
    _filters,
    click.option("--all", "everything", is_flag=True, help="All dead letters of the queue."),
    click.option("--limit", "-n", type=NumberRange(1), help="Maximum number, oldest first."),
    dry_run_option,
    yes_option,
    json_option,
)


@click.group(cls=CommandGroup)
def command() -> None:
    """List, show, edit, redrive and drop dead letters."""


@command.command("ls")
@click.argument("queue", type=QUEUE, required=False)
@_filters
@click.option(
    "--limit",
    "-n",
    type=NumberRange(1),
    default=20,
    help="Maximum number to list. [default: 20]",
)
@click.option("--newest", is_flag=True, help="Newest first.")
@json_option
@click.pass_obj
def list_dead(
    session: Session, /, queue: str | None, limit: int, newest: bool, **flags: Any
) -> Output:
    """List dead letters and their errors, oldest first.

    Without QUEUE, lists those of all queues.
    """
    from qworker.cli.dead.filter import Listing, dead_letter_document, filter_of, tally_document

    listing = Listing(filter_of(**flags), limit, newest)
    if queue is not None:
        listing.add(session.queues.get(queue))
    else:
        _add_all(session, listing)
    listing.finish()
    document = {
        "total": listing.matching.total,
        **tally_document(listing.matching),
        "dead_letters": [dead_letter_document(dead_letter) for dead_letter in listing.dead_letters],
    }
    return Output(document, _listing(session, listing, queue))


def _add_all(session: Session, listing: Listing) -> None:
    """Read the dead letters of all queues; those that cannot be read are named."""
    from qworker.client.per_shard import of_one_key
    from qworker.errors import BrokenQueueError, QworkerError

    inspections = session.queues.inspect(partial=True)
    unread = {name: f"cannot be read: {problem}" for name, problem in session.queues.unread.items()}
    for name, inspection in inspections.items():
        if isinstance(inspection, BrokenQueueError):
            # Any of its keys may be the broken one.
            unread[name] = f"is broken: {inspection}"
        elif not inspection.dead:
            continue
        try:
            listing.add(session.queues.get(name))
        except QworkerError as error:
            if not of_one_key(error):
                raise
            unread[name] = f"cannot be read: {error}"
    for name, problem in unread.items():
        note(f"warning: queue {name} {problem}")


def _listing(session: Session, listing: Listing, queue: str | None) -> Iterator[str | Block]:
    from qworker.cli.dead.filter import tally_lines
    from qworker.formats import count

    total, listed = listing.matching.total, listing.dead_letters
    if not total:
        matching = "" if listing.wanted.is_empty else "matching "
        yield Note(f"no {matching}dead letter in {queue or f'namespace {session.namespace!r}'}")
        return
    yield Fields(tally_lines(listing.matching))
    yield Line()
    yield _table(listed, session.now_ms(), with_queue=queue is None)
    yield Line()
    if total > len(listed):
        yield f"{count(len(listed))} of {count(total)} listed (--limit)"
    name = queue or listed[0].message.queue
    yield Hint("one in full     ", f"qworker dead show {name} {listed[0].entry_id}")
    redrive = f"qworker dead redrive {name} --all"
    yield Hint("after the fix   ", redrive, "(or filters; --dry-run previews)")
    yield Hint("or give up      ", f"qworker dead drop {name} --all")


def _table(dead_letters: list[DeadLetter], now_ms: int, *, with_queue: bool) -> Table:
    from qworker.cli.dead.filter import error_line
    from qworker.formats import ago, shortened

    columns = [*([Column("QUEUE")] if with_queue else []), Column("ENTRY"), Column("DIED")]
    columns += [Column("REASON"), Column("TASK", wide=True), Column("ERROR", wide=True)]
    rows: list[list[Cell | str]] = []
    for dead_letter in dead_letters:
        row: list[Cell | str] = [dead_letter.message.queue] if with_queue else []
        row += [dead_letter.entry_id, ago(dead_letter.died_ms, now_ms), dead_letter.reason]
        error = shortened(error_line(dead_letter), 100)
        rows.append([*row, dead_letter.message.task, error])
    return Table(columns, rows)


@command.command("show")
@click.argument("queue", type=QUEUE)
@click.argument("dead_letter_id", metavar="ID")
@json_option
@click.pass_obj
def show(session: Session, queue: str, dead_letter_id: str) -> Output:
    """Show one dead letter in full. ID is its entry id, or the id of its message."""
    from qworker.cli.dead.filter import dead_letter_document
    from qworker.cli.dead.show import dead_letter_text

    dead_letter = _find(session.queues.get(queue), dead_letter_id)
    text = dead_letter_text(queue, dead_letter, session.now_ms())
    return Output(dead_letter_document(dead_letter), text)


@command.command("edit")
@click.argument("queue", type=QUEUE)
@click.argument("dead_letter_id", metavar="ID")
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="PATH=JSON",
    help="Set a part of the body: args[0], kwargs.to, items[2].price; repeatable.",
)
@click.option("--body", metavar="JSON", help="The whole new body; - reads standard input.")
@click.option("--redrive", "and_redrive", is_flag=True, help="Redrive it at once.")
@dry_run_option
@json_option
@click.pass_obj
def edit(session: Session, /, queue: str, dead_letter_id: str, **flags: Any) -> Output:
    """Replace the body of a dead letter, which must be JSON: by --set, by --body, or in $EDITOR.

    Its message id, counts and error stay; it gets a new entry id. The change is atomic.
    """
    from qworker.cli.dead.edit import Edit, edit_dead_letter

    opened = session.queues.get(queue)
    return edit_dead_letter(opened, _find(opened, dead_letter_id), Edit(**flags))


def _find(queue: Queue, dead_letter_id: str) -> DeadLetter:
    dead_letters = queue.dead(1, ids=frozenset([dead_letter_id]))
    if not dead_letters:
        raise click.ClickException(
            f"queue {queue.name!r} has no dead letter {ascii(dead_letter_id)[:80]} "
            f"(qworker dead ls {queue.name})"
        )
    return dead_letters[0]


@command.command("redrive")
@click.argument("queue", type=QUEUE)
@rate_option
@_changes
@click.pass_obj
def redrive(session: Session, /, queue: str, rate: float | None, **flags: Any) -> Iterator[Output]:
    """Move dead letters back to ready, with fresh counts, except those that die during the command.

    Choose them by filters, all of which must match, or by --all. If the command is interrupted, run it again.
    """
    from qworker.cli.dead.change_many import Change, change_dead_letters
    from qworker.client.dead import pages

    change = Change("redrive", "redriven", "Redrive", pages.redrive)
    return change_dead_letters(session, session.queues.get(queue), change, _choice(flags, rate))


@command.command("drop")
@click.argument("queue", type=QUEUE)
@_changes
@click.pass_obj
def drop(session: Session, /, queue: str, **flags: Any) -> Iterator[Output]:
    """Permanently delete dead letters, chosen by filters, all of which must match, or by --all."""
    from qworker.cli.dead.change_many import Change, change_dead_letters
    from qworker.client.dead import pages

    change = Change("drop", "dropped", "Permanently drop", pages.drop)
    return change_dead_letters(session, session.queues.get(queue), change, _choice(flags))


def _choice(flags: dict[str, Any], rate_per_s: float | None = None) -> DeadLetterSelection:
    from qworker.cli.dead.change_many import DeadLetterSelection
    from qworker.cli.dead.filter import filter_of

    how = {name: flags.pop(name) for name in ("everything", "limit", "dry_run", "yes")}
    return DeadLetterSelection(wanted=filter_of(**flags), rate_per_s=rate_per_s, **how)
