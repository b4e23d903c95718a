"""Compares the index with the queues, and each queue's list of shards with the shards."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from qworker.client.manage.remove import remove
from qworker.client.namespace.queues import existing, is_shard_name
from qworker.client.queue_ref import QueueRef
from qworker.engine import shards as commands
from qworker.engine.index import announce, names, withdraw
from qworker.engine.inspect import Inspection, inspect
from qworker.errors import BrokenQueueError, ServerError, concerns_the_call
from qworker.fsck.damage import Damage, DamageKind
from qworker.fsck.reading import ask
from qworker.wire.keys import QueueKeys, queues_key
from qworker.wire.names import split_shard_name
from qworker.wire.shards import UNMARKED, WHOLE, ReshardMark, Shards

if TYPE_CHECKING:
    from qworker.client.execute.sync import Client
    from qworker.fsck.unread import Unread

__all__ = ["check_index", "check_shards"]

#: Entries of an HSCAN for invalid names, which may be large; and entries that a text lists.
_PAGE: Final = 50
_LISTED: Final = 20
_AT_ONCE: Final = 500
#: A sender announces a queue after its first message.
_ANNOUNCED_S: Final = 0.3
#: As in `lua/lib/shards.lua`.
_AHEAD_MS: Final = 3_600_000


def check_index(
    client: Client, namespace: str, queues: set[str], unread: Unread, *, repair: bool
) -> Iterator[Damage]:
    """Compare the index with the queues that have keys; asks for those that have none."""
    index = queues_key(namespace)
    kind = ask(client, "TYPE", index).decode()
    if kind not in ("hash", "none"):
        # Senders and reapers write their queues into a new one within a minute.
        if repair:
            # On the same node of a Cluster, and within the rights to the namespace.
            aside = f"{namespace}:aside:{{{index}}}:{ask(client, 'TIME')[0].decode()}"
            ask(client, "RENAMENX", index, aside)
        yield Damage("", DamageKind.WRONG_TYPE, index, f"is a {kind}, must be a hash", repair)
        if not repair:
            return
    listed: set[str] = set()
    cursor, others = "0", 0
    while True:
        page = client.execute(names(namespace, cursor))
        valid = set(filter(is_shard_name, page.names))
        others += page.others + len(page.names) - len(valid)
        listed |= valid
        cursor = page.cursor
        if cursor == "0":
            break
    if others:
        yield from _bad_names(client, index, repair=repair)
    unread.ask_with_shards(listed - queues)
    without = sorted(unread.readable(listed - queues))
    yield from _without_keys(client, namespace, without, repair=repair)
    missing = sorted(unread.readable(queues - listed))
    if missing:
        time.sleep(_ANNOUNCED_S)
    for name in missing:
        # It may have been announced or removed since.
        exists = ask(client, "EXISTS", *QueueKeys(namespace, name).all())
        if exists and not ask(client, "HEXISTS", index, name):
            if repair:
                client.execute(announce(namespace, [name]))
            text = (
                "is not in the index: tools and reapers do not see it until a reaper scans all keys"
            )
            yield Damage(name, DamageKind.UNREGISTERED, "queues", text, repair)


def _bad_names(client: Client, index: str, *, repair: bool) -> Iterator[Damage]:
    cursor, number = b"0", 0
    while True:
        cursor, flat = ask(client, "HSCAN", index, cursor, "COUNT", _PAGE)
        bad = [field for field in flat[::2] if not is_shard_name(field.decode("utf-8", "replace"))]
        if bad and repair:
            ask(client, "HDEL", index, *bad)
        for field in islice(bad, max(0, _LISTED - number)):
            where = f"queues {field[:80].decode('utf-8', 'replace')}"
            yield Damage("", DamageKind.BAD_NAME, where, "is not a name of a queue", repair)
        number += len(bad)
        if cursor == b"0":
            break
    if number > _LISTED:
        text = f"{number - _LISTED:,} more entries are not names of queues"
        yield Damage("", DamageKind.BAD_NAME, "queues", text, repair)


def _without_keys(
    client: Client, namespace: str, queues: Sequence[str], *, repair: bool
) -> Iterator[Damage]:
    """Report entries of queues without keys, which were removed or written by others."""
    present = client.run(existing(namespace, [*queues]))
    gone = [name for name in queues if name not in present]
    if not gone:
        return
    if repair:
        for first in range(0, len(gone), _AT_ONCE):
            client.execute(withdraw(namespace, gone[first : first + _AT_ONCE]))
    more = f" and {len(gone) - _LISTED:,} more" if len(gone) > _LISTED else ""
    text = f"{', '.join(gone[:_LISTED])}{more} have no keys"
    yield Damage("", DamageKind.NO_QUEUE, "queues", text, repair)


def check_shards(
    client: Client, namespace: str, names: Iterable[str], unread: Unread, *, repair: bool
) -> Iterator[Damage]:
    """Compare the queues' lists of shards with the shards; `names` are the queues and shards that have keys.

    A queue of which a part cannot be read is left out: that part may know of a later division.
    """
    shards: dict[str, list[int]] = {}
    for shard in names:
        name, number = split_shard_name(shard)
        numbers = shards.setdefault(name, [])
        if number:
            numbers.append(number)
    for name, numbers in sorted(shards.items()):
        if unread.has_part_of(name):
            continue
        try:
            yield from _Shards(client, namespace, name, sorted(numbers), repair=repair).check()
        except (BrokenQueueError, ServerError) as error:
            if not concerns_the_call(error) and not unread.note(name, error):
                raise
            # A key of another type, which `check_keys` reports.


class _Shards:
    """The shards of one queue."""

    def __init__(
        self, client: Client, namespace: str, name: str, numbers: Sequence[int], *, repair: bool
    ) -> None:
        self._client, self._repair = client, repair
        self._queue = QueueRef(namespace, name, client.ids)
        self._name, self._numbers = name, numbers

    def check(self) -> Iterator[Damage]:
        """Check the queue, then each shard."""
        written = ask(self._client, "HGET", self._queue.keys.meta, "shards")
        if written is None and not self._numbers:
            return
        seen = {number: self._inspect(number) for number in self._numbers}
        if not ask(self._client, "EXISTS", *self._queue.keys.all()) and not any(
            _holds_messages(shard) for shard in seen.values()
        ):
            yield from self._leftovers(seen)
            return
        division = self._client.execute(commands.read_shards(self._queue.keys))
        now_ms = self._now_ms()
        marks = {number: self._mark(number) for number in self._numbers}
        timely = [mark for mark in marks.values() if mark.epoch <= now_ms + _AHEAD_MS]
        latest = max(timely, key=lambda mark: mark.epoch, default=UNMARKED)
        problem = ""
        if written is not None and Shards.parse(written) is None:
            problem, division = f"{ascii(written[:40])[2:-1]!r} is not a list of shards", WHOLE
        elif division.epoch > now_ms + _AHEAD_MS:
            problem, division = (
                "its division is dated in the future",
                Shards(division.active, division.kept),
            )
        elif latest.epoch > division.epoch:
            problem = f"lists {division.active} shards, and one of them a later division into {latest.active}"
        if problem:
            if self._repair:
                division = self._right(division, latest)
            yield Damage(self._name, DamageKind.BAD_SHARDS, "meta shards", problem, self._repair)
        for number in self._numbers:
            yield from self._one(number, marks[number], seen[number], division)

    def _right(self, division: Shards, latest: ReshardMark) -> Shards:
        """Keep the latest division that a shard knows, else the readable part of the queue's own."""
        keys = self._queue.keys
        if latest.epoch > division.epoch:
            kept = max([division.kept, *(number + 1 for number in self._numbers)])
            return self._client.execute(commands.adopt(keys, latest, kept))[1]
        if division == WHOLE:
            ask(self._client, "HDEL", keys.meta, "shards")
            return WHOLE
        return self._client.execute(
            commands.divide(keys, division, division.active, division.kept)
        )[1]

    def _leftovers(self, seen: dict[int, Inspection]) -> Iterator[Damage]:
        """Report shards of a queue that was removed while their node was away. A journal is history, and stays."""
        for number, inspected in seen.items():
            if inspected.journal_entries:
                continue
            shard = self._queue.shard_of(number)
            if self._repair:
                self._client.run(remove(shard))
            text = f"queue {self._name} is gone and left this shard, which holds no message"
            yield Damage(shard.keys.queue, DamageKind.LEFTOVER, "meta", text, self._repair)

    def _one(
        self, number: int, mark: ReshardMark, seen: Inspection, division: Shards
    ) -> Iterator[Damage]:
        shard = self._queue.shard_of(number)
        name = shard.keys.queue
        if number >= division.kept and _holds_messages(seen):
            if self._repair:
                now = self._client.execute(commands.read_shards(self._queue.keys))
                kept = max(now.kept, number + 1)
                self._client.execute(commands.divide(self._queue.keys, now, now.active, kept))
            text = f"has messages, but queue {self._name} lists {division.kept} shards"
            yield Damage(name, DamageKind.BAD_SHARDS, "meta shard", text, self._repair)
        elif mark.open != (number < division.active) and mark.epoch < division.epoch:
            if self._repair:
                self._client.execute(commands.mark(shard.keys, division))
            text = (
                "accepts messages, but its queue drains it"
                if mark.open
                else "accepts no messages, but its queue sends there"
            )
            yield Damage(name, DamageKind.BAD_SHARDS, "meta shard", text, self._repair)

    def _inspect(self, number: int) -> Inspection:
        return self._client.execute(inspect(self._queue.shard_of(number).keys))

    def _mark(self, number: int) -> ReshardMark:
        return self._client.execute(commands.read_mark(self._queue.shard_of(number).keys))

    def _now_ms(self) -> int:
        # The clock of the queue's own node, which dates its divisions.
        return self._client.execute(inspect(self._queue.keys)).now_ms


def _holds_messages(seen: Inspection) -> bool:
    return bool(seen.stored or seen.dead or seen.leases)
