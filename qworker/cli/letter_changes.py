"""Changing many dead letters: count what is meant, ask, act page by page, tell what came of it.

Interrupted, it tells how far it came: what was done is done, the rest is as it was, and the same command goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from qworker.cli.confirm import confirm
from qworker.cli.formats import count, span
from qworker.cli.letters import check_filter, tally_document, tally_lines
from qworker.cli.progress import progress
from qworker.cli.screen import note, print_json, print_line
from qworker.client import letter_pages
from qworker.client.dead_filter import DeadFilter, DeadTally
from qworker.client.letter_pages import Act, Changed, Reading
from qworker.client.rate import Pace, rate_per_s

if TYPE_CHECKING:
    from qworker.cli.session import Session
    from qworker.client.queue import Queue
    from qworker.wire.keys import QueueKeys

__all__ = ["Change", "Choice", "change_letters"]


@dataclass(frozen=True, slots=True)
class Change:
    """What is done: its verb, the participle that tells it, and what the question adds."""

    verb: str
    done: str
    consequence: str
    act: Act


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which dead letters, and how: `limit` None is no limit, `rate` None as fast as it goes."""

    wanted: DeadFilter
    everything: bool
    limit: int | None
    dry_run: bool
    yes: bool
    as_json: bool
    rate: str | None = None


def change_letters(session: Session, place: Queue, change: Change, choice: Choice) -> None:
    """Change the dead letters of a queue that are meant; those that die meanwhile are left alone.

    Raises `UsageError` where neither a filter nor --all says which.
    """
    if choice.wanted.is_empty and not choice.everything:
        raise click.UsageError(f"say which dead letters to {change.verb}: by a filter, or --all")
    per_s = None if choice.rate is None else rate_per_s(choice.rate, "--rate")
    readings = [
        (shard.keys, session.client.run(Reading.begin(shard, choice.wanted)))
        for shard in session.client.run(place.ref.every_shard())
    ]
    meant = _count(session, [reading.again() for _, reading in readings], choice)
    if meant.total and not choice.as_json:
        for name, line in tally_lines(meant).items():
            note(f"{name}: {line}")
    letters = f"{count(meant.total, 'dead letter')} of {place.name}"
    lasting = f", in {span(meant.total / per_s)}" if per_s and meant.total >= per_s else ""
    course = _Course(change, place.name, meant.total)
    if not meant.total:
        text = f"no dead letter of {place.name} fits; nothing was changed"
    elif choice.dry_run:
        text = f"would {change.verb} {letters}{lasting}; nothing was changed"
    else:
        confirm(
            f"{change.verb.capitalize()} {letters}{lasting}{change.consequence}?", yes=choice.yes
        )
        course.run(session, readings, Pace(per_s), choice.limit)
        text = course.text
    if choice.as_json:
        document = {"queue": place.name, "matched": meant.total, **course.document}
        print_json({**document, "dry_run": choice.dry_run, **tally_document(meant)})
    else:
        print_line(text)


@dataclass(slots=True)
class _Course:
    """How far a change came."""

    change: Change
    queue: str
    total: int
    changed: Changed = field(default_factory=Changed)

    def run(
        self,
        session: Session,
        readings: Sequence[tuple[QueueKeys, Reading]],
        pace: Pace,
        limit: int | None,
    ) -> None:
        """Act on all that is read, with a progress bar."""
        title = f"{self.change.verb} {self.queue}"
        try:
            with progress(title, self.total) as advance:

                def told(some: Changed) -> None:
                    self.changed.add(some)
                    advance(some.total)

                for keys, reading in readings:
                    left = None if limit is None else limit - self.changed.total
                    plan = letter_pages.change(
                        keys, reading, self.change.act, pace=pace, limit=left, told=told
                    )
                    session.client.run(plan)
        except BaseException:
            note(f"interrupted: {self.text}, {count(self.total)} were meant; run it again to go on")
            raise

    @property
    def text(self) -> str:
        """What came of it, for people."""
        text = f"{self.change.done} {count(self.changed.done, 'dead letter')} of {self.queue}"
        if self.changed.gone:
            text += f"; {count(self.changed.gone)} had gone meanwhile"
        if self.changed.foreign:
            text += (
                f"; {count(self.changed.foreign)} stay, as no consumer can take them "
                f"(qworker dead drop {self.queue} --reason foreign)"
            )
        return text

    @property
    def document(self) -> dict[str, Any]:
        """What came of it, for programs."""
        return {
            self.change.done: self.changed.done,
            "foreign": self.changed.foreign,
            "gone": self.changed.gone,
        }


def _count(session: Session, readings: Iterable[Reading], choice: Choice) -> DeadTally:
    seen, meant = DeadTally(), DeadTally()
    for reading in readings:
        while not reading.ended:
            page = session.client.run(reading.page(seen))
            for letter in page[: None if choice.limit is None else choice.limit - meant.total]:
                meant.add(letter)
    if seen.total:
        check_filter(choice.wanted, seen)
    return meant
