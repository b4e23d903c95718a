"""Cancel the messages of a queue whose ids begin in one of some ways: hundreds in a trip, each read once."""

from __future__ import annotations

from typing import Final

from qworker.client.cancel_message import tombstone
from qworker.client.delete_where import delete_where
from qworker.client.inspect import peek
from qworker.client.inspect.walk import SortedSetWalk
from qworker.client.per_shard import of_one_key
from qworker.client.plan import Plan, all_together, side_by_side
from qworker.client.queue_ref import QueueRef
from qworker.errors import QworkerError
from qworker.wire.numbers import score_ms

__all__ = ["cancel_messages"]

_PAGE: Final = 500
#: Leases that are read in one trip, each of up to 1 MiB, and tombstones that are written in one.
_LEASES: Final = 16
_TOMBSTONES: Final = 500


def cancel_messages(
    shard: QueueRef, prefixes: tuple[str, ...], cancelled: set[str], running: set[str]
) -> Plan[None]:
    """Delete messages of a shard that wait, and ask for the end of those that run; adds their ids to the sets.

    A key of another type is passed over. O(n) of the shard.
    """
    starts = tuple(prefix.encode() for prefix in prefixes)
    yield from delete_where(
        shard.keys, lambda found: found.startswith(starts), cancelled, skip_broken=True
    )
    yield from _stop(shard, prefixes, running)


def _stop(shard: QueueRef, prefixes: tuple[str, ...], running: set[str]) -> Plan[None]:
    walk = SortedSetWalk(shard.keys.unacked, _PAGE)
    fresh: dict[str, None] = {}
    while not walk.ended:
        try:
            page = yield from walk.page()
        except QworkerError as error:
            if not of_one_key(error):
                raise
            return
        plans = (
            peek.lease(shard, lease_id.decode("utf-8", "replace"), score_ms(deadline))
            for lease_id, deadline in page
        )
        for messages in (yield from side_by_side(plans, _LEASES)):
            if not isinstance(messages, QworkerError):
                fresh |= {
                    message.id: None
                    for message in messages
                    if message.id.startswith(prefixes) and message.id not in running
                }
            elif not of_one_key(messages):
                raise messages
    ids = [*fresh]
    for first in range(0, len(ids), _TOMBSTONES):
        some = ids[first : first + _TOMBSTONES]
        yield from all_together([tombstone(shard, each) for each in some])
        running.update(some)
