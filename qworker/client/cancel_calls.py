"""Cancel groups of calls with the messages of their calls."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import msgspec

from qworker.client.cancel_by_prefix import cancel_messages
from qworker.client.cancel_message import Cancellation
from qworker.client.inspect.walk import SortedSetWalk
from qworker.client.plan import Plan, all_together, side_by_side
from qworker.client.queue_ref import QueueRef
from qworker.client.relay import relay
from qworker.engine.calls import abandon
from qworker.engine.outbox import UnsentPage, destinations, unsent
from qworker.engine.raw import raw
from qworker.errors import QworkerError
from qworker.wire.names import check_message_id

__all__ = ["CancelledCalls", "cancel_calls", "cancel_groups", "cancel_open_group"]

#: Walks through the queues: a message that moves may be missed by one.
_WALKS: Final = 3
#: Groups per call, and per page of a walk.
_GROUPS: Final = 100
_PAGE: Final = 500
#: Shards that are walked at a time, each in replies of up to 1 MiB.
_SHARDS: Final = 8


class CancelledCalls(msgspec.Struct, frozen=True):
    """The outcome of cancelling a group of calls.

    Messages of its calls, also those of chains and groups in it: `cancelled` waited, and will not run; `cancelling`
    run, and their workers see it within a heartbeat (5 s). `too_late`: calls that had ended before, or are dead.
    """

    cancelled: int
    cancelling: int
    too_late: int


def cancel_calls(queue: QueueRef, group_id: str) -> Plan[CancelledCalls | None]:
    """Cancel a group of calls: its callback is not sent, and its calls are cancelled. None if it is unknown.

    A run that gathers the group continues, with the calls that have ended. Of a group that was cancelled before, what
    is left is cancelled; one whose callback was sent is left alone. O(n) of the queues in which its calls may be.
    """
    check_message_id(group_id)
    for shard in (yield from queue.every_shard(refresh=True)):
        join = shard.keys.join(group_id)
        words: list[bytes | None] = yield raw("HMGET", join, "@size", "@over", "@then", decode=list)
        size, over, then = words
        if size is not None:
            if over is not None and then is not None:
                return CancelledCalls(0, 0, int(size))
            fields: list[bytes] = yield raw("HKEYS", join, decode=list)
            before = sum(map(bytes.isdigit, fields))
            cancelled, cancelling = yield from cancel_groups(shard, [group_id])
            return CancelledCalls(cancelled, cancelling, before)
    return None


def cancel_open_group(queue: QueueRef, group_id: str) -> Plan[Cancellation | None]:
    """Cancel a group of calls, as `cancel_calls` does; None if it does not wait for calls, or no longer."""
    for shard in (yield from queue.every_shard()):
        [waited] = yield abandon(shard.keys, [check_message_id(group_id)], "cancelled")
        if waited:
            done = yield from cancel_calls(queue, group_id)
            running = done is not None and done.cancelling
            return Cancellation.CANCELLING if running else Cancellation.CANCELLED
    return None


def cancel_groups(
    shard: QueueRef, groups: Sequence[str], *, of_run: bool = False
) -> Plan[tuple[int, int]]:
    """End groups of one shard, and cancel the messages of their calls; returns how many waited, and how many run.

    `of_run`: those that a run gathers end last. The run follows their end, and with it goes what names the queues of
    the calls: a cancel that was interrupted before can be repeated.
    """
    names: set[str] = set()
    for group in groups:
        listed: bytes | None = yield raw("HGET", shard.keys.join(group), "@queues")
        names.update((listed or b"").decode().split())
    if not of_run:
        yield from _end(shard, groups)
    # Messages of a group have ids that begin with its own.
    prefixes = tuple(f"{group}." for group in groups)
    queues = [shard.sibling(name) for name in sorted(names)]
    cancelled: set[str] = set()
    running: set[str] = set()
    for _ in range(_WALKS):
        before = len(cancelled)
        shards: list[QueueRef] = []
        for queue in queues:
            shards += yield from queue.every_shard()
        yield from _empty_outboxes(shard, shards, prefixes, cancelled)
        walks = (_cancel_in(part, prefixes, cancelled, running) for part in shards)
        for outcome in (yield from side_by_side(walks, _SHARDS)):
            if isinstance(outcome, QworkerError):
                raise outcome
        if len(cancelled) == before:
            break
    if of_run:
        yield from _end(shard, groups)
    return len(cancelled), len(running - cancelled)


def _cancel_in(
    shard: QueueRef, prefixes: tuple[str, ...], cancelled: set[str], running: set[str]
) -> Plan[None]:
    """End inner groups of a shard, delete the messages that wait, and ask for the end of those that run."""
    walk = SortedSetWalk(shard.keys.joins, _PAGE)
    inner: list[str] = []
    while not walk.ended:
        found = [member.decode() for member, _ in (yield from walk.page())]
        inner += [name for name in found if name.startswith(prefixes)]
    yield from _end(shard, inner)
    yield from cancel_messages(shard, prefixes, cancelled, running)


def _end(shard: QueueRef, groups: Sequence[str]) -> Plan[None]:
    for first in range(0, len(groups), _GROUPS):
        yield abandon(shard.keys, groups[first : first + _GROUPS], "cancelled")


def _empty_outboxes(
    home: QueueRef, shards: Sequence[QueueRef], prefixes: tuple[str, ...], cancelled: set[str]
) -> Plan[None]:
    """Relay what is on its way, and take back what its destination refuses. `home`: where the groups are counted."""
    searched = {shard.keys.queue: shard for shard in (home, *shards)}
    named = yield from all_together([destinations(shard.keys) for shard in searched.values()])
    lanes = [
        (shard, name)
        for shard, names in zip(searched.values(), named, strict=True)
        for name in names
    ]
    lengths = yield from all_together(
        [raw("XLEN", shard.keys.outbox(name), decode=int) for shard, name in lanes]
    )
    full = [lane for lane, length in zip(lanes, lengths, strict=True) if length]
    for shard in dict.fromkeys(shard for shard, _ in full):
        with suppress(QworkerError):
            # Each end that is counted at home would have its outboxes relayed again.
            apart = frozenset({home.keys.queue})
            yield from relay(shard.namespace, shard.keys, entries=_PAGE, apart=apart)
    for shard, name in full:
        start = "-"
        while start:
            page: UnsentPage = yield unsent(shard.keys, name, start)
            ours = {
                entry.entry: entry.message_id
                for entry in page.entries
                if entry.message_id.startswith(prefixes)
            }
            # One that a relay has stored meanwhile is found in its queue.
            if ours:
                yield raw("XDEL", shard.keys.outbox(name), *ours, decode=int)
                cancelled.update(ours.values())
            start = page.rest
