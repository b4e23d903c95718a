"""Change many dead letters: count those that fit, ask, change them page by page, and report.

If interrupted it reports its progress: the rest is unchanged, and the same command continues with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from qworker.cli.dead.filter import check_filter, tally_document, tally_lines
from qworker.cli.framework.confirm import confirm
from qworker.cli.framework.output import Note, Output
from qworker.cli.framework.progress import progress
from qworker.cli.framework.terminal import note
from qworker.client.dead import pages
from qworker.client.dead.filter import DeadFilter, DeadTally
from qworker.client.dead.pages import Act, ChangeCounts, DeadLetterScan
from qworker.client.dead.throttle import Throttle
from qworker.client.per_shard import of_one_shard
from qworker.errors import QworkerError
from qworker.formats import count, span

if TYPE_CHECKING:
    from qworker.cli.framework.context import Session
    from qworker.client.queue import Queue
    from qworker.wire.keys import QueueKeys

__all__ = ["Change", "DeadLetterSelection", "change_dead_letters"]


@dataclass(frozen=True, slots=True)
class Change:
    """What to do: the verb, its participle, and how the question begins."""

    verb: str
    done: str
    question: str
    act: Act


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterSelection:
    """Which dead letters, and how: `limit` and `rate_per_s`: None is unlimited."""

    wanted: DeadFilter
    everything: bool
    limit: int | None
    dry_run: bool
    yes: bool
    rate_per_s: float | None = None


def change_dead_letters(
    session: Session, queue: Queue, change: Change, choice: DeadLetterSelection
) -> Iterator[Output]:
    """Change the dead letters of a queue that fit; not those that die during the call.

    Raises `UsageError` unless a filter or --all says which.
    """
    if choice.wanted.is_empty and not choice.everything:
        raise click.UsageError(f"choose the dead letters to {change.verb}: pass a filter or --all")
    per_s = choice.rate_per_s
    readings, failed = [], None
    every = session.client.run(queue.ref.every_shard())
    shards, wanted = session.client.run(pages.narrowed(every, choice.wanted))
    for shard in shards:
        try:
            readings.append((shard.keys, session.client.run(DeadLetterScan.begin(shard, wanted))))
        except QworkerError as error:
            if not of_one_shard(error):
                raise
            failed = failed or error
    if failed is not None and not readings:
        raise failed
    counted = [reading.again(size=pages.READ_PAGE) for _, reading in readings]
    tally = _count(session, queue.name, counted, choice)
    yield Output(text=[Note(f"{name}: {line}") for name, line in tally_lines(tally).items()])
    what = f"{count(tally.total, 'dead letter')} of {queue.name}"
    lasting = f", in {span(tally.total / per_s)}" if per_s and tally.total >= per_s else ""
    run = _Run(change, queue.name, tally.total)
    if not tally.total:
        text = f"no matching dead letter in {queue.name}; nothing was changed"
    elif choice.dry_run:
        text = f"would {change.verb} {what}{lasting}; nothing was changed"
    else:
        confirm(f"{change.question} {what}{lasting}?", yes=choice.yes)
        run.run(session, readings, Throttle(per_s), choice.limit)
        text = run.text
    document = {"queue": queue.name, "matched": tally.total, **run.document}
    yield Output({**document, "dry_run": choice.dry_run, **tally_document(tally)}, text)
    if failed is not None:
        raise failed  # of a shard; the others had their turn


@dataclass(slots=True)
class _Run:
    """How far a change came."""

    change: Change
    queue: str
    total: int
    changed: ChangeCounts = field(default_factory=ChangeCounts)

    def run(
        self,
        session: Session,
        readings: Sequence[tuple[QueueKeys, DeadLetterScan]],
        throttle: Throttle,
        limit: int | None,
    ) -> None:
        """Act on all that is read, with a progress bar."""
        title = f"{self.change.verb} {self.queue}"
        try:
            with progress(title, self.total) as advance:

                def count_them(changed: ChangeCounts) -> None:
                    self.changed.add(changed)
                    advance(changed.total)

                for keys, reading in readings:
                    left = None if limit is None else limit - self.changed.total
                    plan = pages.change(
                        keys,
                        reading,
                        self.change.act,
                        throttle=throttle,
                        limit=left,
                        on_progress=count_them,
                    )
                    session.client.run(plan)
        except BaseException:
            note(f"interrupted: {self.text}, {count(self.total)} matched; run it again to continue")
            raise

    @property
    def text(self) -> str:
        """The result as text."""
        text = f"{self.change.done} {count(self.changed.done, 'dead letter')} of {self.queue}"
        if self.changed.gone:
            text += f"; {count(self.changed.gone)} already gone"
        if self.changed.foreign:
            text += (
                f"; skipped {count(self.changed.foreign, 'foreign item')}, which consumers cannot handle "
                f"(qworker dead drop {self.queue} --reason foreign)"
            )
        if self.changed.kept_out:
            text += f"; left {count(self.changed.kept_out)} whose unique key another message holds"
        return text

    @property
    def document(self) -> dict[str, Any]:
        """The result as a document for `--json`."""
        return {
            self.change.done: self.changed.done,
            "foreign": self.changed.foreign,
            "gone": self.changed.gone,
            **({"kept_out": self.changed.kept_out} if self.change.done == "redriven" else {}),
        }


def _count(
    session: Session, queue: str, readings: Iterable[DeadLetterScan], choice: DeadLetterSelection
) -> DeadTally:
    seen, matching = DeadTally(), DeadTally()
    try:
        with progress(f"count dead letters of {queue}") as advance:
            for reading in readings:
                while not reading.ended:
                    before = seen.total
                    page = session.client.run(reading.page(seen))
                    advance(seen.total - before)
                    left = None if choice.limit is None else choice.limit - matching.total
                    for dead_letter in page[:left]:
                        matching.add(dead_letter)
    except KeyboardInterrupt:
        note("interrupted while it counted dead letters: nothing was changed")
        raise
    if seen.total and not choice.wanted.ids:
        check_filter(choice.wanted, seen)
    return matching
