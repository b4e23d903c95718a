"""Cancel a chain by the id of its last message, which may not exist yet: search the step that waits or runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from qworker.client.by_id import delete_waiting
from qworker.client.cancel_calls import cancel_open_group
from qworker.client.cancel_message import Cancellation, leave_tombstone
from qworker.client.chain_search import (
    ChainEnd,
    Gathered,
    ShardContents,
    StepLocation,
    contents_of,
    locate_step,
    on_its_way,
    shards_of,
)
from qworker.client.inspect.peek import find
from qworker.client.inspect.results import outcome as outcome_of
from qworker.client.message import Stored
from qworker.client.per_shard import of_one_key
from qworker.client.plan import Plan, side_by_side
from qworker.client.queue_ref import QueueRef
from qworker.client.relay import relay
from qworker.client.steps import ChainStep, steps_after
from qworker.engine.raw import raw
from qworker.errors import ProtectionError, QworkerError

__all__ = ["cancel_chain"]

#: Walks through the queues: a step that moves may be missed by one.
_WALKS: Final = 5
#: Tries to delete a step that was found: it may be received, or given back, meanwhile.
_TRIES: Final = 2
#: Pages of an outbox that are relayed after a cancel.
_PAGES: Final = 10
#: Shards that are searched in one trip: a reply may have 1 MiB.
_SEARCHED: Final = 64


def cancel_chain(end: ChainEnd, names: Sequence[str]) -> Plan[Cancellation | None]:
    """Cancel the step of a chain that waits or runs, and keep out the one after it; None if none was found.

    `names`: the queues of its steps; without them all queues of the namespace are searched, side by side. Raises the
    error of a server that could not be asked if the others do not have it.
    """
    with suppress(ProtectionError):  # of a result that is not for us
        if (yield from outcome_of(end.queue, end.id)) is None:
            return (yield from _search(end, names))
    return None


def _search(end: ChainEnd, names: Sequence[str]) -> Plan[Cancellation | None]:
    """Search queues, and once more those in which anything moved meanwhile: a step that moves may be missed."""
    shards = yield from shards_of(end, names)
    #: What each shard held when it was last searched; at first all are.
    before: dict[str, ShardContents | None] = {}
    for _ in range(_WALKS):
        held = yield from contents_of(shards)
        moved = [name for name in shards if name not in before or held[name] != before[name]]
        searched = [name for name in moved if (state := held[name]) is None or state.holds]
        if not moved:
            break
        locations = yield from side_by_side(
            (locate_step(shards[name], held[name], end) for name in searched), _SEARCHED
        )
        unread: QworkerError | None = None
        for name, location in zip(searched, locations, strict=True):
            if isinstance(location, QworkerError):
                if not of_one_key(location):
                    unread = unread or location
            elif location is not None:
                answer = yield from _cancel_at(shards[name], end, location, shards)
                if answer is not None:
                    return answer
        if unread is not None:
            raise unread
        before = held
    return None


def _cancel_step(
    shard: QueueRef, end: ChainEnd, message: Stored, shards: Iterable[str]
) -> Plan[Cancellation | None]:
    """Cancel a step that was found; None if the chain is past it meanwhile. `shards`: where its steps may be."""
    if message.closed:
        # Without its key nothing tells which queue is next.
        after = [*((name, end.after(message.id)) for name in shards), (end.queue.keys.name, end.id)]
    else:
        after = [*_first_messages(steps_after(message.body))]
    for name, message_id in after:
        # A step in the same queue is stored where the one before it is.
        target = shard if name == shard.keys.name else shard.sibling(name)
        yield from leave_tombstone(target, message_id)
    yield from leave_tombstone(shard, message.id)
    # The next step comes after its tombstone if this one is still there.
    for _ in range(_TRIES):
        if message.state != "unacked" and (yield from delete_waiting(shard, [message.id])):
            for name, message_id in (*after, (shard.keys.name, message.id)):
                target = shard if name == shard.keys.name else shard.sibling(name)
                yield raw("ZREM", target.keys.cancelled, message_id, decode=int)
            # Its end is known where the chain's result is waited for; if not now, a reaper tells it.
            with suppress(QworkerError):
                yield from relay(shard.namespace, shard.keys, pages=_PAGES)
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


def _first_messages(steps: Sequence[ChainStep]) -> Iterator[tuple[str, str]]:
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


def _cancel_at(
    shard: QueueRef, end: ChainEnd, location: StepLocation, shards: Iterable[str]
) -> Plan[Cancellation | None]:
    """Cancel the step where it was found: its group of calls, its message, or what an outbox sends on."""
    if isinstance(location, Stored):
        return (yield from _cancel_step(shard, end, location, shards))
    if isinstance(location, Gathered):
        return (yield from cancel_open_group(shard, location.group))
    # It arrives now; if its queue does not take it, it is dropped when it does.
    with suppress(QworkerError):
        yield from relay(shard.namespace, shard.keys)
    waiting = yield from on_its_way(shard, end)
    if waiting is not None:
        yield from leave_tombstone(shard.sibling(waiting.destination), waiting.message_id)
        return Cancellation.CANCELLED
    if location.message_id == end.id:
        return None  # `cancel` of that message says what became of it
    arrived, _ = yield from find(target := shard.sibling(location.destination), location.message_id)
    return None if arrived is None else (yield from _cancel_step(target, end, arrived, shards))
