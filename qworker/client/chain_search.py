"""Find the step of a chain that waits or runs by the id of its last message, which may not exist yet."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from qworker.client.inspect.pages import END
from qworker.client.inspect.scan import scan_page
from qworker.client.message import Stored
from qworker.client.namespace.queues import existing, listed
from qworker.client.plan import Plan, side_by_side
from qworker.client.queue_ref import QueueRef
from qworker.engine.inspect import Inspection, inspect
from qworker.engine.outbox import UnsentPage, destinations, unsent
from qworker.engine.raw import raw
from qworker.errors import QworkerError
from qworker.wire.calls import callback_flag

__all__ = [
    "ChainEnd",
    "Gathered",
    "OnItsWay",
    "ShardContents",
    "StepLocation",
    "contents_of",
    "has_letter",
    "locate_step",
    "on_its_way",
    "shards_of",
]

#: The id of a later step: that of the first one, which its sender has drawn, and a number.
_STEP: Final = re.compile(r"([0-9a-z]{20})-([1-9]\d{0,4})")
_PAGE: Final = 100
#: Shards that are read in one trip: a reply has 1 KiB.
_READ_AT_ONCE: Final = 250
_STATES: Final = ("ready", "delayed", "held", "unacked")


class ChainEnd:
    """The last message of a chain, of `queue`: it knows the ids of the steps before it."""

    def __init__(self, queue: QueueRef, message_id: str, first: str, number: int) -> None:
        self.queue, self.id = queue, message_id
        self.before = (first, *(f"{first}-{step}" for step in range(1, number)))
        self._known = frozenset(self.before)

    @classmethod
    def of(cls, queue: QueueRef, message_id: str) -> ChainEnd | None:
        """Read the id of a message; None for one that is not a later step."""
        match = _STEP.fullmatch(message_id)
        return None if match is None else cls(queue, message_id, match[1], int(match[2]))

    def after(self, message_id: str) -> str:
        """The id of the step after one of these, or of its callback if it is a group of calls."""
        at = self.before.index(message_id)
        return self.before[at + 1] if at + 1 < len(self.before) else self.id

    def has(self, message: Stored) -> bool:
        """Whether a message is a step of this chain: its id says so, and its header, which names the end."""
        return message.id in self._known and self.is_end_of(message.flags.get("j", ""))

    def has_sent(self, message: Stored, destination: str) -> bool:
        """Whether a message on its way to a queue is a step, or the end itself."""
        is_end = message.id == self.id and destination == self.queue.keys.name
        return is_end or self.has(message)

    def is_end_of(self, flag: str) -> bool:
        """Whether a flag j names this end."""
        return flag.split(":")[:2] == [self.queue.keys.name, self.id]


class Gathered(msgspec.Struct, frozen=True):
    """A step that is a group of calls, by the id of the group."""

    group: str


class OnItsWay(msgspec.Struct, frozen=True):
    """A step that waits in an outbox to be stored in the queue `destination`."""

    destination: str
    message_id: str


#: Where a step was found: its message, its group of calls, or an outbox.
StepLocation = Stored | Gathered | OnItsWay


class ShardContents(msgspec.Struct, frozen=True):
    """What a shard holds, and its counters: those of two reads are equal if nothing moved between them."""

    messages: tuple[int, ...]
    dead: int
    groups: int
    outboxes: int
    stats: dict[str, int]

    @property
    def holds(self) -> bool:
        """Whether a step may be there that is not dead."""
        return any(self.messages) or bool(self.groups or self.outboxes)

    @property
    def number(self) -> int:
        """Messages and dead letters, of those that run their leases."""
        return sum(self.messages) + self.dead


def held_by(shard: QueueRef) -> Plan[ShardContents]:
    """Read what a shard holds: three calls."""
    seen: Inspection = yield inspect(shard.keys)
    groups: int = yield raw("ZCARD", shard.keys.joins, decode=int)
    lanes: list[str] = yield destinations(shard.keys)
    messages = (*seen.ready_by_priority, seen.suspect, seen.delayed, seen.grouped, seen.leases)
    return ShardContents(messages, seen.dead, groups, len(lanes), seen.stats)


def shards_of(end: ChainEnd, names: Sequence[str]) -> Plan[dict[str, QueueRef]]:
    """Map the names of the queues and shards in which the steps of a chain may be to them.

    `names`: the queues of its steps; without them these are all queues of the namespace.
    """
    namespace = end.queue.namespace
    queues = yield from (existing(namespace, [*names]) if names else listed(namespace))
    shards: dict[str, QueueRef] = {}
    for name, parts in queues.items():
        whole = end.queue.sibling(name)
        whole.learn(parts)
        shards |= {shard: whole.shard(n) for n, shard in enumerate(parts.names(name))}
    return shards


def contents_of(shards: Mapping[str, QueueRef]) -> Plan[dict[str, ShardContents | None]]:
    """Read what shards hold; None of one that cannot be read."""
    states = yield from side_by_side(map(held_by, shards.values()), _READ_AT_ONCE)
    return {
        name: None if isinstance(state, QworkerError) else state
        for name, state in zip(shards, states, strict=True)
    }


def locate_step(
    shard: QueueRef, held: ShardContents | None, end: ChainEnd
) -> Plan[StepLocation | None]:
    """Find the step of a chain in a shard, of which `held` is known; None if it is not there. O(n) of the shard."""
    if held is None or held.groups:
        for step in end.before:
            stored: bytes | None = yield raw("HGET", shard.keys.join(step), "@then")
            if end.is_end_of(callback_flag(stored, "j")):
                return Gathered(step)
    cursor = END
    while held is None or any(held.messages):
        page = yield from scan_page(shard, cursor, *_STATES, count=_PAGE)
        for message in page.items:
            if end.has(message):
                return message
        cursor = page.cursor
        if cursor == END:
            break
    if held is None or held.outboxes:
        return (yield from on_its_way(shard, end))
    return None


def has_letter(shard: QueueRef, end: ChainEnd) -> Plan[bool]:
    """Say whether a step of a chain is a dead letter of a shard. O(n) of these."""
    cursor = END
    while True:
        page = yield from scan_page(shard, cursor, "dead", count=_PAGE)
        if any(end.has(letter) for letter in page.items):
            return True
        cursor = page.cursor
        if cursor == END:
            return False


def on_its_way(shard: QueueRef, end: ChainEnd) -> Plan[OnItsWay | None]:
    """Find a step of a chain, or its end, in the outboxes of a shard."""
    for name in (yield destinations(shard.keys)):
        start = "-"
        while start:
            page: UnsentPage = yield unsent(shard.keys, name, start)
            for entry in page.entries:
                message = shard.stored("ready", entry.item)
                if end.has_sent(message, name):
                    return OnItsWay(name, message.id)
            start = page.rest
    return None
