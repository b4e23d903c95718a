"""Dead letters that match a filter: counted and listed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from qworker.cli.framework.progress import progress
from qworker.cli.framework.suggestions import did_you_mean
from qworker.cli.message.bodies import message_document
from qworker.client.dead.filter import DeadFilter, DeadTally, same_class
from qworker.client.dead.fingerprint import error_line, fingerprint
from qworker.client.dead.pages import READ_PAGE, DeadLetterScan, narrowed
from qworker.client.per_shard import each_readable
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.config.kinds import DurationKind
from qworker.errors import InvalidOptionError
from qworker.formats import count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from qworker.client.message import DeadLetter
    from qworker.client.queue import Queue

__all__ = [
    "Listing",
    "check_filter",
    "dead_letter_document",
    "error_line",
    "filter_of",
    "tally_document",
    "tally_lines",
]

#: Groups of a tally that are listed.
_LISTED: Final = 5


def filter_of(
    reason: str,
    error_class: str,
    error: str,
    task: str,
    older_than: str | None,
    newer_than: str | None,
    ids: Iterable[str],
    fingerprint: str = "",
) -> DeadFilter:
    """Make a filter of flags. Raises `InvalidOptionError` naming the flag."""
    return DeadFilter(
        task=task,
        reason=reason,
        error_class=error_class,
        error=error,
        older_than=_age(older_than, "--older-than"),
        newer_than=_age(newer_than, "--newer-than"),
        ids=frozenset(ids),
        fingerprint=fingerprint,
    )


def check_filter(wanted: DeadFilter, seen: DeadTally) -> None:
    """Raise `InvalidOptionError`, with a suggestion, for a reason, class or task that no dead letter has.

    `seen` counts all dead letters of the queue.
    """
    _check_known("--reason", wanted.reason, seen.reasons)
    _check_known("--error-class", wanted.error_class, seen.error_classes)
    _check_known("--task", wanted.task, seen.tasks)


def tally_lines(tally: DeadTally) -> dict[str, str]:
    """Write the groups as lines, the largest first."""
    groups = {
        "by reason": tally.reasons,
        "by error class": tally.error_classes,
        "by task": tally.tasks,
    }
    return {name: _groups(group) for name, group in groups.items() if set(group) - {""}}


def tally_document(tally: DeadTally) -> dict[str, Any]:
    """Write the groups as a document for `--json`; '' is none."""
    return {
        "by_reason": dict(tally.reasons.most_common()),
        "by_error_class": dict(tally.error_classes.most_common()),
        "by_task": dict(tally.tasks.most_common()),
    }


@dataclass(slots=True)
class Listing:
    """The dead letters of some queues that fit: all of them counted, the oldest or newest `limit` of them kept."""

    wanted: DeadFilter
    limit: int
    newest: bool
    matching: DeadTally = field(default_factory=DeadTally)
    dead_letters: list[DeadLetter] = field(default_factory=list)
    _seen: DeadTally = field(default_factory=DeadTally)

    def add(self, queue: Queue) -> None:
        """Read the dead letters of one queue, and show how far that is: a million take a while."""
        every = queue.client.run(queue.ref.every_shard())
        shards, wanted = queue.client.run(narrowed(every, self.wanted))
        with progress(f"read dead letters of {queue.name}") as advance:
            for kept in queue.client.run(
                each_readable(shards, partial(self._add, wanted, advance))
            ):
                self.dead_letters += kept

    def _add(
        self, wanted: DeadFilter, advance: Callable[[int], None], shard: QueueRef
    ) -> Plan[list[DeadLetter]]:
        kept: list[DeadLetter] = []
        seen = DeadTally()
        reading = yield from DeadLetterScan.begin(shard, wanted, size=READ_PAGE)
        while not reading.ended:
            before = seen.total
            page = yield from reading.page(seen)
            advance(seen.total - before)
            for dead_letter in page:
                self.matching.add(dead_letter)
            kept = (kept + page)[-self.limit :] if self.newest else (kept + page)[: self.limit]
        self._seen = DeadTally.sum([self._seen, seen])
        return kept

    def finish(self) -> None:
        """Sort the ones that were kept; raises `InvalidOptionError` if the filter names what no dead letter has."""
        if self._seen.total and not self.wanted.ids:
            check_filter(self.wanted, self._seen)
        self.dead_letters.sort(key=lambda dead_letter: dead_letter.entry, reverse=self.newest)
        del self.dead_letters[self.limit :]


def dead_letter_document(dead_letter: DeadLetter) -> dict[str, Any]:
    """Write a dead letter as a document for `--json`."""
    return {
        "entry_id": dead_letter.entry_id,
        "reason": dead_letter.reason,
        "error_class": dead_letter.error_class,
        "error": dead_letter.error,
        "fingerprint": fingerprint(dead_letter),
        "died_ms": dead_letter.died_ms,
        "message": message_document(dead_letter.message),
    }


def _age(text: str | None, flag: str) -> str | None:
    return None if text is None else str(DurationKind("").parse(text, flag))


def _check_known(flag: str, wanted: str, group: Counter[str]) -> None:
    known = sorted(set(group) - {""})
    if not wanted or any(same_class(name, wanted) for name in known):
        return
    spellings = [*known, *(name.rpartition(".")[2] for name in known)]
    listing = f"known are {', '.join(known[:_LISTED])}" if known else "none of them has one"
    limit = did_you_mean(wanted, spellings, listing)
    raise InvalidOptionError(flag, f"no dead letter has {ascii(wanted)[:80]}", limit)


def _groups(group: Counter[str]) -> str:
    parts = [f"{count(number)} {name or '(none)'}" for name, number in group.most_common(_LISTED)]
    others = sum(group.values()) - sum(number for _, number in group.most_common(_LISTED))
    return ", ".join([*parts, *([f"{count(others)} others"] if others else [])])
