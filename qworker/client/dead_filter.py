"""Which dead letters are meant, and what they died of."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Self

from qworker.config.fields import Options, unknown_option
from qworker.config.kinds import DurationKind
from qworker.durations import Duration
from qworker.errors import InvalidOptionError

if TYPE_CHECKING:
    from qworker.client.message import DeadLetter

__all__ = ["DeadFilter", "DeadTally", "same_class"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadFilter(Options):
    """Which dead letters are meant: those that fit everything that is given. Ages count from the death.

    `error` is a part of the error's text, in upper or lower case; `error_class` goes with or without its module;
    `ids` are entry or message ids.
    """

    task: str = ""
    reason: str = ""
    error_class: str = ""
    error: str = ""
    older_than: Annotated[Duration | None, DurationKind("died before that", none="any")] = None
    newer_than: Annotated[Duration | None, DurationKind("died since then", none="any")] = None
    ids: frozenset[str] = frozenset()
    older_than_ms: int | None = field(init=False)
    newer_than_ms: int | None = field(init=False)

    @classmethod
    def of(cls, wanted: Self | None, given: Mapping[str, object]) -> Self:
        """Copy a filter with changes given by name. Raises `InvalidOptionError` for an unknown one."""
        known = [each.name for each in dataclasses.fields(cls) if each.init]
        for name in given:
            if name not in known:
                raise unknown_option(ascii(name)[1:-1], name, known)
        return dataclasses.replace(wanted or cls(), **given)  # type: ignore[arg-type]  # checked below

    @property
    def is_empty(self) -> bool:
        """Whether every dead letter fits."""
        return self == DeadFilter()

    def fits(self, letter: DeadLetter, now_ms: int) -> bool:
        """Say whether a dead letter is meant."""
        age_ms = now_ms - letter.died_ms
        return (
            (not self.reason or letter.reason == self.reason)
            and (not self.error_class or same_class(letter.error_class, self.error_class))
            and (not self.error or self.error.casefold() in letter.error.casefold())
            and (self.older_than_ms is None or age_ms >= self.older_than_ms)
            and (self.newer_than_ms is None or age_ms <= self.newer_than_ms)
            and (not self.ids or letter.entry_id in self.ids or letter.message.id in self.ids)
            and (not self.task or letter.message.task == self.task)
        )

    def _check_together(self) -> None:
        for name in ("task", "reason", "error_class", "error"):
            if not isinstance(getattr(self, name), str):
                raise InvalidOptionError(name, "is not a str", "give text, '' for any")
        ids: object = self.ids
        if isinstance(ids, str) or not all(isinstance(each, str) for each in self.ids):
            raise InvalidOptionError(
                "ids", "is no set of str", "give a set of entry or message ids"
            )
        object.__setattr__(self, "ids", frozenset(self.ids))


@dataclass(slots=True)
class DeadTally:
    """What dead letters died of, counted; '' stands for none."""

    total: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    error_classes: Counter[str] = field(default_factory=Counter)
    tasks: Counter[str] = field(default_factory=Counter)

    @classmethod
    def sum(cls, tallies: list[DeadTally]) -> DeadTally:
        """Add up those of several places."""
        whole = cls()
        for each in tallies:
            whole.total += each.total
            whole.reasons += each.reasons
            whole.error_classes += each.error_classes
            whole.tasks += each.tasks
        return whole

    def add(self, letter: DeadLetter) -> None:
        """Count one."""
        self.total += 1
        self.reasons[letter.reason] += 1
        self.error_classes[letter.error_class] += 1
        self.tasks[letter.message.task] += 1


def same_class(stored: str, wanted: str) -> bool:
    """Compare error classes: `ConnectionError` also means `redis.exceptions.ConnectionError`."""
    return stored == wanted or stored.endswith(f".{wanted}")
