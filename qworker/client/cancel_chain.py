"""Cancel a chain by the id of its last message, which may not exist yet: find the step that waits or runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

from qworker.client.by_id import delete_waiting
from qworker.client.calls import call_group
from qworker.client.cancel import Cancellation, leave_tombstone
from qworker.client.cancel_calls import cancel_calls
from qworker.client.inspect.pages import END
from qworker.client.inspect.peek import find
from qworker.client.inspect.results import look
from qworker.client.inspect.scan import scan_page
from qworker.client.message import Stored
from qworker.client.namespace.queues import list_queues
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.client.relay import relay
from qworker.client.steps import Step, steps_after
from qworker.engine.outbox import UnsentPage, destinations, unsent
from qworker.engine.raw import raw
from qworker.errors import ProtectionError, QworkerError
from qworker.wire.calls import callback_flag

__all__ = ["ChainEnd", "cancel_chain"]

#: The id of a later step: that of the first one, which its sender has drawn, and a number.
_STEP: Final = re.compile(r"([0-9a-z]{20})-([1-9]\d{0,4})")
#: Walks through the queues: a step that moves may be missed by one.
_WALKS: Final = 2
_PAGE: Final = 500
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


def cancel_chain(end: ChainEnd, names: Sequence[str]) -> Plan[Cancellation | None]:
    """Cancel the step of a chain that waits or runs, and keep out the one after it; None if none was found.

    `names`: the queues of its steps, in order; without them all queues of the namespace are searched.
    """
    queue = end.queue
    with suppress(ProtectionError):  # of a result that is not for us
        if (yield from look(queue, end.id)) is None:
            names = names or (yield from list_queues(queue.namespace))
            places = [queue.sibling(name) for name in dict.fromkeys(names)]
            for _ in range(_WALKS):
                for place in places:
                    for shard in (yield from place.every_shard()):
                        answer = yield from _cancel_in(shard, end)
                        if answer is not None:
                            return answer
    return None


def _cancel_in(shard: QueueRef, end: ChainEnd) -> Plan[Cancellation | None]:
    """Cancel the step in one shard: its group of calls, its message, or what an outbox sends on."""
    for step in end.before:
        group = yield from call_group(shard, step)
        if group is not None and group.is_open:
            stored: bytes | None = yield raw("HGET", shard.keys.join(step), "@then")
            if end.is_end_of(callback_flag(stored, "j")):
                done = yield from cancel_calls(shard, step)
                if done is not None:
                    return Cancellation.CANCELLING if done.cancelling else Cancellation.CANCELLED
    cursor = END
    while True:
        page = yield from scan_page(shard, cursor, *_STATES, count=_PAGE)
        for message in page.items:
            if end.has(message):
                answer = yield from _cancel_step(shard, message)
                if answer is not None:
                    return answer
        cursor = page.cursor
        if cursor == END:
            break
    return (yield from _cancel_unsent(shard, end))


def _cancel_step(shard: QueueRef, message: Stored) -> Plan[Cancellation | None]:
    """Cancel a step that was found; None if the chain is past it meanwhile."""
    after = [*_first_messages(steps_after(message.body))]
    for name, message_id in after:
        # A step in the same queue is stored where the one before it is.
        place = shard if name == shard.keys.name else shard.sibling(name)
        yield from leave_tombstone(place, message_id)
    yield from leave_tombstone(shard, message.id)
    # The next step comes after its tombstone if this one is still there.
    for _ in range(_WALKS):
        if message.state != "unacked" and (yield from delete_waiting(shard, [message.id])):
            for name, message_id in (*after, (shard.keys.name, message.id)):
                place = shard if name == shard.keys.name else shard.sibling(name)
                yield raw("ZREM", place.keys.cancelled, message_id, decode=int)
            return Cancellation.CANCELLED
        found, _ = yield from find(shard, message.id)
        if found is not None and found.state == "unacked":
            return Cancellation.CANCELLING
        if found is not None and found.state == "dead":
            return None
        left: bytes | None = yield raw("ZSCORE", shard.keys.cancelled, message.id)
        if left is None:
            return Cancellation.CANCELLED  # a script has met its tombstone
    return None


def _first_messages(steps: Sequence[Step]) -> Iterator[tuple[str, str]]:
    """Queue and id of the messages that the next step is sent as: of a group, those of its calls and its callback."""
    if not steps or steps[0].join is not None:
        return
    first = steps[0]
    if first.fan is None:
        yield first.queue, first.id
        return
    for member in first.fan.members:
        yield from _first_messages(member)
    yield first.fan.callback.queue, first.fan.callback.id


def _cancel_unsent(shard: QueueRef, end: ChainEnd) -> Plan[Cancellation | None]:
    """Let a step that is on its way arrive; one that its queue does not take now is dropped when it does."""
    with suppress(QworkerError):
        yield from relay(shard.namespace, shard.keys)
    for name in (yield destinations(shard.keys)):
        start = "-"
        while start:
            page: UnsentPage = yield unsent(shard.keys, name, start)
            for entry in page.entries:
                if end.has_sent(message := shard.stored("ready", entry.item), name):
                    yield from leave_tombstone(shard.sibling(name), message.id)
                    return Cancellation.CANCELLED
            start = page.rest
    return None
