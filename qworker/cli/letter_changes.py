"""Changing many dead letters: count what is meant, ask, act page by page, tell what came of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import click

from qworker.cli.confirm import confirm
from qworker.cli.formats import count
from qworker.cli.letters import Filter, Tally, matching
from qworker.cli.progress import progress
from qworker.cli.screen import note, print_json, print_line

if TYPE_CHECKING:
    from qworker.cli.session import Session
    from qworker.message import DeadLetter
    from qworker.queue import Queue

__all__ = ["Change", "Choice", "change_letters"]


@dataclass(frozen=True, slots=True)
class Change:
    """What is done: its verb, the participle that `act` counts under, and what the question adds.

    `act` takes up to 100 entry ids and says what became of them; "gone" counts those that were not there.
    """

    verb: str
    done: str
    consequence: str
    act: Callable[[list[str]], dict[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which dead letters, and how: `limit` None is no limit."""

    wanted: Filter
    everything: bool
    limit: int | None
    dry_run: bool
    yes: bool
    as_json: bool


def change_letters(session: Session, place: Queue, change: Change, choice: Choice) -> None:
    """Change the dead letters of a queue that are meant; those that die meanwhile are left alone.

    Raises `UsageError` where neither a filter nor --all says which.
    """
    if choice.wanted.is_empty and not choice.everything:
        raise click.UsageError(f"say which dead letters to {change.verb}: by a filter, or --all")
    now_ms, newest = session.now_ms(), place.dead(1, newest=True)
    until = newest[0].entry_id if newest else "0-0"
    pages = partial(matching, place, choice.wanted, now_ms, until=until)
    meant = _count(pages, choice)
    if not choice.as_json and (choice.dry_run or not choice.yes):
        for name, line in meant.lines().items():
            note(f"{name}: {line}")
    letters = f"{count(meant.total, 'dead letter')} of {place.name}"
    results: dict[str, int] = {}
    if not meant.total:
        text = f"no dead letter of {place.name} fits; nothing was changed"
    elif choice.dry_run:
        text = f"would {change.verb} {letters}; nothing was changed"
    else:
        confirm(f"{change.verb.capitalize()} {letters}{change.consequence}?", yes=choice.yes)
        results = _act(pages, change, meant.total, place.name)
        text = _told(place.name, change.done, results)
    if choice.as_json:
        document = {"queue": place.name, "matched": meant.total, change.done: 0}
        print_json({**document, **results, "dry_run": choice.dry_run})
    else:
        print_line(text)


def _count(pages: Callable[..., Iterator[list[DeadLetter]]], choice: Choice) -> Tally:
    all_of_them, meant = Tally(), Tally()
    for page in pages(tally=all_of_them):
        for letter in page[: None if choice.limit is None else choice.limit - meant.total]:
            meant.add(letter)
    if all_of_them.total:
        choice.wanted.check(all_of_them)
    return meant


def _act(
    pages: Callable[..., Iterator[list[DeadLetter]]], change: Change, total: int, queue: str
) -> dict[str, int]:
    results, left = {change.done: 0}, total
    with progress(f"{change.verb} {queue}", total) as advance:
        for page in pages():
            entries = [letter.entry_id for letter in page[:left]]
            left -= len(entries)
            for name, number in (change.act(entries) if entries else {}).items():
                results[name] = results.get(name, 0) + number
            advance(len(entries))
            if not left:
                break
    return results


def _told(queue: str, done: str, results: dict[str, int]) -> str:
    text = f"{done} {count(results[done], 'dead letter')} of {queue}"
    if results.get("gone"):
        text += f"; {count(results['gone'])} had gone meanwhile"
    if results.get("foreign"):
        text += (
            f"; {count(results['foreign'])} stay, as no consumer can take them "
            f"(qworker dead drop {queue} --reason foreign)"
        )
    return text
