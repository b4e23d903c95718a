"""The state of a queue that its operations share: keys, shards, keyring and unreturned leases."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from itertools import count
from random import randrange
from typing import Final, Protocol

from msgspec import structs

from qworker.client.execute.backoff import Backoff
from qworker.client.message import Message, Receipt, Stored
from qworker.client.plan import Plan
from qworker.client.shard_state import ShardState
from qworker.client.unreturned import Unreturned
from qworker.engine.command import GIVE_UP_S, Brief
from qworker.engine.index import announce
from qworker.engine.options import DEFAULT_MAXSIZE, LARGEST_MAXSIZE
from qworker.engine.raw import raw
from qworker.engine.reap import START
from qworker.engine.shards import adopt, common_meta, read_mark, read_shards
from qworker.engine.shards import mark as write_mark
from qworker.errors import ServerError, ShardDrainingError, server_refused
from qworker.wire.codec import check_size
from qworker.wire.envelope import Envelope
from qworker.wire.ids import IdSource
from qworker.wire.keyring import NO_KEYS, Keyring
from qworker.wire.keys import QueueKeys
from qworker.wire.names import MAX_SHARDS, check_namespace, check_queue_or_shard, split_shard_name
from qworker.wire.numbers import whole
from qworker.wire.shards import UNMARKED, WHOLE, Mark, Shards

__all__ = ["HasRef", "QueueRef"]

#: Seconds after which a client writes a queue that it uses into the index again, and reads its shards.
_ANNOUNCE_S: Final = 60.0
#: Seconds for which sends try other shards first after a shard failed.
_LEFT_OUT_S: Final = 5.0


class QueueRef:
    """One queue, or one shard of it, as its operations see it.

    `keyring` signs and encrypts sent messages, and opens received and shown ones. `shards`: the shards of the queue as
    last read. `unreturned`: leases of its client that no caller has seen. Calls are given up after `give_up_s`.
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
        self.keys = QueueKeys(check_namespace(namespace), check_queue_or_shard(queue))
        self.ids = ids
        self.keyring = keyring
        self.unreturned = Unreturned() if unreturned is None else unreturned
        self.give_up_s = give_up_s
        self.state = ShardState()
        #: Whether the keyring holds any key; stored since every message asks.
        self.protected = bool(keyring)
        self.namespace = namespace
        #: Whether it is one shard, opened by its own name: its operations do not go to others.
        self.single = "/" in queue
        self.shards = WHOLE
        #: Counts receives and sends, so that shards take turns; clients begin with different shards.
        self.turns = count(randrange(MAX_SHARDS))  # noqa: S311 - spreading, not secrecy
        #: For a receiver that reaps: when it prunes again, by the monotonic clock, and where its next slice begins.
        self.prune_at_s = float("-inf")
        self.prune_from = START
        self._others: dict[int, QueueRef] = {}
        self._announced = float("-inf")
        self._read = float("-inf")
        #: Shards that failed a send lately.
        self._failed_sends: dict[int, Backoff] = {}

    def shard(self, number: int) -> QueueRef:
        """Return the shard of this number: the queue itself if it is one shard, or has no others."""
        if self.single or (number == 0 and not self.shards.divided):
            return self
        return self.shard_of(number)

    def shard_of(self, number: int) -> QueueRef:
        """Return the shard of this number alone, whether or not the queue is known to have it."""
        if number not in self._others:
            self._others[number] = QueueRef(
                self.namespace,
                f"{self.keys.name}/{number}",
                self.ids,
                keyring=self.keyring,
                unreturned=self.unreturned,
                give_up_s=self.give_up_s,
            )
        return self._others[number]

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
        """Whether the queue is to be written into the index: it was not for a minute."""
        return not self.single and time.monotonic() - self._announced >= _ANNOUNCE_S

    def announce(self) -> Plan[None]:
        """Write the queue into the index, at most once a minute; a failure is ignored.

        Reapers and tools find queues by the index, or by a scan of the keys; sends and receives do not need it.
        """
        if self.unannounced:
            self._announced = time.monotonic()
            yield Brief(
                announce(self.namespace, self.shards.names(self.keys.name)), index_write=True
            )

    # -- shards --------------------------------------------------------------------------------

    @property
    def whole(self) -> bool:
        """Whether it is a queue, not a shard of one, and is not known to have other shards."""
        return not self.single and self.shards.kept == 1

    @property
    def stale(self) -> bool:
        """Whether the shards were read a minute ago or earlier."""
        return time.monotonic() - self._read >= _ANNOUNCE_S

    def learn(self, shards: Shards) -> None:
        """Take the shards as the queue has them now."""
        self.shards = shards
        self._read = time.monotonic()

    def learn_from_send(self, shards: Shards) -> None:
        """Take the shards from the reply of a send; if they are older than the known ones, the next use reads them."""
        if shards.epoch < self.shards.epoch:
            self.doubt()
        else:
            self.learn(shards)

    def doubt(self) -> None:
        """Read the shards again before the next use."""
        self._read = float("-inf")

    def look_up(self, *, sure: bool = True) -> Plan[None]:
        """Read how many shards the queue has.

        If the queue knows of fewer changes than this client (a failover lost the last one, or the queue was removed),
        the marks of its shards decide. With `sure` False, and shards that are known, its node may be away: the known
        shards then hold for another minute.
        """
        if self.single:
            return
        self._read = time.monotonic()
        shards: Shards | None
        try:
            if sure or not self.shards.divided:
                shards = yield read_shards(self.keys)
            else:
                shards = yield Brief(read_shards(self.keys))
        except ServerError as error:
            if not server_refused(error):
                raise
            return  # meta holds another type: the next call raises that.
        if shards is not None:
            if shards.epoch < self.shards.epoch:
                shards = yield from self.healed(shards, range(1, self.shards.kept))
            self.learn(shards)

    def healed(self, shards: Shards, numbers: Iterable[int]) -> Plan[Shards]:
        """Restore the shards that a queue has forgotten from the marks of the shards `numbers`; returns the result.

        `shards`: what the queue has stored. A removed shard has no mark.
        """
        marks: dict[int, Mark] = {}
        kept = shards.kept
        for number in numbers:
            mark: Mark | None = yield Brief(read_mark(self.shard_of(number).keys))
            if mark is not None and mark != UNMARKED:
                kept = max(kept, number + 1)
                marks[mark.epoch] = mark
        for epoch in sorted(marks, reverse=True):
            if epoch <= shards.epoch:
                break
            # The server ignores a mark from the future.
            changed, shards = yield adopt(self.keys, marks[epoch], kept)
            if changed:
                break
        return shards

    def refused(self, error: ShardDrainingError) -> Plan[None]:
        """After a shard refused a send, make sure that the next attempt reaches a shard that takes it.

        A shard with a newer mark than the queue restores what the queue has forgotten; one with an older mark is
        opened.
        """
        number = split_shard_name(error.shard)[1]
        shards: Shards = yield read_shards(self.keys)
        changed = False
        if error.epoch > shards.epoch:
            closed = Mark(active=error.active, epoch=error.epoch)
            changed, shards = yield adopt(self.keys, closed, max(number + 1, shards.kept))
        if not changed and number < shards.active:
            attributes: dict[str, str] = yield common_meta(self.keys)
            yield write_mark(self.shard_of(number).keys, shards, attributes)
        self.learn(shards)

    def every_shard(self, *, refresh: bool = False) -> Plan[list[QueueRef]]:
        """Return all shards that may hold messages, in order; read once a minute, or now with `refresh`."""
        if refresh or self.stale:
            yield from self.look_up(sure=refresh)
        return [self.shard(number) for number in range(self.shards.kept)]

    def in_turn(self) -> list[int]:
        """Return the shards that take messages, starting with another one each time; those that failed lately last."""
        active = self.shards.active
        if active == 1:
            return [0]
        first = next(self.turns) % active
        turn = [(first + offset) % active for offset in range(active)]
        if self._failed_sends:
            now = time.monotonic()
            turn.sort(key=lambda number: self._is_left_out(number, now))
        return turn

    def leave_out(self, number: int) -> None:
        """Make sends try other shards first for a few seconds."""
        backoff = self._failed_sends.setdefault(number, Backoff(_LEFT_OUT_S, _LEFT_OUT_S))
        backoff.failed(time.monotonic())

    def _is_left_out(self, number: int, now: float) -> bool:
        backoff = self._failed_sends.get(number)
        return backoff is not None and backoff.left_s(now) > 0


class HasRef(Protocol):
    """A queue, sync or async."""

    @property
    def ref(self) -> QueueRef:
        """Its state for operations."""
