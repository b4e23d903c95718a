"""Reads a queue in bounded pages while others use it.

Items that stay in place are read. Items that move may be read twice or not at all, so damage is reported only after a
script has checked it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from qworker.client.inspect.walk import ListWalk, SortedSetWalk, StreamWalk
from qworker.engine.raw import raw
from qworker.engine.repair import Location
from qworker.wire.keys import LEVELS, QueueKeys
from qworker.wire.leases import held_items

if TYPE_CHECKING:
    from qworker.client.execute.sync import Client
    from qworker.engine.command import Word
    from qworker.store.nodes import Address

__all__ = ["StoredItems", "ask", "hash_pages", "pages_of_keys"]

_PAGE: Final = 500
_SCANNED: Final = 1000


def ask(client: Client, *words: Word) -> Any:
    """Send one plain command; returns its reply."""
    return client.execute(raw(*words))


def pages_of_keys(client: Client, pattern: str, node: Address) -> Iterator[list[bytes]]:
    """Yield the names of all keys of a server that match; 1,000 keys are visited per call."""
    cursor = b"0"
    while True:
        words = ("SCAN", cursor, "MATCH", pattern, "COUNT", _SCANNED)
        page: tuple[bytes, list[bytes]] = client.execute(raw(*words, decode=tuple, node=node))
        cursor, names = page
        yield names
        if cursor == b"0":
            return


def hash_pages(client: Client, key: str) -> Iterator[list[tuple[bytes, bytes]]]:
    """Yield the fields of a HASH with their values."""
    cursor = b"0"
    while True:
        cursor, flat = ask(client, "HSCAN", key, cursor, "COUNT", _PAGE)
        yield list(zip(flat[::2], flat[1::2], strict=True))
        if cursor == b"0":
            return


class StoredItems:
    """Yields all items of a queue, against the way of messages, so that few are met twice.

    Call `took_out` when you have taken the current item out of its list.
    """

    def __init__(self, client: Client, keys: QueueKeys) -> None:
        self._client = client
        self._keys = keys
        self._list: ListWalk | None = None

    def took_out(self) -> None:
        """Note that the current item is gone: items before it in its list have moved by one."""
        if self._list is not None:
            self._list.took()

    def __iter__(self) -> Iterator[Location]:
        keys, run = self._keys, self._client.run
        for entries in StreamWalk(keys.dead, _PAGE).pages(run):
            for entry_id, flat in entries:
                fields = dict(zip(flat[::2], flat[1::2], strict=True))
                whole = b"envelope" in fields
                item = fields.get(b"envelope", b"")
                yield Location("dead", item, at=entry_id.decode(), whole=whole)
        for leases in SortedSetWalk(keys.unacked, _PAGE).pages(run):
            for lease_id, _ in leases:
                yield from self._lease(lease_id)
        yield from self._in_list("suspect", keys.suspect)
        for level in reversed(range(LEVELS)):
            yield from self._in_list(str(level), keys.ready[level])
        for members in SortedSetWalk(keys.delayed, _PAGE).pages(run):
            for item, score in members:
                yield Location("delayed", item, score=float(score))

    def _lease(self, lease_id: bytes) -> Iterator[Location]:
        try:
            name = lease_id.decode("ascii")
        except UnicodeDecodeError:
            return
        for page in hash_pages(self._client, self._keys.lease(name)):
            for index, item in held_items([part for pair in page for part in pair]):
                yield Location("lease", item, lease_id=name, at=index.decode("utf-8", "replace"))

    def _in_list(self, place: str, key: str) -> Iterator[Location]:
        self._list = ListWalk(key, _PAGE)
        for items in self._list.pages(self._client.run):
            for item in items:
                yield Location(place, item)
        self._list = None
