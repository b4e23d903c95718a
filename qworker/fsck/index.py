"""The index of queues, and the shards of each queue: what it says of them, and what they say."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from qworker.client.commands import sharding as commands
from qworker.client.commands.index import announce, names, withdraw
from qworker.client.commands.inspecting import Inspection, inspect
from qworker.client.queue_ref import QueueRef
from qworker.client.registry import is_place, there
from qworker.client.removing import remove
from qworker.errors import BrokenQueueError, ServerError, concerns_the_call
from qworker.fsck.finding import Finding, Kind
from qworker.fsck.reading import ask
from qworker.wire.keys import QueueKeys, queues_key
from qworker.wire.names import split_place
from qworker.wire.shards import UNMARKED, WHOLE, Mark, Shards

if TYPE_CHECKING:
    from qworker.client.sync import Client

__all__ = ["check_index", "check_shards"]

#: Entries that an HSCAN looks at where others are sought than queues have, which may be large; and how many are named.
_PAGE: Final = 50
_NAMED: Final = 20
_AT_ONCE: Final = 500
#: A sender announces a queue behind its first message.
_ANNOUNCED_S: Final = 0.3
#: As in `lua/lib/shards.lua`.
_AHEAD_MS: Final = 3_600_000


def check_index(
    client: Client, namespace: str, queues: set[str], *, repair: bool
) -> Iterator[Finding]:
    """Compare the index with the queues that have keys."""
    index = queues_key(namespace)
    kind = ask(client, "TYPE", index).decode()
    if kind not in ("hash", "none"):
        # Queues are written into it again every minute by their senders, and by reapers.
        if repair:
            # On the same node of a Cluster, and within the rights to the namespace.
            aside = f"{namespace}:aside:{{{index}}}:{ask(client, 'TIME')[0].decode()}"
            ask(client, "RENAMENX", index, aside)
        yield Finding("", Kind.WRONG_TYPE, index, f"is a {kind}, must be a hash", repair)
        if not repair:
            return
    listed: set[str] = set()
    cursor, others = "0", 0
    while True:
        page = client.execute(names(namespace, cursor))
        found = set(filter(is_place, page.names))
        others += page.others + len(page.names) - len(found)
        listed |= found
        cursor = page.cursor
        if cursor == "0":
            break
    if others:
        yield from _bad_names(client, index, repair=repair)
    yield from _of_no_queue(client, namespace, sorted(listed - queues), repair=repair)
    missing = sorted(queues - listed)
    if missing:
        time.sleep(_ANNOUNCED_S)
    for name in missing:
        # Announced since, or gone since: looked at again.
        exists = ask(client, "EXISTS", *QueueKeys(namespace, name).all())
        if exists and not ask(client, "HEXISTS", index, name):
            if repair:
                client.execute(announce(namespace, [name]))
            text = "is not in the index: tools do not list it, nor reapers, until they find it by a walk"
            yield Finding(name, Kind.UNREGISTERED, "queues", text, repair)


def _bad_names(client: Client, index: str, *, repair: bool) -> Iterator[Finding]:
    cursor, number = b"0", 0
    while True:
        cursor, flat = ask(client, "HSCAN", index, cursor, "COUNT", _PAGE)
        bad = [field for field in flat[::2] if not is_place(field.decode("utf-8", "replace"))]
        if bad and repair:
            ask(client, "HDEL", index, *bad)
        for field in islice(bad, max(0, _NAMED - number)):
            where = f"queues {field[:80].decode('utf-8', 'replace')}"
            yield Finding("", Kind.BAD_NAME, where, "names no queue", repair)
        number += len(bad)
        if cursor == b"0":
            break
    if number > _NAMED:
        text = f"{number - _NAMED:,} more entries name no queue"
        yield Finding("", Kind.BAD_NAME, "queues", text, repair)


def _of_no_queue(
    client: Client, namespace: str, some: Sequence[str], *, repair: bool
) -> Iterator[Finding]:
    """Entries of queues of which there are no keys: removed ones, or what others wrote there."""
    present = client.run(there(namespace, [*some]))
    gone = [name for name in some if name not in present]
    if not gone:
        return
    if repair:
        for first in range(0, len(gone), _AT_ONCE):
            client.execute(withdraw(namespace, gone[first : first + _AT_ONCE]))
    more = f" and {len(gone) - _NAMED:,} more" if len(gone) > _NAMED else ""
    text = f"there are no keys of {', '.join(gone[:_NAMED])}{more}"
    yield Finding("", Kind.NO_QUEUE, "queues", text, repair)


def check_shards(
    client: Client, namespace: str, places: Iterable[str], *, repair: bool
) -> Iterator[Finding]:
    """Compare what queues say of their shards with what these say; `places` are those of which there are keys."""
    shards: dict[str, list[int]] = {}
    for place in places:
        name, number = split_place(place)
        numbers = shards.setdefault(name, [])
        if number:
            numbers.append(number)
    for name, numbers in sorted(shards.items()):
        try:
            yield from _Shards(client, namespace, name, sorted(numbers), repair=repair).check()
        except (BrokenQueueError, ServerError) as error:
            if not concerns_the_call(error):
                raise
            # A key of another type, which is a finding of its own.


class _Shards:
    """The shards of one queue."""

    def __init__(
        self, client: Client, namespace: str, name: str, numbers: Sequence[int], *, repair: bool
    ) -> None:
        self._client, self._repair = client, repair
        self._queue = QueueRef(namespace, name, client.ids)
        self._name, self._numbers = name, numbers

    def check(self) -> Iterator[Finding]:
        """Look at the queue, then at each shard."""
        written = ask(self._client, "HGET", self._queue.keys.meta, "shards")
        if written is None and not self._numbers:
            return
        seen = {number: self._inspect(number) for number in self._numbers}
        if not ask(self._client, "EXISTS", *self._queue.keys.all()) and not any(
            _holds_some(each) for each in seen.values()
        ):
            yield from self._leftovers(seen)
            return
        stands = self._client.execute(commands.read_shards(self._queue.keys))
        now_ms = self._now_ms()
        marks = {number: self._mark(number) for number in self._numbers}
        timely = {n: each for n, each in marks.items() if each.epoch <= now_ms + _AHEAD_MS}
        latest = max(timely.values(), key=lambda mark: mark.epoch, default=UNMARKED)
        problem = ""
        if written is not None and Shards.parse(written) is None:
            problem, stands = f"{ascii(written[:40])[2:-1]!r} says nothing of shards", WHOLE
        elif stands.epoch > now_ms + _AHEAD_MS:
            problem, stands = (
                "its division is dated later than now",
                Shards(stands.active, stands.kept),
            )
        elif latest.epoch > stands.epoch:
            problem = f"knows {stands.active} shards, and one of them of a later division into {latest.active}"
        if problem:
            if self._repair:
                stands = self._right(stands, latest)
            yield Finding(self._name, Kind.BAD_SHARDS, "meta shards", problem, self._repair)
        for number in self._numbers:
            yield from self._one(number, marks[number], seen[number], stands)

    def _right(self, stands: Shards, latest: Mark) -> Shards:
        """Let the latest division hold that a shard knows of; without any write anew what can be read."""
        keys = self._queue.keys
        if latest.epoch > stands.epoch:
            kept = max([stands.kept, *(number + 1 for number in self._numbers)])
            return self._client.execute(commands.adopt(keys, latest, kept))[1]
        if stands == WHOLE:
            ask(self._client, "HDEL", keys.meta, "shards")
            return WHOLE
        return self._client.execute(commands.divide(keys, stands, stands.active, stands.kept))[1]

    def _leftovers(self, seen: dict[int, Inspection]) -> Iterator[Finding]:
        """Shards of a queue that was removed while their node was away. A journal is history, and stays."""
        for number, each in seen.items():
            if each.journal_entries:
                continue
            shard = self._queue.shard_of(number)
            if self._repair:
                self._client.run(remove(shard))
            text = f"queue {self._name} is gone, and this was left of it; it holds no message"
            yield Finding(shard.keys.queue, Kind.LEFTOVER, "meta", text, self._repair)

    def _one(self, number: int, mark: Mark, seen: Inspection, stands: Shards) -> Iterator[Finding]:
        shard = self._queue.shard_of(number)
        place = shard.keys.queue
        if number >= stands.kept and _holds_some(seen):
            if self._repair:
                found = self._client.execute(commands.read_shards(self._queue.keys))
                kept = max(found.kept, number + 1)
                self._client.execute(commands.divide(self._queue.keys, found, found.active, kept))
            text = f"has messages, and queue {self._name} is known to have {stands.kept} shards"
            yield Finding(place, Kind.BAD_SHARDS, "meta shard", text, self._repair)
        elif mark.open != (number < stands.active) and mark.epoch < stands.epoch:
            if self._repair:
                self._client.execute(commands.mark(shard.keys, stands))
            text = (
                "takes messages, and its queue lets it run empty"
                if mark.open
                else "takes no message, and its queue sends there"
            )
            yield Finding(place, Kind.BAD_SHARDS, "meta shard", text, self._repair)

    def _inspect(self, number: int) -> Inspection:
        return self._client.execute(inspect(self._queue.shard_of(number).keys))

    def _mark(self, number: int) -> Mark:
        return self._client.execute(commands.read_mark(self._queue.shard_of(number).keys))

    def _now_ms(self) -> int:
        # That of the queue's own node, by which its divisions are dated.
        return self._client.execute(inspect(self._queue.keys)).now_ms


def _holds_some(seen: Inspection) -> bool:
    return bool(seen.stored or seen.dead or seen.leases)
