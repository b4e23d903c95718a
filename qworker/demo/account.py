"""The account: was every message that was sent also handled, or is it dead?

Nothing is subtracted. The keys of all messages sent, handled and dead come from three sources (two tables that senders
and handlers write outside the queue, and the dead letters on the server), and a message is lost if its key is in the
first and in none of the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

__all__ = ["Account", "DeadKey", "settle_account"]


@dataclass(frozen=True, slots=True)
class DeadKey:
    """A dead letter: the key of its message, the reason and the class of the error."""

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
    """Sent and still stored, if the run was cut short."""
    redelivered: int
    """Messages that a killed worker held and that ended after another delivery."""
    duplicates: int
    """Times that a message was handled again."""
    lost: frozenset[str] = field(default_factory=frozenset)


def settle_account(
    *,
    sent: Set[str],
    handled: Set[str],
    dead: Iterable[DeadKey],
    waiting: Set[str] = frozenset(),
    held: Set[str] = frozenset(),
    handled_by_others: Set[str] = frozenset(),
    duplicates: int = 0,
) -> Account:
    """Compare the keys. `held`: messages that the killed worker had received and not settled.

    A message that was handled but not noted as sent, because its sender was killed between the two, counts as sent.
    """
    dead_letters = list(dead)
    buried = {dead_letter.key for dead_letter in dead_letters}
    known = sent | handled | buried
    return Account(
        sent=len(known),
        handled=len(handled),
        dead=len(dead_letters),
        dead_by_reason=dict(
            Counter(dead_letter.reason for dead_letter in dead_letters).most_common()
        ),
        errors_by_reason=_errors_by_reason(dead_letters),
        waiting=len((known & waiting) - handled - buried),
        redelivered=len(held & (handled_by_others | buried)),
        duplicates=duplicates,
        lost=frozenset(known - handled - buried - waiting),
    )


def _errors_by_reason(dead_letters: Iterable[DeadKey]) -> dict[str, tuple[str, ...]]:
    classes: dict[str, Counter[str]] = {}
    for dead_letter in dead_letters:
        if dead_letter.error_class:
            classes.setdefault(dead_letter.reason, Counter())[dead_letter.error_class] += 1
    return {
        reason: tuple(name for name, _ in counted.most_common())
        for reason, counted in classes.items()
    }
