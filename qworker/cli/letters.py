"""Dead letters by filter: which of them an operator means, counted and listed."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from qworker.cli.formats import count
from qworker.cli.messages import message_document
from qworker.client.dead_filter import DeadFilter, DeadTally, same_class
from qworker.client.letter_pages import Reading
from qworker.config.kinds import DurationKind
from qworker.errors import InvalidOptionError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from qworker.client.message import DeadLetter
    from qworker.client.queue import Queue

__all__ = [
    "Listing",
    "check_filter",
    "filter_of",
    "letter_document",
    "tally_document",
    "tally_lines",
    "telling_line",
]

#: Errors whose first line says what happened: a stack follows it.
_STACK_FOLLOWS: Final = ("WorkerDiedError", "TimeLimitError")
#: Groups of a tally that are told.
_TOLD: Final = 5


def filter_of(
    reason: str,
    error_class: str,
    error: str,
    task: str,
    older_than: str | None,
    newer_than: str | None,
    ids: Iterable[str],
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
    )


def check_filter(wanted: DeadFilter, seen: DeadTally) -> None:
    """Raise `InvalidOptionError` with the nearest one for a reason, class or task that no letter has.

    `seen` is of all letters of the queue.
    """
    _check_known("--reason", wanted.reason, seen.reasons)
    _check_known("--error-class", wanted.error_class, seen.error_classes)
    _check_known("--task", wanted.task, seen.tasks)


def tally_lines(tally: DeadTally) -> dict[str, str]:
    """Write the groups for people, the largest first."""
    groups = {
        "by reason": tally.reasons,
        "by error class": tally.error_classes,
        "by task": tally.tasks,
    }
    return {name: _told(group) for name, group in groups.items() if set(group) - {""}}


def tally_document(tally: DeadTally) -> dict[str, Any]:
    """Write the groups for programs; '' stands for none."""
    return {
        "by_reason": dict(tally.reasons.most_common()),
        "by_error_class": dict(tally.error_classes.most_common()),
        "by_task": dict(tally.tasks.most_common()),
    }


@dataclass(slots=True)
class Listing:
    """The letters of some queues that fit: all of them counted, `limit` of them kept, of the newest if so wanted."""

    wanted: DeadFilter
    limit: int
    newest: bool
    meant: DeadTally = field(default_factory=DeadTally)
    letters: list[DeadLetter] = field(default_factory=list)
    _seen: DeadTally = field(default_factory=DeadTally)

    def add(self, place: Queue) -> None:
        """Read the letters of one queue."""
        for shard in place.client.run(place.ref.every_shard()):
            kept: list[DeadLetter] = []
            reading = place.client.run(Reading.begin(shard, self.wanted))
            while not reading.ended:
                page = place.client.run(reading.page(self._seen))
                for letter in page:
                    self.meant.add(letter)
                kept = (kept + page)[-self.limit :] if self.newest else (kept + page)[: self.limit]
            self.letters += kept

    def finish(self) -> None:
        """Order the letters that were kept; raises `InvalidOptionError` for a filter that fits no letter at all."""
        if self._seen.total:
            check_filter(self.wanted, self._seen)
        self.letters.sort(key=lambda each: _place(each.entry_id), reverse=self.newest)
        del self.letters[self.limit :]


def letter_document(letter: DeadLetter) -> dict[str, Any]:
    """Write a dead letter for programs."""
    return {
        "entry_id": letter.entry_id,
        "reason": letter.reason,
        "error_class": letter.error_class,
        "error": letter.error,
        "died_ms": letter.died_ms,
        "message": message_document(letter.message),
    }


def telling_line(letter: DeadLetter) -> str:
    """The line of an error that says what happened, with its class.

    Of a traceback the last one that begins with the class, for messages may have several lines; otherwise the last one.
    """
    name, lines = letter.error_class, letter.error.strip().split("\n")
    if name in _STACK_FOLLOWS:
        return f"{name}: {lines[0]}"
    if name and len(lines) > 1:
        # A group of exceptions is drawn as a tree; a class may stand with its module.
        raised = re.compile(rf"^[ |]*((?:\w+\.)*{re.escape(name)}(?::.*|))$")
        for line in reversed(lines):
            if (found := raised.match(line)) is not None:
                return found[1]
        return lines[-1]
    return f"{name}: {lines[-1]}" if name else lines[-1]


def _age(text: str | None, flag: str) -> str | None:
    return None if text is None else str(DurationKind("").parse(text, flag))


def _place(entry_id: str) -> tuple[int, int]:
    first, _, second = entry_id.partition("/")[0].partition("-")
    return int(first), int(second)


def _check_known(flag: str, wanted: str, group: Counter[str]) -> None:
    known = sorted(set(group) - {""})
    if not wanted or any(same_class(each, wanted) for each in known):
        return
    near = get_close_matches(wanted, [*known, *(each.rpartition(".")[2] for each in known)], 1)
    if near:
        limit = f"did you mean {near[0]!r}?"
    else:
        limit = f"there are {', '.join(known[:_TOLD])}" if known else "none of them names one"
    raise InvalidOptionError(flag, f"no dead letter has {ascii(wanted)[:80]}", limit)


def _told(group: Counter[str]) -> str:
    parts = [f"{count(number)} {name or '(none)'}" for name, number in group.most_common(_TOLD)]
    others = sum(group.values()) - sum(number for _, number in group.most_common(_TOLD))
    return ", ".join([*parts, *([f"{count(others)} others"] if others else [])])
