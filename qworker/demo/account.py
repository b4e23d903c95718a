"""The account: is every message that was sent also handled, or dead?

Nothing is subtracted. The keys of all messages sent, all handled and all dead come from three places (two tables that
senders and handlers write outside of the queue, and the dead letters on the server), and a message is lost if its key
is in the first and in none of the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

__all__ = ["Account", "DeadKey", "settle_account"]


@dataclass(frozen=True, slots=True)
class DeadKey:
    """A dead letter: the key of its message, why it died, and of which error."""

    key: str
    reason: str
    error_class: str


@dataclass(frozen=True, slots=True)
class Account:
    """Numbers of messages. `lost` holds keys."""

    sent: int
    handled: int
    dead: int
    dead_by_reason: Mapping[str, int]
    errors_by_reason: Mapping[str, tuple[str, ...]]
    """The classes of the errors that messages died of, the most frequent first."""
    waiting: int
    """Sent, and still stored: only where the run was cut short."""
    redelivered: int
    """Messages that a killed worker had in hand and that another delivery brought to their end."""
    duplicates: int
    """Handled once more than once each."""
    lost: frozenset[str] = field(default_factory=frozenset)


def settle_account(
    *,
    sent: Set[str],
    handled: Set[str],
    dead: Iterable[DeadKey],
    waiting: Set[str] = frozenset(),
    in_hand: Set[str] = frozenset(),
    handled_by_others: Set[str] = frozenset(),
    duplicates: int = 0,
) -> Account:
    """Compare the books. `in_hand`: what killed workers had received and not settled.

    A message that somebody handled although nobody noted it as sent (its sender was killed between the two) counts as
    sent.
    """
    letters = list(dead)
    buried = {letter.key for letter in letters}
    known = sent | handled | buried
    return Account(
        sent=len(known),
        handled=len(handled),
        dead=len(letters),
        dead_by_reason=dict(Counter(letter.reason for letter in letters).most_common()),
        errors_by_reason=_errors_by_reason(letters),
        waiting=len((known & waiting) - handled - buried),
        redelivered=len(in_hand & (handled_by_others | buried)),
        duplicates=duplicates,
        lost=frozenset(known - handled - buried - waiting),
    )


def _errors_by_reason(letters: Iterable[DeadKey]) -> dict[str, tuple[str, ...]]:
    found: dict[str, Counter[str]] = {}
    for letter in letters:
        if letter.error_class:
            found.setdefault(letter.reason, Counter())[letter.error_class] += 1
    return {
        reason: tuple(name for name, _ in classes.most_common())
        for reason, classes in found.items()
    }
