"""Cancel groups of calls with the messages of their calls."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import msgspec

from qworker.client.by_id import delete_waiting
from qworker.client.calls import read_group
from qworker.client.cancel import Cancellation, leave_tombstone
from qworker.client.inspect.pages import END
from qworker.client.inspect.scan import scan_page
from qworker.client.inspect.walk import SortedSetWalk
from qworker.client.plan import Plan
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
#: Groups per call, and messages per page of a scan.
_GROUPS: Final = 100
_PAGE: Final = 500
_STATES: Final = ("ready", "delayed", "held", "unacked")


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
    for shard in (yield from queue.every_shard()):
        state = yield from read_group(shard.keys, group_id)
        if state is not None:
            before = sum(1 for words in state.words if words)
            decided: bytes | None = yield raw("HGET", shard.keys.join(group_id), "@then")
            if state.over_ms is not None and decided is not None:
                return CancelledCalls(0, 0, len(state.words))
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


def cancel_groups(shard: QueueRef, groups: Sequence[str]) -> Plan[tuple[int, int]]:
    """End groups of one shard, and cancel the messages of their calls; returns how many waited, and how many run."""
    names: set[str] = set()
    for group in groups:
        listed: bytes | None = yield raw("HGET", shard.keys.join(group), "@queues")
        names.update((listed or b"").decode().split())
    for first in range(0, len(groups), _GROUPS):
        yield abandon(shard.keys, groups[first : first + _GROUPS], "cancelled")
    # Messages of a group have ids that begin with its own.
    prefixes = tuple(f"{group}." for group in groups)
    queues = [shard.sibling(name) for name in sorted(names)]
    cancelled: set[str] = set()
    running: set[str] = set()
    for _ in range(_WALKS):
        before = len(cancelled)
        for queue in (shard, *queues):
            yield from _empty_outboxes(queue, prefixes, cancelled)
        for queue in queues:
            yield from _cancel_in(queue, prefixes, cancelled, running)
        if len(cancelled) == before:
            break
    return len(cancelled), len(running - cancelled)


def _cancel_in(
    queue: QueueRef, prefixes: tuple[str, ...], cancelled: set[str], running: set[str]
) -> Plan[None]:
    """End inner groups of a queue, delete the messages that wait, and ask for the end of those that run."""
    for shard in (yield from queue.every_shard()):
        walk = SortedSetWalk(shard.keys.joins, _PAGE)
        inner: list[str] = []
        while not walk.ended:
            found = [member.decode() for member, _ in (yield from walk.page())]
            inner += [name for name in found if name.startswith(prefixes)]
        for first in range(0, len(inner), _GROUPS):
            yield abandon(shard.keys, inner[first : first + _GROUPS], "cancelled")
        waiting: list[str] = []
        cursor = END
        while True:
            page = yield from scan_page(shard, cursor, *_STATES, count=_PAGE)
            for message in page.items:
                if not message.id.startswith(prefixes):
                    continue
                if message.state != "unacked":
                    waiting.append(message.id)
                elif message.id not in running:
                    running.add(message.id)
                    yield from leave_tombstone(shard, message.id)
            cursor = page.cursor
            if cursor == END:
                break
        cancelled.update((yield from delete_waiting(shard, waiting)))


def _empty_outboxes(queue: QueueRef, prefixes: tuple[str, ...], cancelled: set[str]) -> Plan[None]:
    """Relay what is on its way, and take back what its destination refuses."""
    for shard in (yield from queue.every_shard()):
        with suppress(QworkerError):
            yield from relay(shard.namespace, shard.keys)
        for name in (yield destinations(shard.keys)):
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
