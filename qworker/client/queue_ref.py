"""A queue as its operations share it: keyring, ids, unreturned leases, and its entry in the index of queues."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Protocol

from msgspec import structs

from qworker.client.divided import REFRESH_S, DividedQueue
from qworker.client.message import Message, Receipt, Stored
from qworker.client.plan import Plan, Trips
from qworker.client.shard_state import ShardState
from qworker.client.unreturned import Unreturned
from qworker.engine.attempt import GIVE_UP_S
from qworker.engine.command import Brief, Together
from qworker.engine.index import announce
from qworker.engine.options import DEFAULT_MAXSIZE, LARGEST_MAXSIZE
from qworker.engine.raw import raw
from qworker.engine.reap import START
from qworker.engine.replies import group_in_shards
from qworker.errors import InvalidOptionError
from qworker.wire.codec import check_size
from qworker.wire.envelope import Envelope
from qworker.wire.ids import IdSource
from qworker.wire.keyring import NO_KEYS, Keyring
from qworker.wire.names import MAX_SHARDS
from qworker.wire.numbers import whole

__all__ = ["HasRef", "QueueRef"]


class QueueRef(DividedQueue):
    """One queue, or one shard of it, as its operations see it; `DividedQueue` knows its shards.

    `keyring` signs and encrypts sent messages, and opens received and shown ones. `unreturned`: leases of its client
    that no caller has seen. Calls are given up after `give_up_s`.
    """

    def __init__(
        self,
        namespace: str,
        queue: str,
        ids: IdSource,
        *,
        keyring: Keyring = NO_KEYS,
        unreturned: Unreturned | None = None,
        give_up_s: float = GIVE_UP_S,
    ) -> None:
        super().__init__(namespace, queue)
        self.ids = ids
        self.keyring = keyring
        self.unreturned = Unreturned() if unreturned is None else unreturned
        self.give_up_s = give_up_s
        self.state = ShardState()
        #: Whether the keyring holds any key; stored since every message asks.
        self.protected = bool(keyring)
        #: For a receiver that reaps: when it prunes again, by the monotonic clock, where its next slice begins, and the
        #: walk that forgets tombstones, if one has begun; a pass takes it out while it makes the next trip.
        self.prune_at_s = float("-inf")
        self.prune_from = START
        self.walking: list[Trips[int]] = []
        self._others: dict[int, QueueRef] = {}
        self._announced = float("-inf")

    def shard(self, number: int) -> QueueRef:
        """Return the shard of this number: the queue itself if it is one shard, or has no others."""
        if self.single or (number == 0 and not self.shards.divided):
            return self
        return self.shard_of(number)

    def shard_of(self, number: int) -> QueueRef:
        """Return the shard of this number alone, whether or not the queue is known to have it."""
        if number not in self._others:
            self._others[number] = self.sibling(f"{self.keys.name}/{number}")
        return self._others[number]

    def sibling(self, name: str) -> QueueRef:
        """Return another queue (or shard) of the namespace, seen as this one is."""
        return QueueRef(
            self.namespace,
            name,
            self.ids,
            keyring=self.keyring,
            unreturned=self.unreturned,
            give_up_s=self.give_up_s,
        )

    def every_shard(self, *, refresh: bool = False) -> Plan[list[QueueRef]]:
        """Return all shards that may hold messages, in order; read once a minute, or now with `refresh`."""
        if refresh or self.stale:
            yield from self.look_up(sure=refresh)
        return [self.shard(number) for number in range(self.shards.kept)]

    def journals(self) -> Plan[list[QueueRef]]:
        """Return all shards of `every_shard`, and those that were given up and still have a journal.

        One trip more if the queue was ever divided.
        """
        shards = yield from self.every_shard()
        if self.single or not self.shards.epoch:
            return shards
        others = [self.shard_of(number) for number in range(self.shards.kept, MAX_SHARDS)]
        there: list[object] = yield Together(
            [raw("EXISTS", shard.keys.journal, decode=int) for shard in others]
        )
        # In a Cluster the node of a shard that may never have been there can be away.
        return shards + [shard for shard, one in zip(others, there, strict=True) if one == 1]

    def check_undivided(self, group: str) -> Plan[None]:
        """Raise `InvalidOptionError` if the queue is divided: for a message of a group that no sender will place."""
        if self.stale:
            yield from self.look_up()
        if self.shards.active > 1:
            problem = group_in_shards(group, self.keys.queue, self.shards.active)
            raise InvalidOptionError("group", *problem)

    def protect(self, message_id: str, body: bytes, flags: dict[str, str]) -> bytes:
        """Encrypt and sign the body of a message; returns the stored form, and sets its flags."""
        stored = self.keyring.protect(self.namespace, self.keys.queue, message_id, body, flags)
        check_size(stored, LARGEST_MAXSIZE)
        return stored

    def maxsize(self) -> Plan[int]:
        """Read the queue's attribute maxsize, the largest body in bytes."""
        stored: bytes | None = yield raw("HGET", self.keys.meta, "maxsize")
        return whole(stored) or DEFAULT_MAXSIZE

    def opened(self, message: Message, item: bytes) -> Message:
        """Verify and decrypt a received message, stored as `item`. Raises `ProtectionError`."""
        envelope = Envelope.parse(self.keyring.open(self.namespace, self.keys.queue, item))
        return message if envelope is None else structs.replace(message, body=envelope.body)

    def stored(
        self, state: str, item: bytes, at_ms: int | None = None, receipt: Receipt | None = None
    ) -> Stored:
        """Read an item to show it, see `shown`."""
        return self.shown(Stored.of(self.keys.queue, state, item, at_ms, receipt))

    def shown(self, message: Stored) -> Stored:
        """Open a protected message to show it; `closed` says why if it cannot be opened."""
        if not (self.protected or "e" in message.flags):
            return message
        item, problem = self.keyring.try_open(self.namespace, self.keys.queue, message.item)
        envelope = Envelope.parse(item)
        body = message.body if envelope is None else envelope.body
        return replace(message, body=body, closed=problem)

    # -- the index -----------------------------------------------------------------------------

    @property
    def unannounced(self) -> bool:
        """Whether the index needs the queue again: it was not written there for a minute."""
        return not self.single and time.monotonic() - self._announced >= REFRESH_S

    def announce(self) -> Plan[None]:
        """Write the queue into the index, at most once a minute; a failure is ignored.

        Reapers and tools find queues by the index, or by a scan of the keys; sends and receives do not need it.
        """
        if self.unannounced:
            self._announced = time.monotonic()
            yield Brief(
                announce(self.namespace, self.shards.names(self.keys.name)), index_write=True
            )


class HasRef(Protocol):
    """A queue, sync or async."""

    @property
    def ref(self) -> QueueRef:
        """Its state for operations."""
