"""What the operations on a queue know of it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from itertools import count
from random import randrange
from typing import Final, Protocol

from msgspec import structs

from qworker.client.commands.command import GIVE_UP_S, Brief, Command
from qworker.client.commands.index import announce
from qworker.client.commands.reaping import START
from qworker.client.commands.sharding import adopt, common_meta, mark, read_mark, read_shards
from qworker.client.message import Message, Receipt, Stored
from qworker.client.options import DEFAULT_MAXSIZE, LARGEST_MAXSIZE
from qworker.client.place_state import PlaceState
from qworker.client.plan import Plan
from qworker.client.unreturned import Unreturned
from qworker.errors import ServerError, ShardDrainingError
from qworker.wire.codec import check_size
from qworker.wire.envelope import Envelope
from qworker.wire.ids import IdSource
from qworker.wire.keyring import NO_KEYS, Keyring
from qworker.wire.keys import QueueKeys
from qworker.wire.names import MAX_SHARDS, check_namespace, check_place, split_place
from qworker.wire.numbers import whole
from qworker.wire.shards import UNMARKED, WHOLE, Mark, Shards

__all__ = ["HasRef", "QueueRef"]

#: Seconds after which a client that uses a queue writes it into the index again, and looks up its shards.
_ANNOUNCE_S: Final = 60.0
#: Seconds for which sends leave out a shard that could not take one, while others can.
_AWAY_S: Final = 5.0


class QueueRef:
    """One queue, or one shard of it, as its operations see it.

    `keyring` signs and encrypts what is sent, and opens what is received or looked at. `shards`: how the queue is
    divided, as the queue itself said last. `unreturned` are the leases of its client that nobody has seen; calls of it
    are given up after `give_up_s`.
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
        #: Shards that could not take a send lately, and until when they are left out.
        self._away: dict[int, float] = {}

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

    # -- the index -----------------------------------------------------------------------------

    def announce(self) -> Plan[None]:
        """Write the queue into the index, at most once a minute; that may fail, and then nobody is told.

        Reapers and tools find queues by the index, or by a walk through the keys; what is sent and received goes by
        the queue itself.
        """
        now = time.monotonic()
        if now - self._announced >= _ANNOUNCE_S and not self.single:
            self._announced = now
            places = self.shards.names(self.keys.name)
            yield Brief(announce(self.namespace, places), quiet=True)

    # -- shards --------------------------------------------------------------------------------

    @property
    def stale(self) -> bool:
        """Whether it is a minute or more since the queue said how it is divided."""
        return time.monotonic() - self._looked >= _ANNOUNCE_S

    def learn(self, shards: Shards) -> None:
        """Take what the queue itself said, whatever was known before."""
        self.shards = shards
        self._looked = time.monotonic()

    def told(self, shards: Shards) -> None:
        """Take what came with the reply of a send. Where it is older than what was known, the next use looks it up."""
        if shards.epoch < self.shards.epoch:
            self.doubt()
        else:
            self.learn(shards)

    def doubt(self) -> None:
        """Look up the shards again before the next use: they may be others by now."""
        self._looked = float("-inf")

    def look_up(self, *, sure: bool = True) -> Plan[None]:
        """Ask the queue how it is divided.

        Where it knows of an earlier division than this client (a failover has lost the later one, or the queue was
        removed), its shards are asked, and decide. With `sure` False, and a division that is known, its node may be
        away: what is known holds for another minute then.
        """
        if self.single:
            return
        self._looked = time.monotonic()
        found: Shards | None
        try:
            if sure or not self.shards.divided:
                found = yield read_shards(self.keys)
            else:
                found = yield Brief(read_shards(self.keys))
        except ServerError as error:
            if type(error) is not ServerError:
                raise
            return  # meta holds another type: what comes next says so
        if found is not None:
            if found.epoch < self.shards.epoch:
                found = yield from self.healed(found, range(1, self.shards.kept))
            self.learn(found)

    def healed(self, found: Shards, numbers: Iterable[int]) -> Plan[Shards]:
        """Let the queue take back a division that it has forgotten and one of its shards remembers; returns what holds.

        `found` is what the queue says. A shard that was removed remembers nothing.
        """
        marks: dict[int, Mark] = {}
        kept = found.kept
        for number in numbers:
            stands: Mark | None = yield Brief(read_mark(self.shard_of(number).keys))
            if stands is not None and stands != UNMARKED:
                kept = max(kept, number + 1)
                marks[stands.epoch] = stands
        for epoch in sorted(marks, reverse=True):
            if epoch <= found.epoch:
                break
            # One that is dated later than now counts for nothing; the server knows what time it is.
            changed, found = yield adopt(self.keys, marks[epoch], kept)
            if changed:
                break
        return found

    def refused(self, error: ShardDrainingError) -> Plan[None]:
        """Find out why a shard took no message, and see to it that the next try comes to one that does.

        The queue says where to send. A shard that a later division has closed heals a queue that has forgotten it;
        one that knows less than the queue is opened.
        """
        number = split_place(error.shard)[1]
        found: Shards = yield read_shards(self.keys)
        changed = False
        if error.epoch > found.epoch:
            closed = Mark(active=error.active, epoch=error.epoch)
            changed, found = yield adopt(self.keys, closed, max(number + 1, found.kept))
        if not changed and number < found.active:
            attributes: dict[str, str] = yield common_meta(self.keys)
            yield mark(self.shard_of(number).keys, found, attributes)
        self.learn(found)

    def every_shard(self, *, anew: bool = False) -> Plan[list[QueueRef]]:
        """All shards that may hold messages, the first one first; looked up at most once a minute, or `anew`."""
        if anew or self.stale:
            yield from self.look_up(sure=anew)
        return [self.shard(number) for number in range(self.shards.kept)]

    def in_turn(self) -> list[int]:
        """The shards that take messages, another one first each time; those that could not take one lately last."""
        active = self.shards.active
        if active == 1:
            return [0]
        first = next(self.turns) % active
        turn = [(first + offset) % active for offset in range(active)]
        if self._away:
            now = time.monotonic()
            turn.sort(key=lambda number: self._away.get(number, 0.0) > now)
        return turn

    def leave_out(self, number: int) -> None:
        """Let sends try other shards first for a few seconds."""
        self._away[number] = time.monotonic() + _AWAY_S


def _as_it_is(reply: bytes | None) -> bytes | None:
    return reply


class HasRef(Protocol):
    """A queue, sync or async."""

    @property
    def ref(self) -> QueueRef:
        """What operations know of it."""
