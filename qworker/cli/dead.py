"""`qworker dead`: list, show, redrive and drop dead letters."""

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
    print_json,
    print_line,
    print_table,
)
from qworker.cli.verbs import Verbs, dry_run_option, json_option, yes_option

if TYPE_CHECKING:
    from qworker.cli.letter_changes import Choice
    from qworker.cli.letters import Filter, Tally
    from qworker.cli.session import Session
    from qworker.message import DeadLetter
    from qworker.queue import Queue

__all__ = ["command"]

_REASONS: Final = {
    "max_receives": "it failed as often as its max receives allows",
    "rejected": "its handler, or whoever received it, buried it",
    "unknown_task": "no worker knows the task that it names",
    "bad_arguments": "its arguments do not fit the task",
    "foreign": "it was not written by qworker, no consumer can take it",
    "unsupported": "it is of a format that the worker does not know",
    "corrupt": "its body cannot be read",
    "crashed": "the process that handled it died",
    "time_limit": "its handler ran past the time limit",
}
_FILTERS: Final = (
    click.option("--reason", default="", metavar="WORD", help="Only those that died of this."),
    click.option("--error-class", default="", metavar="NAME", help="Only those of this exception."),
    click.option("--task", default="", metavar="NAME", help="Only calls of this task."),
    click.option("--older-than", metavar="DURATION", help="Only those that died before that."),
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
    """List, show, redrive and drop dead letters."""


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
    from qworker.cli.letters import Listing, letter_document

    listing = Listing(_filter(flags), session.now_ms(), limit, newest)
    for place in [session.queue(queue)] if queue is not None else _queues_with_dead(session):
        listing.add(place)
    listing.finish()
    meant = listing.meant
    if as_json:
        letters = [letter_document(each) for each in listing.letters]
        print_json({**meant.document(), "dead_letters": letters})
        return
    if not meant.total:
        fitting = "" if listing.wanted.is_empty else " that fits"
        note(f"no dead letter{fitting} in {queue or f'namespace {session.namespace!r}'}")
        return
    print_fields(meant.lines())
    print_line()
    _print_letters(listing.letters, listing.now_ms, with_queue=queue is None)
    _print_next(meant, listing.letters, queue)


@command.command("show")
@click.argument("queue", type=QUEUE)
@click.argument("letter_id", metavar="ID")
@json_option
@click.pass_obj
def show_letter(session: Session, queue: str, letter_id: str, as_json: bool) -> None:
    """Show one dead letter in full. ID is its entry id, or the id of its message."""
    from qworker.cli.formats import moment_after
    from qworker.cli.letters import Filter, letter_document, matching
    from qworker.cli.messages import print_message

    now_ms = session.now_ms()
    wanted = Filter(ids=frozenset([letter_id]))
    for page in matching(session.queue(queue), wanted, now_ms):
        if page:
            letter = page[0]
            break
    else:
        raise click.ClickException(
            f"queue {queue!r} has no dead letter {ascii(letter_id)[:80]} (qworker dead ls {queue})"
        )
    if as_json:
        print_json(letter_document(letter))
        return
    meaning = _REASONS.get(letter.reason, "")
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
    print_line(f"after the fix   qworker dead redrive {queue} --id {letter.entry_id}")
    print_line(f"or give it up   qworker dead drop {queue} --id {letter.entry_id}")


@command.command("redrive")
@click.argument("queue", type=QUEUE)
@_changes
@click.pass_obj
def redrive(session: Session, /, queue: str, **flags: Any) -> None:
    """Put dead letters back to ready with fresh counts; those that die meanwhile are left alone.

    Say which: by filters (all that are given must fit), or --all.
    """
    from qworker.cli.letter_changes import Change, change_letters
    from qworker.commands.upkeep import redrive as redrive_some

    place = session.queue(queue)

    def put_back(entry_ids: list[str]) -> dict[str, int]:
        results = session.client.execute(redrive_some(place.keys, entry_ids))
        done, foreign = results.count(1), results.count(-1)
        return {"redriven": done, "foreign": foreign, "gone": len(results) - done - foreign}

    change = Change("redrive", "redriven", ", so that they are handled again", put_back)
    change_letters(session, place, change, _choice(flags))


@command.command("drop")
@click.argument("queue", type=QUEUE)
@_changes
@click.pass_obj
def drop(session: Session, /, queue: str, **flags: Any) -> None:
    """Delete dead letters for ever. Say which: by filters (all that are given must fit), or --all."""
    from qworker.cli.letter_changes import Change, change_letters

    place = session.queue(queue)

    def delete(entry_ids: list[str]) -> dict[str, int]:
        dropped = place.drop_dead(*entry_ids)
        return {"dropped": dropped, "gone": len(entry_ids) - dropped}

    change = Change("drop", "dropped", " for ever", delete)
    change_letters(session, place, change, _choice(flags))


def _filter(flags: dict[str, Any]) -> Filter:
    from qworker.cli.letters import Filter

    return Filter.of(**flags)


def _choice(flags: dict[str, Any]) -> Choice:
    from qworker.cli.letter_changes import Choice

    how = {name: flags.pop(name) for name in ("everything", "limit", "dry_run", "yes", "as_json")}
    return Choice(wanted=_filter(flags), **how)


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
    from qworker.cli.messages import task_of

    columns = [*([Column("QUEUE")] if with_queue else []), Column("ENTRY"), Column("DIED")]
    columns += [Column("REASON"), Column("TASK", wide=True), Column("ERROR", wide=True)]
    rows: list[list[Cell | str]] = []
    for each in letters:
        error = f"{each.error_class}: {each.error}" if each.error_class else each.error
        last_line = error.strip().rpartition("\n")[2]
        row: list[Cell | str] = [each.message.queue] if with_queue else []
        row += [each.entry_id, ago(each.died_ms, now_ms), each.reason]
        rows.append([*row, task_of(each.message), shortened(last_line, 100)])
    print_table(columns, rows)


def _print_next(meant: Tally, listed: list[DeadLetter], queue: str | None) -> None:
    from qworker.cli.formats import count

    name = queue or listed[0].message.queue
    print_line()
    if meant.total > len(listed):
        print_line(f"{count(len(listed))} of {count(meant.total)} are listed (--limit)")
    print_line(f"one in full     qworker dead show {name} {listed[0].entry_id}")
    print_line(
        f"after the fix   qworker dead redrive {name} --all   (or filters; --dry-run looks first)"
    )
    print_line(f"or give up      qworker dead drop {name} --all")
