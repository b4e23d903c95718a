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
_PAGE: Final = 100
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
    from qworker.cli.letters import Tally, letter_document

    wanted, now_ms = _filter(flags), session.now_ms()
    listed: list[DeadLetter] = []
    tally = Tally()
    places = [session.queue(queue)] if queue is not None else _queues_with_dead(session)
    for place in places:
        _collect(place, wanted, now_ms, tally, listed, limit, newest=newest)
    listed = sorted(listed, key=lambda each: each.died_ms, reverse=newest)[:limit]
    if as_json:
        groups = tally.document()
        print_json({**groups, "dead_letters": [letter_document(each) for each in listed]})
        return
    if not tally.total:
        fitting = "" if wanted.is_empty else " that fits"
        note(f"no dead letter{fitting} in {queue or f'namespace {session.namespace!r}'}")
        return
    print_fields(tally.lines())
    print_line()
    _print_letters(listed, now_ms, with_queue=queue is None)
    _print_next(tally, listed, queue, limit)


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
@_filters
@click.option("--all", "everything", is_flag=True, help="All dead letters of the queue.")
@click.option("--limit", "-n", type=click.IntRange(1), help="At most so many, the oldest first.")
@dry_run_option
@yes_option
@json_option
@click.pass_obj
def redrive(session: Session, /, queue: str, **flags: Any) -> None:
    """Put dead letters back to ready with fresh counts; those that die meanwhile are left alone.

    Say which: by filters (all that are given must fit), or --all.
    """
    from qworker.commands.upkeep import redrive as redrive_some

    def put_back(place: Queue, entry_ids: list[str]) -> dict[str, int]:
        results = session.client.execute(redrive_some(place.keys, entry_ids))
        done, foreign = results.count(1), results.count(-1)
        return {"redriven": done, "foreign": foreign, "gone": len(results) - done - foreign}

    _change(session, queue, "redrive", put_back, flags)


@command.command("drop")
@click.argument("queue", type=QUEUE)
@_filters
@click.option("--all", "everything", is_flag=True, help="All dead letters of the queue.")
@click.option("--limit", "-n", type=click.IntRange(1), help="At most so many, the oldest first.")
@dry_run_option
@yes_option
@json_option
@click.pass_obj
def drop(session: Session, /, queue: str, **flags: Any) -> None:
    """Delete dead letters for ever. Say which: by filters (all that are given must fit), or --all."""

    def delete(place: Queue, entry_ids: list[str]) -> dict[str, int]:
        dropped = place.drop_dead(*entry_ids)
        return {"dropped": dropped, "gone": len(entry_ids) - dropped}

    _change(session, queue, "drop", delete, flags)


def _change(
    session: Session,
    queue: str,
    verb: str,
    act: Callable[[Queue, list[str]], dict[str, int]],
    flags: dict[str, Any],
) -> None:
    """Count what is meant, ask, and act on it page by page."""
    from qworker.cli.confirm import confirm
    from qworker.cli.formats import count
    from qworker.cli.letters import Tally, matching
    from qworker.cli.progress import progress

    everything, limit = flags.pop("everything"), flags.pop("limit")
    dry_run, yes, as_json = flags.pop("dry_run"), flags.pop("yes"), flags.pop("as_json")
    wanted, place, now_ms = _filter(flags), session.queue(queue), session.now_ms()
    if wanted.is_empty and not everything:
        raise click.UsageError(f"say which dead letters to {verb}: by a filter, or --all")
    newest = place.dead(1, newest=True)
    until = newest[0].entry_id if newest else "0-0"
    all_of_them, meant = Tally(), Tally()
    for page in matching(place, wanted, now_ms, until=until, tally=all_of_them):
        for letter in page[: None if limit is None else limit - meant.total]:
            meant.add(letter)
    if all_of_them.total:
        wanted.check(all_of_them)
    letters = count(meant.total, "dead letter")
    if not as_json and (dry_run or not yes):
        for name, line in meant.lines().items():
            note(f"{name}: {line}")
    if dry_run or not meant.total:
        text = f"would {verb} {letters} of {queue}; nothing was changed"
        if not meant.total:
            text = f"no dead letter of {queue} fits; nothing was changed"
        _report(queue, meant, {}, as_json, text)
        return
    confirm(f"{verb.capitalize()} {letters} of {queue}{_CONSEQUENCES[verb]}?", yes=yes)
    results: dict[str, int] = {}
    left = meant.total
    with progress(f"{verb} {queue}", meant.total) as advance:
        for page in matching(place, wanted, now_ms, until=until):
            entries = [letter.entry_id for letter in page[:left]]
            left -= len(entries)
            for first in range(0, len(entries), _PAGE):
                chunk = entries[first : first + _PAGE]
                for name, number in act(place, chunk).items():
                    results[name] = results.get(name, 0) + number
                advance(len(chunk))
            if not left:
                break
    _report(queue, meant, results, as_json, _told(queue, verb, results))


_CONSEQUENCES: Final = {"redrive": ", so that they are handled again", "drop": " for ever"}
_DONE: Final = {"redrive": "redriven", "drop": "dropped"}


def _told(queue: str, verb: str, results: dict[str, int]) -> str:
    from qworker.cli.formats import count

    done = _DONE[verb]
    text = f"{done} {count(results.get(done, 0), 'dead letter')} of {queue}"
    if results.get("gone"):
        text += f"; {count(results['gone'])} had gone meanwhile"
    if results.get("foreign"):
        text += (
            f"; {count(results['foreign'])} stay, as no consumer can take them "
            f"(qworker dead drop {queue} --reason foreign)"
        )
    return text


def _report(queue: str, meant: Tally, results: dict[str, int], as_json: bool, text: str) -> None:
    if as_json:
        print_json({"queue": queue, "matched": meant.total, **results, "dry_run": not results})
    else:
        print_line(text)


def _filter(flags: dict[str, Any]) -> Filter:
    from qworker.cli.letters import Filter

    return Filter.of(**flags)


def _queues_with_dead(session: Session) -> list[Queue]:
    from qworker.errors import BrokenQueueError

    places = []
    for name, found in session.inspect(session.queues()).items():
        if isinstance(found, BrokenQueueError):
            note(f"warning: queue {name} was left out: {found}")
        elif found.dead:
            places.append(session.queue(name))
    return places


def _collect(
    place: Queue,
    wanted: Filter,
    now_ms: int,
    tally: Tally,
    listed: list[DeadLetter],
    limit: int,
    *,
    newest: bool,
) -> None:
    """Count the letters of one queue that fit, and keep the first or last `limit` of them."""
    from qworker.cli.letters import Tally, matching

    all_of_them = Tally()
    kept: list[DeadLetter] = []
    for page in matching(place, wanted, now_ms, tally=all_of_them):
        for letter in page:
            tally.add(letter)
        kept = (kept + page)[-limit:] if newest else (kept + page)[:limit]
    if all_of_them.total:
        wanted.check(all_of_them)
    listed += kept


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


def _print_next(tally: Tally, listed: list[DeadLetter], queue: str | None, limit: int) -> None:
    from qworker.cli.formats import count

    name = queue or listed[0].message.queue
    print_line()
    if tally.total > len(listed):
        print_line(f"{count(len(listed))} of {count(tally.total)} are listed (--limit)")
    print_line(f"one in full     qworker dead show {name} {listed[0].entry_id}")
    print_line(
        f"after the fix   qworker dead redrive {name} --all   (or filters; --dry-run looks first)"
    )
    print_line(f"or give up      qworker dead drop {name} --all")
