"""Checks that every item is a message, and that every message is in one place.

Ids are remembered by hash, 8 bytes each. If a hash repeats, the queue is read again, and a script decides.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from qworker.engine.repair import Location, repair_item, repair_twice
from qworker.fsck.damage import Damage, DamageKind
from qworker.fsck.reading import StoredItems
from qworker.wire.envelope import Envelope, ItemKind, kind_of
from qworker.wire.keys import QueueKeys

if TYPE_CHECKING:
    from qworker.client.execute.sync import Client

__all__ = ["Ids", "check_duplicates", "check_items"]

_PARTS: Final = 256
_MASK: Final = (1 << 64) - 1
_MAX_SCORE: Final = 2.0**53
_ITEM_KINDS: Final = {
    "foreign": (DamageKind.FOREIGN_ITEM, "not a message that a consumer could take"),
    "score": (DamageKind.BAD_DUE_TIME, "delayed until a time that no send would write"),
    "letter": (DamageKind.NO_ENVELOPE, "a dead letter without a message"),
}
#: Which of two copies stays: the one that a worker holds, else the one that is next to be delivered.
_RANKS: Final = {"lease": 0, "suspect": 1, "delayed": 3, "dead": 4}


class Ids:
    """Hashes of message ids, 8 bytes each, in parts so that few are compared at a time."""

    def __init__(self) -> None:
        self._parts = [array("Q") for _ in range(_PARTS)]

    def add(self, message_id: bytes) -> None:
        """Remember an id."""
        number = hash(message_id) & _MASK
        self._parts[number % _PARTS].append(number)

    def repeated(self) -> set[int]:
        """Return the hashes that were added more than once, and forget all."""
        repeated: set[int] = set()
        while self._parts:
            part = self._parts.pop()
            once: set[int] = set()
            for number in part:
                (repeated if number in once else once).add(number)
        return repeated


def check_items(
    client: Client,
    keys: QueueKeys,
    ids: Ids,
    on_progress: Callable[[int], None],
    *,
    repair: bool,
) -> Iterator[Damage]:
    """Check every item of the queue, and add their ids to `ids`. `on_progress` gets the number just checked."""
    items = StoredItems(client, keys)
    for location in items:
        on_progress(1)
        message_id = _id(location)
        if message_id is not None:
            ids.add(message_id)
        if not _is_doubtful(location):
            continue
        problem = client.execute(repair_item(keys, location, repair=repair))
        if not problem:
            continue
        if repair and problem == "foreign":
            items.took_out()
        kind, text = _ITEM_KINDS[problem]
        start = ascii(location.item[:40])[2:-1]
        shown = f"{text}: {start}" if start else text
        yield Damage(keys.queue, kind, location.text(), shown, repair)


def check_duplicates(
    client: Client,
    keys: QueueKeys,
    ids: Ids,
    on_progress: Callable[[int], None],
    *,
    repair: bool,
) -> Iterator[Damage]:
    """Find messages in two places; reads the queue again only if a hash repeats."""
    repeated = ids.repeated()
    if not repeated:
        return
    by_id: dict[bytes, list[Location]] = {}
    for location in StoredItems(client, keys):
        on_progress(1)
        message_id = _id(location)
        if message_id is not None and hash(message_id) & _MASK in repeated:
            by_id.setdefault(message_id, []).append(location)
    for message_id, locations in by_id.items():
        locations.sort(key=lambda location: _RANKS.get(location.place, 2))
        for stays, goes in _pairs(locations):
            problem = client.execute(repair_twice(keys, stays, goes, repair=repair))
            if not problem:
                continue
            name = message_id.decode()
            where = f"{stays.text()} and {goes.text()}"
            if problem == "copy":
                yield Damage(keys.queue, DamageKind.TWO_PLACES, where, f"message {name}", repair)
            else:
                text = f"two messages have the id {name}"
                yield Damage(keys.queue, DamageKind.SAME_ID, where, text, repair)


def _pairs(locations: Sequence[Location]) -> Iterator[tuple[Location, Location]]:
    """Pair items that stay with those that go: first copies of one message, then different messages with one id."""
    bodies: dict[bytes, list[Location]] = {}
    for location in locations:
        envelope = Envelope.parse(location.item)
        bodies.setdefault(b"" if envelope is None else envelope.body, []).append(location)
    for stays, *copies in bodies.values():
        for goes in copies:
            yield stays, goes
    stays, *others = (copies[0] for copies in bodies.values())
    for goes in others:
        yield stays, goes


def _id(location: Location) -> bytes | None:
    envelope = Envelope.parse(location.item)
    return None if envelope is None else envelope.id.encode()


def _is_doubtful(location: Location) -> bool:
    """Whether a script must check it; quick, and never misses damage."""
    if location.place == "dead":
        return not location.whole
    if location.place == "delayed" and not 0 <= location.score <= _MAX_SCORE:
        return True
    return kind_of(location.item) is ItemKind.FOREIGN
