"""What the operations on a queue know of it."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import count
from random import randrange
from typing import Final, Protocol

from msgspec import structs

from qworker.client.commands.command import GIVE_UP_S, Command
from qworker.client.commands.reaping import START
from qworker.client.commands.registering import register, registered
from qworker.client.message import Message, Receipt, Stored
from qworker.client.options import DEFAULT_MAXSIZE, LARGEST_MAXSIZE
from qworker.client.place_state import PlaceState
from qworker.client.plan import Plan
from qworker.client.unreturned import Unreturned
from qworker.wire.codec import check_size
from qworker.wire.envelope import Envelope
from qworker.wire.ids import IdSource
from qworker.wire.keyring import NO_KEYS, Keyring
from qworker.wire.keys import QueueKeys, queues_key
from qworker.wire.names import MAX_SHARDS, check_namespace, check_place
from qworker.wire.numbers import whole
from qworker.wire.shards import WHOLE, Shards

__all__ = ["HasRef", "QueueRef"]

#: Seconds after which a client that uses a queue writes it into the registry again, and learns of its shards.
_ANNOUNCE_S: Final = 60.0


class QueueRef:
    """One queue, or one shard of it, as its operations see it.

    `keyring` signs and encrypts what is sent, and
    opens what is received or looked at. `shards`: how the queue is divided, as it was told last. `unreturned` are the
    leases of its client that nobody has seen; calls of it are given up after `give_up_s`.
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
        self.keys = QueueKeys(check_namespace(namespace), check_place(queue))
        self.ids = ids
        self.keyring = keyring
        self.unreturned = Unreturned() if unreturned is None else unreturned
        self.give_up_s = give_up_s
        self.state = PlaceState()
        #: Whether it holds any key. Asked for every message, so it is written down.
        self.protected = bool(keyring)
        self.namespace = namespace
        self.registry = queues_key(namespace)
        #: One shard, given as such: its operations do not go to others.
        self.single = "/" in queue
        self.shards = WHOLE
        #: Counts receives and sends, so that shards take turns; clients begin with different ones.
        self.turns = count(randrange(MAX_SHARDS))  # noqa: S311 - spreading, not secrecy
        #: When a receiver that reaps begins to prune again, by the monotonic clock, and where its next slice begins.
        self.prune_at_s = float("-inf")
        self.prune_from = START
        self._others: dict[int, QueueRef] = {}
        self._announced = float("-inf")
        self._looked = float("-inf")

    def shard(self, number: int) -> QueueRef:
        """The shard of this number; a single one, and a queue that has no others, is its own."""
        if self.single or (number == 0 and not self.shards.divided):
            return self
        return self.shard_of(number)

    def shard_of(self, number: int) -> QueueRef:
        """The shard of this number alone, whether or not the queue is known to have it."""
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
        """Encrypt and sign the body of a message; returns it as it is stored, and sets its flags."""
        stored = self.keyring.protect(self.namespace, self.keys.queue, message_id, body, flags)
        check_size(stored, LARGEST_MAXSIZE)
        return stored

    def maxsize(self) -> Plan[int]:
        """Ask for the largest body, in bytes: the queue's attribute says it, and nothing that was known before."""
        stored: bytes | None = yield Command(
            None, (), ("HGET", self.keys.meta, "maxsize"), _as_it_is
        )
        return whole(stored) or DEFAULT_MAXSIZE

    def opened(self, message: Message, item: bytes) -> Message:
        """Verify and decrypt a received message, given as it is stored. Raises `ProtectionError`."""
        envelope = Envelope.parse(self.keyring.open(self.namespace, self.keys.queue, item))
        return message if envelope is None else structs.replace(message, body=envelope.body)

    def stored(
        self, state: str, item: bytes, at_ms: int | None = None, receipt: Receipt | None = None
    ) -> Stored:
        """Read an item to show it: opened where it can be, with `closed` saying why where it cannot."""
        return self.look(Stored.of(self.keys.queue, state, item, at_ms, receipt))

    def look(self, found: Stored) -> Stored:
        """Open a message that is shown, where it is protected."""
        if not (self.protected or "e" in found.flags):
            return found
        item, problem = self.keyring.look(self.namespace, self.keys.queue, found.item)
        envelope = Envelope.parse(item)
        body = found.body if envelope is None else envelope.body
        return replace(found, body=body, closed=problem)

    def announce(self) -> Plan[None]:
        """Write the queue into the registry, and learn how it is divided, at most once a minute."""
        now = time.monotonic()
        if now - self._announced >= _ANNOUNCE_S and not self.single:
            self.shards = yield register(self.registry, self.keys.name, self.shards)
            self._announced = self._looked = now

    def learn(self, shards: Shards) -> None:
        """Take what was read of the registry elsewhere."""
        if shards.epoch >= self.shards.epoch:
            self.shards = shards
        self._looked = time.monotonic()

    def every_shard(self, *, anew: bool = False) -> Plan[list[QueueRef]]:
        """All shards that may hold messages, the first one first; looked up at most once a minute, or `anew`."""
        now = time.monotonic()
        if (anew or now - self._looked >= _ANNOUNCE_S) and not self.single:
            self.learn((yield registered(self.registry, self.keys.name)))
        return [self.shard(number) for number in range(self.shards.kept)]

    def divide(self, shards: Shards) -> Plan[Shards]:
        """Tell the registry how the queue is divided from now on; returns what stands there."""
        self.shards = yield register(self.registry, self.keys.name, shards)
        self._announced = self._looked = time.monotonic()
        return self.shards

    def doubt(self) -> None:
        """Look up the shards again before the next use: they are others by now."""
        self._announced = self._looked = float("-inf")

    def forget(self) -> Plan[None]:
        """Take the queue out of the registry with all its shards; the next use writes it again."""
        names = [self.keys.queue] if self.single else self.shards.names(self.keys.name)
        yield Command(None, (), ("HDEL", self.registry, *names), int)
        self.shards = WHOLE
        self.doubt()


def _as_it_is(reply: bytes | None) -> bytes | None:
    return reply


class HasRef(Protocol):
    """A queue, sync or async."""

    @property
    def ref(self) -> QueueRef:
        """What operations know of it."""
