"""Every message in one place, and every item one that somebody can take.

Ids are remembered as 8 bytes each, in parts by their hash: what seems to be there twice is looked for once more, and a
script says whether it is so.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from qworker.fsck.finding import Finding, Kind
from qworker.fsck.mending import Spot, mend_item, mend_twice
from qworker.fsck.reading import Spots
from qworker.wire.envelope import Envelope, kind_of
from qworker.wire.envelope import Kind as ItemKind
from qworker.wire.keys import QueueKeys

if TYPE_CHECKING:
    from qworker.client.sync import Client

__all__ = ["Ids", "check_items", "check_places"]

_PARTS: Final = 256
_MASK: Final = (1 << 64) - 1
_MAX_SCORE: Final = 2.0**53
_ITEM_KINDS: Final = {
    "foreign": (Kind.FOREIGN_ITEM, "no message that a consumer could take"),
    "score": (Kind.BAD_DUE_TIME, "delayed until a time that no send writes"),
    "letter": (Kind.NO_ENVELOPE, "a dead letter without a message"),
}
#: Which of two copies stays: the one that somebody works on, else the one that is nearest to it.
_RANKS: Final = {"lease": 0, "suspect": 1, "delayed": 3, "dead": 4}


class Ids:
    """Hashes of the message ids that were seen; 8 bytes each."""

    def __init__(self) -> None:
        self._parts = [array("Q") for _ in range(_PARTS)]

    def add(self, message_id: bytes) -> None:
        """Remember an id."""
        number = hash(message_id) & _MASK
        self._parts[number % _PARTS].append(number)

    def repeated(self) -> set[int]:
        """Return the hashes that were added more than once; what is remembered is forgotten."""
        found: set[int] = set()
        while self._parts:
            part = self._parts.pop()
            once: set[int] = set()
            for number in part:
                (found if number in once else once).add(number)
        return found


def check_items(
    client: Client, keys: QueueKeys, ids: Ids, told: Callable[[int], None], *, repair: bool
) -> Iterator[Finding]:
    """Look at every item of the queue; their ids go to `ids`. `told` hears how many more were looked at."""
    spots = Spots(client, keys)
    for spot in spots:
        told(1)
        message_id = _id(spot)
        if message_id is not None:
            ids.add(message_id)
        if not _is_doubtful(spot):
            continue
        problem = client.execute(mend_item(keys, spot, repair=repair))
        if not problem:
            continue
        if repair and problem == "foreign":
            spots.took_out()
        kind, text = _ITEM_KINDS[problem]
        start = ascii(spot.item[:40])[2:-1]
        shown = f"{text}: {start}" if start else text
        yield Finding(keys.queue, kind, spot.text(), shown, repair)


def check_places(
    client: Client, keys: QueueKeys, ids: Ids, told: Callable[[int], None], *, repair: bool
) -> Iterator[Finding]:
    """Look for messages in two places; reads the queue again only where something seems to be so."""
    repeated = ids.repeated()
    if not repeated:
        return
    found: dict[bytes, list[Spot]] = {}
    for spot in Spots(client, keys):
        told(1)
        message_id = _id(spot)
        if message_id is not None and hash(message_id) & _MASK in repeated:
            found.setdefault(message_id, []).append(spot)
    for message_id, spots in found.items():
        spots.sort(key=lambda spot: _RANKS.get(spot.place, 2))
        for stays, goes in _pairs(spots):
            problem = client.execute(mend_twice(keys, stays, goes, repair=repair))
            if not problem:
                continue
            name = message_id.decode()
            where = f"{stays.text()} and {goes.text()}"
            if problem == "copy":
                yield Finding(keys.queue, Kind.TWO_PLACES, where, f"message {name}", repair)
            else:
                text = f"two messages have the id {name}"
                yield Finding(keys.queue, Kind.SAME_ID, where, text, repair)


def _pairs(spots: Sequence[Spot]) -> Iterator[tuple[Spot, Spot]]:
    """Pair what stays with what goes: first the copies of each message, then messages that share an id by mistake."""
    bodies: dict[bytes, list[Spot]] = {}
    for spot in spots:
        envelope = Envelope.parse(spot.item)
        bodies.setdefault(b"" if envelope is None else envelope.body, []).append(spot)
    for stays, *copies in bodies.values():
        for goes in copies:
            yield stays, goes
    stays, *others = (same[0] for same in bodies.values())
    for goes in others:
        yield stays, goes


def _id(spot: Spot) -> bytes | None:
    envelope = Envelope.parse(spot.item)
    return None if envelope is None else envelope.id.encode()


def _is_doubtful(spot: Spot) -> bool:
    """Whether a script shall look: quick, and never too strict."""
    if spot.place == "dead":
        return not spot.whole
    if spot.place == "delayed" and not 0 <= spot.score <= _MAX_SCORE:
        return True
    return kind_of(spot.item) is ItemKind.FOREIGN
