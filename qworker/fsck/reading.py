"""Read a queue in bounded pages while others use it.

What stays where it is while it is read is seen. What moves may be seen twice or not at all, so nothing that is read
here is a finding before a script has looked again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from qworker.client.commands.command import Command
from qworker.fsck.mending import Spot
from qworker.wire.keys import LEVELS, QueueKeys
from qworker.wire.leases import held_items

if TYPE_CHECKING:
    from qworker.client.commands.command import Word
    from qworker.client.sync import Client

__all__ = ["Spots", "ask", "hash_pages", "lease_ids", "pages_of_keys", "score_pages"]

_PAGE: Final = 500
#: Bytes that a page of messages is meant to have.
_PAGE_BYTES: Final = 1 << 20
_SCANNED: Final = 1000
_LEASE_ID: Final = re.compile(rb"[A-Za-z0-9._-]+")


def ask(client: Client, *words: Word) -> Any:
    """Send one plain command; returns its reply."""
    return client.execute(Command(None, (), words, lambda reply: reply))


def pages_of_keys(client: Client, pattern: str) -> Iterator[list[bytes]]:
    """Go through the names of all keys that match, 1,000 looked at per call, on each server that has keys."""
    for node in client.factory.masters():
        cursor = b"0"
        while True:
            words = ("SCAN", cursor, "MATCH", pattern, "COUNT", _SCANNED)
            page: tuple[bytes, list[bytes]] = client.execute(
                Command(None, (), words, tuple, node=node)
            )
            cursor, names = page
            yield names
            if cursor == b"0":
                break


def hash_pages(client: Client, key: str) -> Iterator[list[tuple[bytes, bytes]]]:
    """Go through the fields of a HASH."""
    yield from _pairs(client, "HSCAN", key)


def score_pages(client: Client, key: str) -> Iterator[list[tuple[bytes, bytes]]]:
    """Go through the members of a ZSET, with their scores."""
    yield from _pairs(client, "ZSCAN", key)


def _pairs(client: Client, verb: str, key: str) -> Iterator[list[tuple[bytes, bytes]]]:
    cursor = b"0"
    while True:
        cursor, flat = ask(client, verb, key, cursor, "COUNT", _PAGE)
        yield list(zip(flat[::2], flat[1::2], strict=True))
        if cursor == b"0":
            return


def lease_ids(client: Client, keys: QueueKeys, limit: int) -> list[str] | None:
    """Name the leases at one instant; None where there are more than `limit`, or one that has no name."""
    names = ask(client, "ZRANGE", keys.unacked, 0, limit)
    if len(names) > limit or not all(_LEASE_ID.fullmatch(name) for name in names):
        return None
    return [name.decode() for name in names]


class Spots:
    """Goes through all items of a queue, against the way that messages take, so that few are met twice.

    Whoever takes the item that is in hand out of its list says so by `took_out`.
    """

    def __init__(self, client: Client, keys: QueueKeys) -> None:
        self._client = client
        self._keys = keys
        self._taken = 0

    def took_out(self) -> None:
        """Take note that the item in hand is gone: what is behind it has moved by one."""
        self._taken += 1

    def __iter__(self) -> Iterator[Spot]:
        yield from self._dead()
        for page in score_pages(self._client, self._keys.unacked):
            for lease_id, _ in page:
                yield from self._lease(lease_id)
        yield from self._list("suspect", self._keys.suspect)
        for level in reversed(range(LEVELS)):
            yield from self._list(str(level), self._keys.ready[level])
        for page in score_pages(self._client, self._keys.delayed):
            for item, score in page:
                yield Spot("delayed", item, score=float(score))

    def _dead(self) -> Iterator[Spot]:
        start, count = "-", _PAGE
        while True:
            entries = ask(self._client, "XRANGE", self._keys.dead, start, "+", "COUNT", count)
            for entry_id, flat in entries:
                fields = dict(zip(flat[::2], flat[1::2], strict=True))
                whole = b"envelope" in fields
                item = fields.get(b"envelope", b"")
                yield Spot("dead", item, at=entry_id.decode(), whole=whole)
            if len(entries) < count:
                return
            count = _next_count([sum(map(len, flat)) for _, flat in entries])
            start = f"({entries[-1][0].decode()}"

    def _lease(self, lease_id: bytes) -> Iterator[Spot]:
        try:
            name = lease_id.decode("ascii")
        except UnicodeDecodeError:
            return
        for page in hash_pages(self._client, self._keys.lease(name)):
            for index, item in held_items([part for pair in page for part in pair]):
                yield Spot("lease", item, lease_id=name, at=index.decode("utf-8", "replace"))

    def _list(self, place: str, key: str) -> Iterator[Spot]:
        # Counted from the tail: what is received at the head meanwhile makes no other message be missed.
        seen, count = 0, _PAGE
        while True:
            items = ask(self._client, "LRANGE", key, -seen - count, -seen - 1)
            self._taken = 0
            for item in reversed(items):
                yield Spot(place, item)
            if len(items) < count:
                return
            seen += count - self._taken
            count = _next_count([len(item) for item in items])


def _next_count(sizes: list[int]) -> int:
    mean = sum(sizes) / len(sizes) + 1
    return max(1, min(_PAGE, int(_PAGE_BYTES / mean)))
