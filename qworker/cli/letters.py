"""Dead letters by filter: which of them an operator means, read in pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from qworker.cli.formats import count
from qworker.cli.messages import message_document, task_of
from qworker.errors import InvalidOptionError
from qworker.kinds import DurationKind

if TYPE_CHECKING:
    from qworker.message import DeadLetter
    from qworker.queue import Queue

__all__ = ["Filter", "Listing", "Tally", "letter_document", "matching"]

#: Letters in a page: bodies are up to 256 KiB by default, and one reply should not block the server for long.
_PAGE: Final = 100
#: Groups of a tally that are told.
_TOLD: Final = 5


@dataclass(frozen=True, slots=True)
class Filter:
    """Which dead letters are meant: those that fit everything that is given. `ids` are entry or message ids."""

    reason: str = ""
    error_class: str = ""
    task: str = ""
    older_than_ms: int = 0
    ids: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls, reason: str, error_class: str, task: str, older_than: str | None, ids: tuple[str, ...]
    ) -> Filter:
        """Make a filter of flags. Raises `InvalidOptionError` for `older_than`."""
        from qworker.durations import duration_ms

        older_ms = 0
        if older_than is not None:
            text = DurationKind("").parse(older_than, "--older-than")
            older_ms = duration_ms(text, "--older-than")
        return cls(reason, error_class, task, older_ms, frozenset(ids))

    @property
    def is_empty(self) -> bool:
        """Whether every dead letter fits."""
        return self == Filter()

    def fits(self, letter: DeadLetter, now_ms: int) -> bool:
        """Say whether a dead letter is meant."""
        return (
            (not self.reason or letter.reason == self.reason)
            and (not self.error_class or _same_class(letter.error_class, self.error_class))
            and (not self.older_than_ms or letter.died_ms <= now_ms - self.older_than_ms)
            and (not self.ids or letter.entry_id in self.ids or letter.message.id in self.ids)
            and (not self.task or task_of(letter.message) == self.task)
        )

    def check(self, tally: Tally) -> None:
        """Raise `InvalidOptionError` with the nearest one for a reason, class or task that no letter has.

        `tally` is of all letters of the queue.
        """
        _check_known("--reason", self.reason, tally.reasons)
        _check_known("--error-class", self.error_class, tally.error_classes)
        _check_known("--task", self.task, tally.tasks)


@dataclass(slots=True)
class Tally:
    """What dead letters died of, counted."""

    total: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    error_classes: Counter[str] = field(default_factory=Counter)
    tasks: Counter[str] = field(default_factory=Counter)

    def add(self, letter: DeadLetter) -> None:
        """Count one."""
        self.total += 1
        self.reasons[letter.reason] += 1
        self.error_classes[letter.error_class] += 1
        self.tasks[task_of(letter.message)] += 1

    def lines(self) -> dict[str, str]:
        """Write the groups for people, the largest first."""
        groups = {
            "by reason": self.reasons,
            "by error class": self.error_classes,
            "by task": self.tasks,
        }
        return {name: _told(group) for name, group in groups.items() if set(group) - {""}}

    def document(self) -> dict[str, Any]:
        """Write the groups for programs; '' stands for none."""
        return {
            "total": self.total,
            "by_reason": dict(self.reasons.most_common()),
            "by_error_class": dict(self.error_classes.most_common()),
            "by_task": dict(self.tasks.most_common()),
        }


@dataclass(slots=True)
class Listing:
    """The letters of some queues that fit: all of them counted, `limit` of them kept, of the newest if so wanted."""

    wanted: Filter
    now_ms: int
    limit: int
    newest: bool
    meant: Tally = field(default_factory=Tally)
    letters: list[DeadLetter] = field(default_factory=list)
    _all_of_them: Tally = field(default_factory=Tally)

    def add(self, place: Queue) -> None:
        """Read the letters of one queue."""
        kept: list[DeadLetter] = []
        for page in matching(place, self.wanted, self.now_ms, tally=self._all_of_them):
            for letter in page:
                self.meant.add(letter)
            kept = (kept + page)[-self.limit :] if self.newest else (kept + page)[: self.limit]
        self.letters += kept

    def finish(self) -> None:
        """Order the letters that were kept; raises `InvalidOptionError` for a filter that fits no letter at all."""
        if self._all_of_them.total:
            self.wanted.check(self._all_of_them)
        self.letters.sort(key=lambda each: _place(each.entry_id), reverse=self.newest)
        del self.letters[self.limit :]


def matching(
    queue: Queue,
    wanted: Filter,
    now_ms: int,
    *,
    until: str | None = None,
    tally: Tally | None = None,
) -> Iterator[list[DeadLetter]]:
    """Yield the dead letters that fit, oldest first, in pages of up to 100; some pages may be empty.

    Ends behind the entry id `until`: letters that die meanwhile are left out. `tally` is given every letter
    that is read, fitting or not. Letters that were yielded may be removed before the next page is asked for.
    """
    after = "-"
    while True:
        letters = queue.dead(_PAGE, after=after)
        if until is not None:
            letters = [each for each in letters if _place(each.entry_id) <= _place(until)]
        if tally is not None:
            for letter in letters:
                tally.add(letter)
        yield [letter for letter in letters if wanted.fits(letter, now_ms)]
        if len(letters) < _PAGE:
            return
        after = letters[-1].entry_id


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


def _place(entry_id: str) -> tuple[int, int]:
    first, _, second = entry_id.partition("-")
    return int(first), int(second)


def _same_class(stored: str, wanted: str) -> bool:
    """Compare error classes: `ConnectionError` also means `redis.exceptions.ConnectionError`."""
    return stored == wanted or stored.endswith(f".{wanted}")


def _check_known(flag: str, wanted: str, group: Counter[str]) -> None:
    known = sorted(set(group) - {""})
    if not wanted or any(_same_class(each, wanted) for each in known):
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
