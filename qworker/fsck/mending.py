"""Commands that look at one thing again inside of a script, and mend it there: the `mend_*` scripts.

With `repair` False each only says what is wrong. What has moved on since it was first seen is no problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qworker.client.commands.arguments import standard_keys
from qworker.client.commands.command import Command, Word
from qworker.client.commands.replies import accepted
from qworker.store.scripts import load_script
from qworker.wire.keys import QueueKeys

__all__ = [
    "MAX_PAIRS",
    "Books",
    "Spot",
    "mend_books",
    "mend_item",
    "mend_key",
    "mend_lane",
    "mend_lease",
    "mend_twice",
    "mend_unique",
]

#: Unique keys that one call looks at.
MAX_PAIRS = 100


@dataclass(frozen=True, slots=True)
class Spot:
    """Where an item stands: `place` is 0-9 (a level of ready), suspect, delayed, lease or dead.

    `at`: the index in the lease, or the entry id of the dead letter. `score` of a delayed item. `whole`: a dead
    letter that has an envelope, and anything else.
    """

    place: str
    item: bytes
    lease_id: str = ""
    at: str = ""
    score: float = 0.0
    whole: bool = True

    def text(self) -> str:
        """Write it for people."""
        if self.place == "lease":
            return f"lease:{self.lease_id} {self.at}"
        if self.place.isdecimal():
            return "ready" if self.place == "0" else f"ready:{self.place}"
        return f"{self.place} {self.at}" if self.at else self.place


@dataclass(frozen=True, slots=True)
class Books:
    """What is wrong in the books: name, as it is written, as it should be. `busy`: messages could not be counted."""

    busy: bool
    problems: tuple[tuple[str, str, str], ...]


def mend_key(
    keys: QueueKeys, key: str, aside: str, kind: str, *, repair: bool
) -> Command[tuple[str, str]]:
    """Look at the type of a key, and whether it expires. Returns problem and what was found."""

    def decode(reply: Any) -> tuple[str, str]:
        problem, found = accepted(reply, keys.queue)[2:]
        return problem.decode(), found.decode()

    return Command(
        load_script("mend_key"), (key, aside, keys.meta), ("", int(repair), kind), decode
    )


def mend_lease(keys: QueueKeys, lease_id: bytes, *, repair: bool) -> Command[str]:
    """Look at a lease, or at what stands among the deadlines. Returns the problem."""
    names = standard_keys(keys, *_texts(lease_id))
    return Command(
        load_script("mend_lease"), names, ("", int(repair), lease_id), _problem(keys.queue)
    )


def mend_item(keys: QueueKeys, spot: Spot, *, repair: bool) -> Command[str]:
    """Look at the item of a spot. Returns the problem."""
    words, leases = _words([spot])
    return Command(
        load_script("mend_item"),
        standard_keys(keys, *leases),
        ("", int(repair), *words),
        _problem(keys.queue),
    )


def mend_twice(keys: QueueKeys, stays: Spot, goes: Spot, *, repair: bool) -> Command[str]:
    """Look at two spots of one message. Returns the problem."""
    words, leases = _words([stays, goes])
    return Command(
        load_script("mend_twice"),
        standard_keys(keys, *leases),
        ("", int(repair), *words),
        _problem(keys.queue),
    )


def mend_lane(keys: QueueKeys, lane: bytes, *, repair: bool) -> Command[str]:
    """Look at a lane. Returns the problem."""
    names = (keys.producers, keys.meta)
    return Command(load_script("mend_lane"), names, ("", int(repair), lane), _problem(keys.queue))


def mend_unique(
    keys: QueueKeys,
    pairs: Sequence[tuple[bytes, bytes]],
    lease_ids: Sequence[str],
    *,
    repair: bool,
) -> Command[tuple[str, list[bool]]]:
    """Look for the holders of up to `MAX_PAIRS` unique keys. Returns why not, or for each whether it is gone."""

    def decode(reply: Any) -> tuple[str, list[bool]]:
        _, _, why, *gone = accepted(reply, keys.queue)
        return why.decode(), [each == 1 for each in gone]

    words: list[Word] = ["", int(repair)]
    for key, value in pairs:
        words += (key, value)
    return Command(
        load_script("mend_unique"), standard_keys(keys, *lease_ids), tuple(words), decode
    )


def mend_books(keys: QueueKeys, lease_ids: Sequence[str], *, repair: bool) -> Command[Books]:
    """Compare counters, levels and journal numbers with what is there."""

    def decode(reply: Any) -> Books:
        _, _, busy, *words = accepted(reply, keys.queue)
        texts = [word.decode("utf-8", "replace") for word in words]
        return Books(busy == 1, tuple(zip(texts[::3], texts[1::3], texts[2::3], strict=True)))

    return Command(
        load_script("mend_books"), standard_keys(keys, *lease_ids), ("", int(repair)), decode
    )


def _problem(queue: str) -> Any:
    def decode(reply: Any) -> str:
        problem: bytes = accepted(reply, queue)[2]
        return problem.decode()

    return decode


def _texts(lease_id: bytes) -> tuple[str, ...]:
    """The lease id as part of a key's name; none where it cannot be written as text."""
    try:
        return (lease_id.decode(),)
    except UnicodeDecodeError:
        return ()


def _words(spots: Sequence[Spot]) -> tuple[list[Word], list[str]]:
    words: list[Word] = []
    leases: list[str] = []
    for spot in spots:
        number = ""
        if spot.place == "lease":
            leases.append(spot.lease_id)
            number = str(len(leases))
        words += (spot.place, number, spot.at, spot.item)
    return words, leases
