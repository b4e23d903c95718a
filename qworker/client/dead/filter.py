"""Filter dead letters, and count their reasons."""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Self

from qworker.client.dead.fingerprint import FINGERPRINT, fingerprint
from qworker.config.fields import Options, unknown_option
from qworker.config.kinds import DurationKind
from qworker.durations import Duration
from qworker.errors import InvalidOptionError
from qworker.wire.ids import EntryId

if TYPE_CHECKING:
    from qworker.client.message import DeadLetter

__all__ = ["DeadFilter", "DeadTally", "same_class"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadFilter(Options):
    """Choose the dead letters that fit every given field. Ages count from the death.

    `error` is a part of the error's text, in upper or lower case; `error_class` may omit its module; `ids` are entry
    or message ids; `fingerprint` is that of the same error (`qworker.client.dead.fingerprint`).
    """

    task: str = ""
    reason: str = ""
    error_class: str = ""
    error: str = ""
    older_than: Annotated[Duration | None, DurationKind("died before that", none="any")] = None
    newer_than: Annotated[Duration | None, DurationKind("died since then", none="any")] = None
    ids: frozenset[str] = frozenset()
    fingerprint: str = ""
    #: Whether `ids` are all entries that exist: then none of them is meant as a message id.
    only_entries: bool = field(init=False, default=False)
    older_than_ms: int | None = field(init=False)
    newer_than_ms: int | None = field(init=False)

    @classmethod
    def of(cls, wanted: Self | None, given: Mapping[str, object]) -> Self:
        """Copy a filter with changes given by name. Raises `InvalidOptionError` for an unknown one."""
        known = [option.name for option in dataclasses.fields(cls) if option.init]
        for name in given:
            if name not in known:
                raise unknown_option(ascii(name)[1:-1], name, known)
        return dataclasses.replace(wanted or cls(), **given)  # type: ignore[arg-type]  # checked below

    @property
    def is_empty(self) -> bool:
        """Whether it fits every dead letter."""
        return self == DeadFilter()

    def entries(self) -> set[EntryId]:
        """Return the entries that `ids` names, if all of them are written as entry ids; else none."""
        try:
            return {EntryId.parse(name) for name in self.ids}
        except InvalidOptionError:
            return set()

    def of_entries(self) -> Self:
        """Return the same filter, with `only_entries`."""
        narrowed = copy.copy(self)
        object.__setattr__(narrowed, "only_entries", True)
        return narrowed

    def fits(self, dead_letter: DeadLetter, now_ms: int) -> bool:
        """Say whether a dead letter fits."""
        age_ms = now_ms - dead_letter.died_ms
        return (
            (not self.reason or dead_letter.reason == self.reason)
            and (not self.error_class or same_class(dead_letter.error_class, self.error_class))
            and (not self.error or self.error.casefold() in dead_letter.error.casefold())
            and (self.older_than_ms is None or age_ms >= self.older_than_ms)
            and (self.newer_than_ms is None or age_ms <= self.newer_than_ms)
            and (not self.ids or self._names(dead_letter))
            and (not self.task or dead_letter.message.task == self.task)
            and (not self.fingerprint or fingerprint(dead_letter) == self.fingerprint)
        )

    def _names(self, dead_letter: DeadLetter) -> bool:
        message_id = dead_letter.message.id  # '' if it is foreign
        return dead_letter.entry_id in self.ids or (message_id != "" and message_id in self.ids)

    def _check_together(self) -> None:
        for name in ("task", "reason", "error_class", "error"):
            if not isinstance(getattr(self, name), str):
                raise InvalidOptionError(name, "is not a str", "give text, '' for any")
        if self.fingerprint and (
            not isinstance(self.fingerprint, str) or FINGERPRINT.fullmatch(self.fingerprint) is None
        ):
            raise InvalidOptionError(
                "fingerprint",
                f"{ascii(self.fingerprint)[:80]} is not a fingerprint",
                "ten hex digits, as `qworker dead ls --json` lists them",
            )
        ids: object = self.ids
        if isinstance(ids, str) or not all(isinstance(name, str) for name in self.ids):
            raise InvalidOptionError(
                "ids", "is not a set of str", "give a set of entry or message ids"
            )
        object.__setattr__(self, "ids", frozenset(self.ids))


@dataclass(slots=True)
class DeadTally:
    """Counts of dead letters by reason, error class and task; '' is none."""

    total: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    error_classes: Counter[str] = field(default_factory=Counter)
    tasks: Counter[str] = field(default_factory=Counter)

    @classmethod
    def sum(cls, tallies: list[DeadTally]) -> DeadTally:
        """Add up the tallies of shards."""
        total = cls()
        for tally in tallies:
            total.total += tally.total
            total.reasons += tally.reasons
            total.error_classes += tally.error_classes
            total.tasks += tally.tasks
        return total

    def add(self, dead_letter: DeadLetter) -> None:
        """Count a dead letter."""
        self.total += 1
        self.reasons[dead_letter.reason] += 1
        self.error_classes[dead_letter.error_class] += 1
        self.tasks[dead_letter.message.task] += 1


def same_class(stored: str, wanted: str) -> bool:
    """Compare error classes: `ConnectionError` also means `redis.exceptions.ConnectionError`."""
    return stored == wanted or stored.endswith(f".{wanted}")
