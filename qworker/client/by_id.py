"""Operations on single messages by their ids, in any state. Each finds them first, which takes O(n)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import msgspec

from qworker.client.cancel_message import leave_tombstone
from qworker.client.dead.verbs import find_dead
from qworker.client.inspect.find import Search, WaitingMessage, call_pages, find_delayed
from qworker.client.inspect.peek import find, show
from qworker.client.message import Stored
from qworker.client.per_shard import chained, everywhere, until_found
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.engine import dead, inspect
from qworker.engine import message as commands
from qworker.engine.command import Command
from qworker.engine.options import QueueAttributes
from qworker.wire.numbers import whole

__all__ = [
    "Details",
    "delete",
    "delete_waiting",
    "describe",
    "details",
    "enqueue",
    "hold",
]


class Details(msgspec.Struct, frozen=True):
    """A message at an instant `now_ms`, with its times relative to it; None if one does not apply.

    `ttl_ms` is left of its time to live, `delay_ms` is its first delay (until it is moved), `visibility_ms` is the
    timeout of its next receiver; `due_in_ms` and `requeue_in_ms` are negative if a reaper is late.
    """

    message: Stored
    now_ms: int
    ttl_ms: int | None
    delay_ms: int | None
    visibility_ms: int
    at_most_once: bool
    due_in_ms: int | None
    requeue_in_ms: int | None


@until_found
def details(queue: QueueRef, message_id: str) -> Plan[Details | None]:
    """Find a message as `show` does, with its times relative to now; None if it is not found."""
    message = yield from show(queue, message_id)
    return None if message is None else (yield from describe(queue, message))


def describe(queue: QueueRef, message: Stored) -> Plan[Details]:
    """Add to a message its times relative to now."""
    inspection: inspect.Inspection = yield inspect.inspect(queue.keys)
    now_ms, flags = inspection.now_ms, message.flags
    expiry_ms, own_ms, ready_ms = (whole(flags.get(flag)) for flag in "xvt")
    queue_ms = whole(inspection.meta.get("visibility_ms")) or QueueAttributes().visibility_ms
    left_ms = None if message.at_ms is None else message.at_ms - now_ms
    first = message.receives == 0 and message.sent_ms is not None
    delay_ms = ready_ms - (message.sent_ms or 0) if first and ready_ms is not None else None
    return Details(
        message,
        now_ms,
        None if expiry_ms is None else expiry_ms - now_ms,
        delay_ms,
        own_ms or queue_ms,
        own_ms == 0,
        left_ms if message.state == "delayed" else None,
        left_ms if message.state == "unacked" else None,
    )


@everywhere(chained)
def hold(queue: QueueRef, *message_ids: str) -> Plan[list[str]]:
    """Take ready and delayed messages out of the queue without losing them; returns the ids of those held now.

    They wait in state `held`, also past their time to live, until you enqueue or delete them. O(n): one walk through
    the queue, and half a walk more for each message in the middle of a list.
    """
    held = yield from _pick_ready(queue, message_ids, partial(_hold, queue))
    missing = [message_id for message_id in message_ids if message_id not in held]
    delayed = yield from find_delayed(queue, missing)
    due = [hit for hit in delayed if hit.due_ms != commands.NEVER_MS]
    held.update((yield from _pick(due, partial(_hold, queue))))
    return [message_id for message_id in dict.fromkeys(message_ids) if message_id in held]


@everywhere(chained)
def enqueue(queue: QueueRef, *message_ids: str) -> Plan[list[str]]:
    """Move delayed and held messages to the tail of ready now; returns the ids of those that moved. O(n)."""

    def command(hits: Sequence[WaitingMessage]) -> Command[list[bool]]:
        return commands.enqueue(queue.keys, [hit.item for hit in hits])

    done = yield from _pick((yield from find_delayed(queue, message_ids)), command)
    return [message_id for message_id in dict.fromkeys(message_ids) if message_id in done]


def delete_waiting(queue: QueueRef, message_ids: Sequence[str]) -> Plan[set[str]]:
    """Delete ready, delayed and held messages of one shard; returns the ids of those deleted. O(n), as `hold`."""

    def command(hits: Sequence[WaitingMessage]) -> Command[list[bool]]:
        return commands.delete(
            queue.keys, [hit.item for hit in hits], [hit.location for hit in hits]
        )

    gone = yield from _pick_ready(queue, message_ids, command)
    missing = [message_id for message_id in message_ids if message_id not in gone]
    gone.update((yield from _pick((yield from find_delayed(queue, missing)), command)))
    return gone


@until_found
def delete(queue: QueueRef, message_id: str) -> Plan[Stored | None]:
    """Delete a message in any state; returns it as it was found, or None. O(n).

    The handler of an unacked message is asked to stop, as by `cancel`: an ack before that ends it as usual, and it is
    dropped if it comes back. It is returned as `marked`, like a message that moved while it was being deleted; all
    others are gone.
    """
    message, location = yield from find(queue, message_id)
    if message is None:
        return None
    if message.state == "dead":
        dead_letter = yield from find_dead(queue, message_id)
        if dead_letter is not None:
            yield dead.drop(queue.keys, [dead_letter.entry])
        return message
    deleted = False
    if message.state != "unacked":
        [deleted] = yield commands.delete(queue.keys, [message.item], [location])
    if not deleted:
        yield from leave_tombstone(queue, message_id)
    return replace(message, marked=not deleted)


def _hold(queue: QueueRef, hits: Sequence[WaitingMessage]) -> Command[list[bool]]:
    return commands.hold(queue.keys, [hit.item for hit in hits], [hit.location for hit in hits])


def _pick_ready(
    queue: QueueRef,
    message_ids: Sequence[str],
    command: Callable[[Sequence[WaitingMessage]], Command[list[bool]]],
) -> Plan[set[str]]:
    """Move ready messages; returns the ids of those that still waited."""
    moved: set[str] = set()
    search = Search(queue, message_ids)
    while not search.ended:
        taken = yield from _pick((yield from search.page()), command)
        search.took(len(taken))
        moved.update(taken)
    return moved


def _pick(
    hits: Sequence[WaitingMessage],
    command: Callable[[Sequence[WaitingMessage]], Command[list[bool]]],
) -> Plan[list[str]]:
    """Move messages in as many calls as they need; returns the ids of those that still waited."""
    done: list[str] = []
    for page in call_pages(hits):
        first = 0
        while first < len(page):
            # A call reads a limited number: repeat it for messages without a result.
            moved: list[bool] = yield command(page[first:])
            done += [hit.id for hit, flag in zip(page[first:], moved, strict=False) if flag]
            first += len(moved)
    return done
