"""`qworker dead`: list, show, edit, redrive and drop dead letters."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from qworker.cli.parameters import QUEUE
from qworker.cli.screen import (
    Cell,
    Column,
    note,
    print_fields,
    print_heading,
    print_hint,
    print_json,
    print_line,
    print_table,
)
from qworker.cli.verbs import Verbs, dry_run_option, json_option, yes_option

if TYPE_CHECKING:
    from qworker.cli.letter_changes import Choice
    from qworker.cli.session import Session
    from qworker.client.dead_filter import DeadFilter, DeadTally
    from qworker.client.message import DeadLetter
    from qworker.client.queue import Queue

__all__ = ["command"]

_FILTERS: Final = (
    click.option("--reason", default="", metavar="WORD", help="Only those that died of this."),
    click.option("--error-class", default="", metavar="NAME", help="Only those of this exception."),
    click.option("--error", default="", metavar="TEXT", help="Only those whose error has this."),
    click.option("--task", default="", metavar="NAME", help="Only calls of this task."),
    click.option("--older-than", metavar="DURATION", help="Only those that died before that."),
    click.option("--newer-than", metavar="DURATION", help="Only those that died since then."),
    click.option(
        "--id", "ids", multiple=True, metavar="ID", help="Only this entry or message; repeatable."
    ),
)


def _filters(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_FILTERS):
        function = option(function)
    return function


def _changes(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        json_option,
        yes_option,
        dry_run_option,
        click.option(
            "--limit", "-n", type=click.IntRange(1), help="At most so many, the oldest first."
        ),
        click.option("--all", "everything", is_flag=True, help="All dead letters of the queue."),
    ):
        function = option(function)
    return _filters(function)


@click.group(cls=Verbs)
def command() -> None:
    """List, show, edit, redrive and drop dead letters."""


@command.command("ls")
@click.argument("queue", type=QUEUE, required=False)
@_filters
@click.option(
    "--limit", "-n", type=click.IntRange(1), default=20, help="List at most so many. [default: 20]"
)
@click.option("--newest", is_flag=True, help="The latest deaths first.")
@json_option
@click.pass_obj
def list_letters(
    session: Session, /, queue: str | None, limit: int, newest: bool, as_json: bool, **flags: Any
) -> None:
    """List dead letters, the oldest first, and what they died of.

    Without QUEUE: of all queues.
    """
    from qworker.cli.letters import Listing, letter_document, tally_document, tally_lines

    listing = Listing(_filter(flags), limit, newest)
    for place in [session.queue(queue)] if queue is not None else _queues_with_dead(session):
        listing.add(place)
    listing.finish()
    meant = listing.meant
    if as_json:
        letters = [letter_document(each) for each in listing.letters]
        print_json({"total": meant.total, **tally_document(meant), "dead_letters": letters})
        return
    if not meant.total:
        fitting = "" if listing.wanted.is_empty else " that fits"
        note(f"no dead letter{fitting} in {queue or f'namespace {session.namespace!r}'}")
        return
    print_fields(tally_lines(meant))
    print_line()
    _print_letters(listing.letters, session.now_ms(), with_queue=queue is None)
    _print_next(meant, listing.letters, queue)


@command.command("show")
@click.argument("queue", type=QUEUE)
@click.argument("letter_id", metavar="ID")
@json_option
@click.pass_obj
def show_letter(session: Session, queue: str, letter_id: str, as_json: bool) -> None:
    """Show one dead letter in full. ID is its entry id, or the id of its message."""
    from qworker.cli.formats import moment_after
    from qworker.cli.letters import letter_document
    from qworker.cli.messages import print_message

    now_ms, letter = session.now_ms(), _letter(session.queue(queue), letter_id)
    if as_json:
        print_json(letter_document(letter))
        return
    from qworker.wire.reasons import DEATH_REASONS

    meaning = DEATH_REASONS.get(letter.reason, "")
    print_fields(
        {
            "entry": letter.entry_id,
            "died": moment_after(letter.died_ms, now_ms),
            "reason": Cell(f"{letter.reason}: {meaning}" if meaning else letter.reason, "bad"),
            **({"error class": letter.error_class} if letter.error_class else {}),
        }
    )
    if letter.error:
        print_heading("ERROR")
        for line in letter.error.split("\n"):
            print_line(line)
    print_heading("MESSAGE")
    print_message(letter.message, now_ms)
    print_heading("WHAT TO DO")
    print_hint("after the fix   ", f"qworker dead redrive {queue} --id {letter.entry_id}")
    print_hint("with a change   ", f"qworker dead edit {queue} {letter.entry_id} --redrive")
    print_hint("or give it up   ", f"qworker dead drop {queue} --id {letter.entry_id}")


@command.command("edit")
@click.argument("queue", type=QUEUE)
@click.argument("letter_id", metavar="ID")
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="PATH=JSON",
    help="Set this part of the body: args[0], kwargs.to, items[2].price; repeatable.",
)
@click.option("--body", metavar="JSON", help="The whole new body; - reads it from a pipe.")
@click.option("--redrive", "and_redrive", is_flag=True, help="Put it back to ready at once.")
@dry_run_option
@json_option
@click.pass_obj
def edit(session: Session, /, queue: str, letter_id: str, **flags: Any) -> None:
    """Give a dead letter another body, which must be JSON: by --set, by --body, or in $EDITOR.

    Its id, counts and error stay. The new entry is written before the old one goes, in one step; it has a new entry id.
    """
    from qworker.cli.letter_edit import Edit, edit_letter

    place = session.queue(queue)
    edit_letter(place, _letter(place, letter_id), Edit(**flags))


@command.command("redrive")
@click.argument("queue", type=QUEUE)
@click.option("--rate", metavar="RATE", help="At most so many: 100/s, 50/m, 1000/h.")
@_changes
@click.pass_obj
def redrive(session: Session, /, queue: str, rate: str | None, **flags: Any) -> None:
    """Put dead letters back to ready with fresh counts; those that die meanwhile are left alone.

    Say which: by filters (all that are given must fit), or --all. Interrupted, the same command goes on.
    """
    from qworker.cli.letter_changes import Change, change_letters
    from qworker.client import letter_pages

    change = Change("redrive", "redriven", ", so that they are handled again", letter_pages.redrive)
    change_letters(session, session.queue(queue), change, _choice(flags, rate))


@command.command("drop")
@click.argument("queue", type=QUEUE)
@_changes
@click.pass_obj
def drop(session: Session, /, queue: str, **flags: Any) -> None:
    """Delete dead letters for ever. Say which: by filters (all that are given must fit), or --all."""
    from qworker.cli.letter_changes import Change, change_letters
    from qworker.client import letter_pages

    change = Change("drop", "dropped", " for ever", letter_pages.drop)
    change_letters(session, session.queue(queue), change, _choice(flags))


def _filter(flags: dict[str, Any]) -> DeadFilter:
    from qworker.cli.letters import filter_of

    return filter_of(**flags)


def _choice(flags: dict[str, Any], rate: str | None = None) -> Choice:
    from qworker.cli.letter_changes import Choice

    how = {name: flags.pop(name) for name in ("everything", "limit", "dry_run", "yes", "as_json")}
    return Choice(wanted=_filter(flags), rate=rate, **how)


def _letter(place: Queue, letter_id: str) -> DeadLetter:
    found = place.dead(1, ids=frozenset([letter_id]))
    if not found:
        raise click.ClickException(
            f"queue {place.name!r} has no dead letter {ascii(letter_id)[:80]} "
            f"(qworker dead ls {place.name})"
        )
    return found[0]


def _queues_with_dead(session: Session) -> list[Queue]:
    from qworker.errors import BrokenQueueError

    places = []
    for name, found in session.inspect(session.queues()).items():
        if isinstance(found, BrokenQueueError):
            note(f"warning: queue {name} was left out: {found}")
        elif found.dead:
            places.append(session.queue(name))
    return places


def _print_letters(letters: list[DeadLetter], now_ms: int, *, with_queue: bool) -> None:
    from qworker.cli.formats import ago, shortened
    from qworker.cli.letters import telling_line

    columns = [*([Column("QUEUE")] if with_queue else []), Column("ENTRY"), Column("DIED")]
    columns += [Column("REASON"), Column("TASK", wide=True), Column("ERROR", wide=True)]
    rows: list[list[Cell | str]] = []
    for each in letters:
        row: list[Cell | str] = [each.message.queue] if with_queue else []
        row += [each.entry_id, ago(each.died_ms, now_ms), each.reason]
        rows.append([*row, each.message.task, shortened(telling_line(each), 100)])
    print_table(columns, rows)


def _print_next(meant: DeadTally, listed: list[DeadLetter], queue: str | None) -> None:
    from qworker.cli.formats import count

    name = queue or listed[0].message.queue
    print_line()
    if meant.total > len(listed):
        print_line(f"{count(len(listed))} of {count(meant.total)} are listed (--limit)")
    print_hint("one in full     ", f"qworker dead show {name} {listed[0].entry_id}")
    print_hint(
        "after the fix   ",
        f"qworker dead redrive {name} --all",
        "(or filters; --dry-run looks first)",
    )
    print_hint("or give up      ", f"qworker dead drop {name} --all")
