"""Cancel a message by its id, whether it waits or runs."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from qworker.client.inspect.peek import find
from qworker.client.inspect.results import outcome as outcome_of
from qworker.client.message import Stored
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.engine import message as commands
from qworker.engine.command import Command
from qworker.engine.raw import raw
from qworker.errors import ProtectionError

__all__ = ["Cancellation", "cancel", "leave_tombstone", "tombstone"]

#: How long a cancelled message is dropped.
_CANCEL_MS: Final = 7 * 24 * 3_600_000
#: Walks through a queue: a message that moves may be missed by one.
_WALKS: Final = 2


class Cancellation(StrEnum):
    """The answer to a cancel.

    `CANCELLED`: it waited, and will not run. `CANCELLING`: it runs, and its worker sees it within a heartbeat (5 s); if
    its handler finishes first, its outcome counts. Too late: `ENDED` (acked, dead, or ended in another way), or
    `UNKNOWN` (not found: it ended and no result is kept, or it never existed). A message that the search missed because
    it moved is dropped as well.
    """

    CANCELLED = "cancelled"
    CANCELLING = "cancelling"
    ENDED = "ended"
    UNKNOWN = "unknown"

    @property
    def too_late(self) -> bool:
        """Whether there is nothing left to cancel."""
        return self in (Cancellation.ENDED, Cancellation.UNKNOWN)


def cancel(queue: QueueRef, message_id: str) -> Plan[Cancellation]:
    """Cancel a message: delete it if it waits, ask its handler to stop if it runs.

    After any answer it is dropped if it comes back within 7 days, and a reaper deletes it if it still waits then. Dead
    letters stay, and may be redriven. O(n) of the queue to find it. A server out of memory refuses it
    (`OutOfMemoryError`); `delete` removes waiting messages even then.
    """
    shards = yield from queue.every_shard()
    if (ended := (yield from _ended(queue, message_id))) is not None:
        return ended
    for shard in shards:
        yield from leave_tombstone(shard, message_id)
    # From here on no receive delivers it: if it is found waiting, it will not run.
    for _ in range(_WALKS):
        for shard in shards:
            message, location = yield from find(shard, message_id)
            if message is not None:
                return (yield from _cancel_found(shards, shard, message, location))
        if (ended := (yield from _ended(queue, message_id))) is not None:
            yield from _withdraw(shards, message_id)
            return ended
        for shard in shards:
            left: bytes | None = yield raw("ZSCORE", shard.keys.cancelled, message_id)
            if left is None:  # a script has met it: dropped the message, or counted its end
                ended = yield from _ended(queue, message_id)
                return ended or Cancellation.CANCELLED
    return Cancellation.UNKNOWN


def leave_tombstone(queue: QueueRef, message_id: str) -> Plan[None]:
    """Drop a message of this shard when it is next read, and stop its handler, without searching for it. O(log n)."""
    yield tombstone(queue, message_id)


def tombstone(queue: QueueRef, message_id: str) -> Command[int]:
    """The command of `leave_tombstone`."""
    return commands.cancel(queue.keys, message_id, _CANCEL_MS)


def _ended(queue: QueueRef, message_id: str) -> Plan[Cancellation | None]:
    """Tell by its result whether a message has ended; None if none is kept."""
    try:
        outcome = yield from outcome_of(queue, message_id)
    except ProtectionError:
        return Cancellation.ENDED  # with a result that we cannot read
    if outcome is None:
        return None
    return Cancellation.CANCELLED if outcome.state == "cancelled" else Cancellation.ENDED


def _cancel_found(
    shards: Sequence[QueueRef], shard: QueueRef, message: Stored, location: str
) -> Plan[Cancellation]:
    if message.state == "unacked":
        return Cancellation.CANCELLING
    if message.state == "dead":
        # An operator who redrives it later has changed their mind.
        yield from _withdraw(shards, message.id)
        return Cancellation.ENDED
    [deleted] = yield commands.delete(shard.keys, [message.item], [location])
    if deleted:
        yield from _withdraw(shards, message.id)
    return Cancellation.CANCELLED


def _withdraw(shards: Sequence[QueueRef], message_id: str) -> Plan[None]:
    for shard in shards:
        yield raw("ZREM", shard.keys.cancelled, message_id, decode=int)
